"""Small tokenizers of every family, with the parts that the published ones have."""

import functools
import json

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from support.languages import lines

_QWEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def template(single, tokenizer):
    ends = [(token, tokenizer.token_to_id(token)) for token in single.split() if token != "$A"]
    return processors.TemplateProcessing(single=single, special_tokens=ends)


def byte_level(splitter, special, normalizer=None):
    """Pairs of bytes; the special tokens stand behind all others."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        lines(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer.add_special_tokens(special)
    return tokenizer


def modern_bert():
    mask = AddedToken("[MASK]", lstrip=True, normalized=False, special=True)
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = byte_level(splitter, ["[UNK]", "[CLS]", "[SEP]", "[PAD]", mask], normalizers.NFC())
    tokenizer.post_processor = template("[CLS] $A [SEP]", tokenizer)
    names = {f"{role}_token": f"[{role.upper()}]" for role in ("unk", "cls", "sep", "pad", "mask")}
    return tokenizer, {"tokenizer_class": "PreTrainedTokenizerFast", **names}


def qwen3(single):
    """The base model's has no template, and that of the embedding model the token of padding."""
    bytes_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splitter = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(_QWEN), "isolated"), bytes_alone])
    tokenizer = byte_level(splitter, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], normalizers.NFC())
    trims = processors.ByteLevel(trim_offsets=False)
    tokenizer.post_processor = processors.Sequence([trims, template(single, tokenizer)]) if single else trims
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "unk_token": None, "bos_token": None}
    return tokenizer, {"tokenizer_class": "Qwen2Tokenizer", "add_bos_token": False, **names}


def byte_fallback(special, normalizer, splitter):
    """Pairs of characters, and bytes for what has none."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    latin = [line for line in lines() if line.isascii()]  # other letters are bytes
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=[*special, *_BYTES], show_progress=False)
    tokenizer.train_from_iterator(latin, trainer)
    config = json.loads(tokenizer.to_str())
    config["added_tokens"] = [token for token in config["added_tokens"] if token["content"] in special]
    return Tokenizer.from_str(json.dumps(config))


def gemma():
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    splitter = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer = byte_fallback(special, normalizers.Replace(" ", "▁"), splitter)
    tokenizer.post_processor = template("<bos> $A <eos>", tokenizer)
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "eos", "bos", "unk", "mask")}
    return tokenizer, {"tokenizer_class": "GemmaTokenizer", **names}


def llama():
    """As E5-Mistral has it: the settings ask for a token behind the text, and the post-processor has none."""
    normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = byte_fallback(["<unk>", "<s>", "</s>"], normalizer, None)
    tokenizer.post_processor = template("<s> $A", tokenizer)
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tokenizer, {"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "add_eos_token": True, **names}


def t5():
    """Pieces of one letter, of three and of whole words; the library's trainer fails on so few texts."""
    words = sorted({f"▁{word}" for line in lines() for word in line.split()})
    letters = sorted({letter for word in words for letter in word if letter.isalnum() or letter == "▁"})
    thirds = sorted({word[start : start + 3] for word in words for start in range(0, len(word) - 3, 3)})
    scored = [(letters, -9.0), (thirds, -11.0), (words[::2], -12.0)]
    pieces = {piece: score for part, score in scored for piece in part if "<" not in piece}
    tokenizer = Tokenizer(models.Unigram([("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *pieces.items()], unk_id=2))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Strip(), spaces])
    metaspace = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), metaspace])
    tokenizer.add_special_tokens(["<pad>", "</s>", "<unk>"])
    tokenizer.add_special_tokens([f"<extra_id_{number}>" for number in range(3)])
    tokenizer.post_processor = template("$A </s>", tokenizer)
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    return tokenizer, {"tokenizer_class": "T5Tokenizer", **names}


def mpnet():
    letters = sorted({letter for line in lines() for letter in line.lower() if letter.isalnum()})
    special = ["<s>", "<pad>", "</s>", "<unk>", "[UNK]"]
    tokens = [*special, *letters, *(f"##{letter}" for letter in letters), *".,!?:<>/|", "the", "##ra", "<mask>"]
    tokenizer = Tokenizer(models.WordPiece({token: id for id, token in enumerate(tokens)}, unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([*special, AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    tokenizer.post_processor = template("<s> $A </s>", tokenizer)
    ends = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    names = {**ends, "pad_token": "<pad>", "unk_token": "[UNK]", "mask_token": "<mask>"}
    return tokenizer, {"tokenizer_class": "MPNetTokenizer", "do_lower_case": True, **names}


# What makes each, and what stands around a text of it.
KINDS = {
    "ModernBERT": (modern_bert, (["[CLS]"], ["[SEP]"])),
    "Qwen3-Embedding": (functools.partial(qwen3, "$A <|endoftext|>"), ([], ["<|endoftext|>"])),
    "Qwen3": (functools.partial(qwen3, ""), ([], [])),
    "EmbeddingGemma": (gemma, (["<bos>"], ["<eos>"])),
    "E5-Mistral": (llama, (["<s>"], ["</s>"])),
    "T5": (t5, ([], ["</s>"])),
    "MPNet": (mpnet, (["<s>"], ["</s>"])),
}


def write(folder, kind):
    """The files of a kind in a folder, and what the library makes of a text without what stands around it."""
    tokenizer, settings = KINDS[kind][0]()
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return tokenizer

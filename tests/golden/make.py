"""Makes what lies beside it: small random models as Hugging Face saves them, and what PyTorch makes of some texts.

    python tests/golden/make.py        # with the packages of launch/interop.lock

Each folder is one model. Its `expected.safetensors` has padded ids and types, hidden states, their poolings, logits of
the masked language model, and the gradient of sum(sin(hidden states)) over the tokens that are no padding.
`wordpiece/` and `byte_pairs/` have a vocabulary, texts that tokenisers differ on, and their ids by transformers.
"""

import json
import re
import unicodedata
from pathlib import Path

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

FOLDER = Path(__file__).resolve().parent
SIZES = dict(vocab_size=50, num_hidden_layers=2, hidden_size=16, num_attention_heads=4, intermediate_size=24)
# Tokens of each text; its row is as long as the longest.
LENGTHS = {"short": (5, 5), "padded": (18, 1, 7, 12), "long": (18,)}

# Texts on which tokenisers differ, and how often each is repeated.
TEXTS = [
    ("The naive caf\u00e9; r\u00e9sum\u00e9, unaffable!", 1),
    ("cafe\u0301 na\u00efve \u00c5ngstr\u00f6m \u1e9e stra\u00dfe \u0130stanbul \u0131", 1),
    ("\u6771\u4eac\u306b\u884c\u304f \ud55c\uad6d\uc5b4 \u4e2d\u6587\U00020000text", 1),
    ("\u0434\u043e\u043c \u0439 \u0395\u03bb\u03bb\u03ac\u03b4\u03b1\u03c2", 1),
    ("\u05e9\u05c1 \u0e44\u0e17\u0e22 \u0939\u093f\u0928\u094d", 1),
    ("smile \U0001f600\U0001f1e9\U0001f1ea \U0001f468\u200d\U0001f469\u200d\U0001f467 a\ufe0f", 1),
    ("a\x00b\x01c\x07d\x7fe\x85f\u200bg\ufeffh\ufffdi\u2028j\u00adk", 1),
    ("tab\tnew\nline\rno-break\u00a0thin\u2009ideographic\u3000end", 1),
    ("$5.00 + 3^2 = ~14 `x` | <tag> \u201cquoted\u201d", 1),
    ("\u2018it\u2019s\u2019 \u2014 \u2026 \u00bf\u00a1 \u00a9\u2122", 1),
    ("\ufb01ne \uff21\uff22 \u2460 \u00bd \u33a1 x\u00b2", 1),
    ("a", 100),
    ("a", 101),
    ("a", 100_000),
    ("the", 33),
    ("the ", 300),
    ("e\u0301", 5_000),
    ("", 1),
    (" \t\n ", 1),
]


def main():
    torch.manual_seed(0)
    bert = transformers.BertConfig(**SIZES, max_position_embeddings=20)
    save("bert", transformers.BertForPreTraining(bert), gradients=True)
    wide = {**SIZES, "num_hidden_layers": 3, "hidden_size": 24, "intermediate_size": 40}
    wide = transformers.BertConfig(**wide, max_position_embeddings=32, layer_norm_eps=1e-7, type_vocab_size=3)
    save("bert_sharded", transformers.BertModel(wide), max_shard_size="20KB")
    save("bert_bfloat16", transformers.BertForMaskedLM(bert), dtype=torch.bfloat16)
    save("bert_old_names", transformers.BertForMaskedLM(bert), old_names=True)
    roberta = transformers.RobertaConfig(
        **SIZES, max_position_embeddings=22, type_vocab_size=1, layer_norm_eps=1e-5, pad_token_id=1
    )
    save("roberta", transformers.RobertaForMaskedLM(roberta), padding=1)
    distilbert = transformers.DistilBertConfig(
        vocab_size=50, n_layers=2, dim=16, n_heads=4, hidden_dim=24, max_position_embeddings=20
    )
    save("distilbert", transformers.DistilBertForMaskedLM(distilbert))
    word_pieces()
    byte_pairs()


def save(name, model, padding=0, dtype=torch.float32, gradients=False, old_names=False, **settings):
    """Writes the model, and what it makes of texts; computed in float32 on the weights as they are saved."""
    model = randomised(model).to(dtype)
    folder = FOLDER / name
    if old_names:
        folder.mkdir(exist_ok=True)
        model.config.save_pretrained(folder)
        tensors = {old_name(key): value.clone() for key, value in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    else:
        model.save_pretrained(folder, **settings)
    model = model.float().eval()
    expected = {}
    for kind, lengths in LENGTHS.items():
        expected |= {f"{kind}/{key}": value for key, value in texts(model, lengths, padding).items()}
    if gradients:
        expected |= {f"gradient/{key}": value for key, value in gradient(model, expected, padding).items()}
    save_file({key: value.detach().clone() for key, value in expected.items()}, folder / "expected.safetensors")


def randomised(model):
    """Values far from 0 and 1 for every parameter, biases too, so that each of them matters."""
    for parameter in model.parameters():
        parameter.data += torch.randn_like(parameter) * 0.3
    return model


def old_name(key):
    """The names of the first ports, which Google's became."""
    key = re.sub(r"LayerNorm\.weight$", "LayerNorm.gamma", key)
    return re.sub(r"LayerNorm\.bias$", "LayerNorm.beta", key)


def base(model):
    return getattr(model, model.base_model_prefix, model)


def run(model, ids, types, padding):
    given = dict(input_ids=ids, attention_mask=(ids != padding).long(), output_hidden_states=True)
    if getattr(model.config, "type_vocab_size", 1) > 1:
        given["token_type_ids"] = types
    return model(**given)


def texts(model, lengths, padding):
    length, config = max(lengths), model.config
    ids = torch.randint(2, config.vocab_size, (len(lengths), length))
    types = torch.randint(0, getattr(config, "type_vocab_size", 1), (len(lengths), length))
    real = torch.arange(length) < torch.tensor(lengths)[:, None]
    ids, types = torch.where(real, ids, padding), types * real
    out = run(model, ids, types, padding)
    hidden = out.hidden_states[-1] * real[:, :, None]
    found = dict(ids=ids, types=types, hidden=hidden, cls=hidden[:, 0])
    found["mean"] = hidden.sum(1) / real.sum(1, keepdim=True)
    logits = getattr(out, "logits", getattr(out, "prediction_logits", None))
    return found if logits is None else found | {"logits": logits * real[:, :, None]}


def gradient(model, expected, padding):
    ids, types = expected["padded/ids"], expected["padded/types"]
    encoder = base(model)
    encoder.zero_grad()
    hidden = run(encoder, ids, types, padding).hidden_states[-1]
    (torch.sin(hidden) * (ids != padding)[:, :, None]).sum().backward()
    return {key: value.grad for key, value in encoder.named_parameters() if value.grad is not None}


def word_pieces():
    """A small vocabulary, and what BertTokenizer makes of texts."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = ["na", "##ive", "caf", "##e", "resume", "un", "##aff", "##able", "##ing", "the", "##the", "a", "##a"]
    letters = sorted({c for text, _ in TEXTS for c in unicodedata.normalize("NFD", text.lower()) if c.isprintable()})
    # Every other letter cannot begin a word, and every third cannot go on: [UNK] has its cases too.
    letters = [c for c in letters if not c.isspace()]
    starts = [c for i, c in enumerate(letters) if i % 2]
    vocabulary = [*special, *pieces, *starts, *(f"##{c}" for i, c in enumerate(letters) if i % 3)]
    vocabulary = list(dict.fromkeys(vocabulary))
    (FOLDER / "wordpiece").mkdir(exist_ok=True)
    (FOLDER / "wordpiece" / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = transformers.BertTokenizer(str(FOLDER / "wordpiece" / "vocab.txt"))
    save_ids(FOLDER / "wordpiece", tokenizer, most=100_000)


def byte_pairs():
    """A small vocabulary of byte pairs, and what RobertaTokenizer makes of texts."""
    learner = tokenizers.ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    texts = [text for text, _ in TEXTS] * 3
    learner.train_from_iterator(texts, vocab_size=360, special_tokens=special, show_progress=False)
    folder = FOLDER / "byte_pairs"
    folder.mkdir(exist_ok=True)
    learner.save_model(str(folder))
    tokenizer = transformers.RobertaTokenizerFast(str(folder / "vocab.json"), str(folder / "merges.txt"))
    tokenizer.save_pretrained(folder)
    for name in ("special_tokens_map.json", "tokenizer_config.json"):
        (folder / name).unlink()
    save_ids(folder, transformers.RobertaTokenizer(str(folder / "vocab.json"), str(folder / "merges.txt")), most=1000)


def save_ids(folder, tokenizer, most):
    """Texts, how often each is repeated, and their ids; a word of 100,000 letters has as many byte pairs."""
    texts = [(text, min(times, most)) for text, times in TEXTS]
    records = [
        [text, times, tokenizer.convert_tokens_to_ids(tokenizer.tokenize(text * times))] for text, times in texts
    ]
    lines = ",\n".join(json.dumps(record) for record in records)
    (folder / "expected.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Pipelines of the tokenizers library of every kind that folders have, and texts that they make different ids of."""

from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS

LETTERS = "abcdefghijklmnopqrstuvwxyzABCé漢กم0123456789.,!-'#½"
TOKENS = [
    *SPECIAL_TOKENS,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    "the",
    "cat",
    "##ts",
    "covid",
    "[",
    "]",
    "sep",
]
TEXTS = [
    *(
        "",
        " ",
        "the cats",
        "The CATS  sat,don't",
        "e\u0301 \u0300 é É\u0323",
        "漢字 กำ مرحبا",
        "abc123 3.14 ½ #a ## ▁a",
    ),
    *(
        "a\x00b\x85c\u2028d\u200be\ufeff",
        "👩‍👩‍👧 \U000f0000",
        "x" * 101,
        "covid-19 COVID-19 covid-19s",
        "\tthe\ncat\r\n",
    ),
    *("[CLS] a [SEP] b[MASK]c [UNK]", "[sep] [SEP", "kubernetes Kubernetes"),
]
BERT = normalizers.BertNormalizer
NAMES = {f"{name}_token": token for name, token in zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS)}


def pipeline(normalizer=None, splitter=None, tokens=TOKENS, model=models.WordPiece, **options):
    ids = {token: id for id, token in enumerate(tokens)}
    tokenizer = Tokenizer(model(ids, unk_token="[UNK]", **options))
    tokenizer.normalizer = BERT() if normalizer is None else normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer() if splitter is None else splitter
    ends = [(token, ids[token]) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.add_special_tokens([token for token in SPECIAL_TOKENS if token in ids])
    return tokenizer


def with_added(**flags):
    tokenizer = pipeline()
    tokenizer.add_tokens([AddedToken("covid-19", **flags), AddedToken("kubernetes", **flags)])
    return tokenizer


def ids_of(vocabulary, texts=TEXTS):
    """As the folder has them, with what stands around a text."""
    return [vocabulary.single(ids, 999) for ids in vocabulary.encode_batch(texts)]


PIPELINES = {
    "BERT's": pipeline(),
    "cased": pipeline(BERT(lowercase=False)),
    "Chinese characters are not split": pipeline(BERT(handle_chinese_chars=False)),
    "control characters are kept": pipeline(BERT(clean_text=False)),
    "lower case first": pipeline(normalizers.Sequence([normalizers.Lowercase(), BERT(lowercase=False)])),
    "another normaliser": pipeline(normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("t", "d")])),
    "white space": pipeline(None, pre_tokenizers.WhitespaceSplit()),
    "digits": pipeline(None, pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])),
    "a pattern": pipeline(None, pre_tokenizers.Split(Regex(r"[\s-]+"), "removed")),
    "shorter words": pipeline(max_input_chars_per_word=4),
    "another mark": pipeline(continuing_subword_prefix="#"),
    "whole words": pipeline(model=models.WordLevel),
    "padding is not first": pipeline(tokens=[*TOKENS[1:], "[PAD]"]),
    "added": with_added(),
    "added as words": with_added(single_word=True),
    "added as written": with_added(normalized=False),
    "added with blanks": with_added(lstrip=True, rstrip=True),
    "added special": with_added(special=True),
}

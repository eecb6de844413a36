"""Tokenizers of folders that others wrote: the ids of the folder's own, or a refusal that names file and key."""

import base64
import json
import re

import numpy as np
import pytest
from support.pipelines import BERT, NAMES, PIPELINES, TEXTS, TOKENS, ids_of, pipeline, with_added
from tokenizers import Tokenizer, processors

from retrieval.common.errors import UserError
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.vocab import WordPiece
from retrieval.recipes.inference import token_types

AS_IT_IS = {"tokenizer_class": "PreTrainedTokenizerFast"} | NAMES
OF_BERT = {"tokenizer_class": "BertTokenizer", "do_lower_case": True} | NAMES


def write(folder, tokenizer, settings=AS_IT_IS, **others):
    text = tokenizer if isinstance(tokenizer, str) else tokenizer.to_str()
    (folder / "tokenizer.json").write_text(text)
    for name, value in {"tokenizer_config": settings, "config": {"model_type": "bert"}, **others}.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


@pytest.mark.parametrize("name", PIPELINES)
def test_ids_are_those_of_the_file(tmp_path, name):
    vocabulary = vocabularies.load(write(tmp_path, PIPELINES[name]))
    assert ids_of(vocabulary) == [PIPELINES[name].encode(text).ids for text in TEXTS]
    assert isinstance(vocabulary, WordPiece) == (name in ("BERT's", "cased", "padding is not first"))
    assert len(vocabulary) == PIPELINES[name].get_vocab_size()
    assert [vocabulary.tokens[id] for id in (vocabulary.pad_id, vocabulary.mask_id)] == ["[PAD]", "[MASK]"]
    # What is saved and exported is the same.
    expected = vocabulary.encode_batch(TEXTS)
    for folder in (tmp_path / "corpus", tmp_path / "export"):
        folder.mkdir()
    vocabulary.save(tmp_path / "corpus" / vocabulary.FILE)
    vocabulary.export(tmp_path / "export", length=16, types=2)
    for folder in (tmp_path / "corpus", tmp_path / "export"):
        again = vocabularies.load(folder)
        assert again.encode_batch(TEXTS) == expected and again.fingerprint == vocabulary.fingerprint
    exported = Tokenizer.from_file(str(tmp_path / "export" / "tokenizer.json"))
    assert [exported.encode(text).ids for text in TEXTS] == [vocabulary.single(ids, 999) for ids in expected]


def template(single, pair):
    ids = [("[CLS]", 2), ("[SEP]", 3)]
    return processors.TemplateProcessing(single=single, pair=pair, special_tokens=ids)


PAIRS = {
    "[CLS] A [SEP] B [SEP]": template("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1"),
    "[CLS] A [SEP] [CLS] B [SEP]": template("[CLS] $A [SEP]", "[CLS] $A [SEP] [CLS]:1 $B:1 [SEP]:1"),
    "the same, of type 0": template("[CLS] $A [SEP]", "[CLS] $A [SEP] [CLS] $B:1 [SEP]:1"),
    "[CLS] A [CLS] B": template("[CLS] $A", "[CLS] $A [CLS] $B:1"),
    "A [SEP] B [SEP], without types": template("$A [SEP]", "$A [SEP] $B [SEP]"),
    "RoBERTa's": processors.RobertaProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "BERT's": processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2)),
    "nothing": processors.ByteLevel(trim_offsets=False),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("has_types", [True, False])
def test_a_pair_is_what_the_post_processor_makes_of_it(name, has_types, tmp_path):
    """Its ids, cut longest first, and its token types, of which one that nothing parts can be told by no token."""
    tokenizer = pipeline()
    tokenizer.post_processor = PAIRS[name]
    settings = OF_BERT | {"model_input_names": ["input_ids", *["token_type_ids"] * has_types]}
    (tmp_path / "saved").mkdir()
    vocabulary = vocabularies.load(write(tmp_path, tokenizer, settings))
    vocabulary.save(tmp_path / "saved" / vocabulary.FILE)
    for each in (vocabulary, vocabularies.load(tmp_path / "saved")):
        if each is not vocabulary and isinstance(vocabulary, WordPiece):
            continue  # a run that trains has types
        for first, second, length in (("cats the", "the cats cats", 99), ("the cats the cats the cats", "the cats", 7)):
            tokenizer.enable_truncation(length, strategy="longest_first")
            pair, of = tokenizer.encode(first, second), each.pair_template
            ids = of.row(each.encode(first), each.encode(second), length)
            assert ids == pair.ids
            types = token_types(np.array([ids]), *of.change)[0].tolist()
            assert types == (pair.type_ids if has_types and of.of_first else [0] * len(ids))


LISTED = [
    ({}, {}),
    ({"do_lower_case": False}, {"lowercase": False}),
    ({"strip_accents": False}, {"strip_accents": False}),
    ({"tokenize_chinese_chars": False}, {"handle_chinese_chars": False}),
]


@pytest.mark.parametrize("form", ["tokenizer.json", "vocab.txt"])
@pytest.mark.parametrize(("settings", "options"), LISTED)
def test_settings_of_berts_class_change_its_normaliser(tmp_path, form, settings, options):
    write(tmp_path, pipeline(), OF_BERT | settings)
    if form == "vocab.txt":
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    expected = [pipeline(BERT(**options)).encode(text).ids for text in TEXTS]
    assert ids_of(vocabularies.load(tmp_path)) == expected


def test_sentence_transformers_lowers_case_before_all_else(tmp_path):
    cased = pipeline(BERT(lowercase=False))
    vocabulary = vocabularies.load(write(tmp_path, cased, sentence_bert_config={"do_lower_case": True}))
    texts = [text for text in TEXTS if "[" not in text]
    assert ids_of(vocabulary, texts) == [cased.encode(text.lower()).ids for text in texts]
    assert ids_of(vocabulary, ["[SEP]"]) == [cased.encode("[SEP]").ids]


def test_special_tokens_in_a_text_are_what_the_folder_makes_of_them(tmp_path):
    vocabulary = vocabularies.load(write(tmp_path, pipeline()))
    assert vocabulary.encode("a [SEP]")[-1] == vocabulary.sep_id
    assert vocabulary.encode("a [PAD]")[-1] == vocabulary.pad_id
    ids, places = vocabulary.encode_with_places("a [SEP] b")
    assert vocabulary.sep_id not in ids and len(ids) == len(places) == 3  # a reader's row ends with one
    vocabulary = vocabularies.load(write(tmp_path, pipeline(), AS_IT_IS | {"split_special_tokens": True}))
    assert vocabulary.encode("a [SEP]") == pipeline(tokens=TOKENS).encode("a [ sep ]", add_special_tokens=False).ids


def edited(**changes):
    return json.dumps(json.loads(pipeline().to_str()) | changes)


def framed(single):
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    processor = processors.TemplateProcessing(single=single, special_tokens=ends)
    return edited(post_processor=json.loads(processor.__getstate__()))


def dropping():
    config = json.loads(pipeline().to_str())
    return json.dumps(config | {"model": config["model"] | {"dropout": 0.1}})


OTHER = {"type": "Other"}
GROWS = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}] * 40}
MAPS = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(bytes(5) + b"a" * 90 + bytes(1)).decode()}
BYTES = {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel"}] * 6}
LEFT = {"direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


@pytest.mark.parametrize(
    ("tokenizer", "settings", "message"),
    [
        (pipeline(), {"auto_map": {"AutoTokenizer": ["a.B", None]}}, "config.json: auto_map names code of its own"),
        (pipeline(), {"truncation_side": "left"}, "tokenizer.json: truncation.direction or truncation_side is 'left'"),
        (edited(truncation=LEFT), {}, "truncation.direction or truncation_side is 'left', and here ends are cut"),
        (edited(post_processor=OTHER), {}, "tokenizer.json: .*post_processor of an unknown type, Other"),
        (framed("[CLS] $A [SEP] $A"), {}, "post_processor has the text twice"),
        (framed("[CLS] $A:1 [SEP]"), {}, "another token type than 0"),
        (edited(normalizer=GROWS), {}, r"its normalizer makes \d+ characters of one, and 64 is the most"),
        (edited(normalizer={**GROWS["normalizers"][0], "content": "a" * 2**20}), {}, "makes 1048576 characters of"),
        (edited(normalizer=MAPS), {}, "makes 90 characters of one"),
        (edited(pre_tokenizer=BYTES), {}, "makes 1024 characters of one"),
        (framed("[SEP] " * 300 + "$A"), {}, "post_processor .* or more than 256"),
        (framed("[SEP] " * 2000 + "$A"), {}, "post_processor is many times longer than any"),
        (dropping(), {}, "tokenizer.json: with model.dropout a text has other ids each time"),
        (pipeline(), [], r"tokenizer_config\.json: not a JSON object"),
    ],
)
def test_what_would_give_other_ids_is_refused(tmp_path, tokenizer, settings, message):
    write(tmp_path, tokenizer, AS_IT_IS | settings if isinstance(settings, dict) else settings)
    with pytest.raises(UserError, match=message) as refused:
        vocabularies.load(tmp_path)
    assert "\n" not in str(refused.value) and len(re.findall(r"[.;] ", str(refused.value))) <= 2


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertJapaneseTokenizer"},
        {"do_basic_tokenize": False},
        {"never_split": ["covid-19"]},
        {"added_tokens_decoder": {"900": {"content": "x-1"}}},
    ],
)
def test_a_list_of_tokens_that_is_not_read_as_berts_is_refused(tmp_path, settings):
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(OF_BERT | settings))
    with pytest.raises(UserError, match=r"tokenizer_config\.json: tokenizer_class .* add the tokenizer\.json"):
        vocabularies.load(tmp_path)


@pytest.mark.parametrize("encode", ["encode", "encode_with_places", "encode_batch"])
def test_half_of_a_surrogate_pair_is_one_sentence(tmp_path, encode):
    for vocabulary in (WordPiece(TOKENS), vocabularies.load(write(tmp_path, with_added()))):
        with pytest.raises(UserError, match="half of a surrogate pair"):
            getattr(vocabulary, encode)(["a \ud800"] if encode == "encode_batch" else "a \ud800")


def test_neither_padding_nor_a_template_is_needed(tmp_path):
    vocabulary = vocabularies.load(write(tmp_path, pipeline(tokens=TOKENS[1:]), AS_IT_IS | {"pad_token": None}))
    assert vocabulary.pad_id == -1 and vocabulary.tokens[vocabulary.cls_id] == "[CLS]"
    vocabulary = vocabularies.load(write(tmp_path, edited(post_processor=None)))
    assert vocabulary.single([7, 8, 9], 2) == [7, 8] and (vocabulary.cls_id, vocabulary.sep_id) == (-1, -1)
    tokenizer = pipeline(tokens=[token for token in TOKENS[1:] if token != "[MASK]"])
    tokenizer.add_special_tokens(["[PAD]"])  # behind all others
    vocabulary = vocabularies.load(write(tmp_path, tokenizer, {**AS_IT_IS, "mask_token": None}))
    assert vocabulary.pad_id == len(vocabulary) - 1 and vocabulary.mask_id == -1


@pytest.mark.parametrize(("kind", "lowers"), [("TokenizersBackend", False), ("BertTokenizer", True)])
def test_a_generic_class_leaves_the_normalizer_as_it_is(tmp_path, kind, lowers):
    cased = edited(normalizer={**json.loads(pipeline().to_str())["normalizer"], "lowercase": False})
    settings = AS_IT_IS | {"tokenizer_class": kind, "do_lower_case": True}
    vocabulary = vocabularies.load(write(tmp_path, cased, settings))
    assert (vocabulary.encode("AB") == vocabulary.encode("ab")) == lowers

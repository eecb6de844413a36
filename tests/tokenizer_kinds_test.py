"""Tokenizers of every family: the ids of `tokenizers` on lines of many scripts, and what stands around a text."""

import itertools
import json

import pytest
import tensorflow as tf
from support.languages import lines
from support.tokenizer_kinds import KINDS, llama, write
from tokenizers import Tokenizer

from retrieval.common.errors import UserError
from retrieval.data.examples import token_rows
from retrieval.data.examples.token_rows import Specials
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.prefixes import Prefixes

LINES = lines()


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def made(kind, tmp_path_factory):
    """A folder, the library's tokenizer, and the vocabulary that is read from the folder."""
    folder = tmp_path_factory.mktemp("tokenizer")
    tokenizer = write(folder, kind)
    return folder, tokenizer, vocabularies.load(folder)


def plain(tokenizer, text):
    return tokenizer.encode(text, add_special_tokens=False).ids


def around(tokenizer, kind):
    return ([tokenizer.token_to_id(token) for token in part] for part in KINDS[kind][1])


def test_ids_are_those_of_the_library(made, kind):
    _, tokenizer, vocabulary = made
    before, behind = around(tokenizer, kind)
    assert len(LINES) > 190 and vocabulary.encode_batch(LINES) == [plain(tokenizer, line) for line in LINES]
    for line in LINES:
        row = vocabulary.single(vocabulary.encode(line), 10_000)
        assert row == [*before, *plain(tokenizer, line), *behind]
        if kind != "E5-Mistral":  # whose post-processor lacks what its settings ask for
            assert row == tokenizer.encode(line).ids


def test_a_cut_keeps_what_stands_behind(made, kind):
    _, tokenizer, vocabulary = made
    before, behind = around(tokenizer, kind)
    first, second = vocabulary.encode("zebras graze on grassland"), vocabulary.encode("where do they live " * 9)
    assert vocabulary.single(second, 9) == [*before, *second[: 9 - len(before) - len(behind)], *behind]
    parts = behind or [tokenizer.token_to_id("<|im_end|>")]  # the model that has none ends its texts so
    assert vocabulary.pair(first, second, 999) == [*before, *first, *parts, *second, *behind]
    specials = Specials.of(vocabulary)
    sides = ((first, second), (second, first), ([], second))  # a text without a title has no first
    for (one, other), length in itertools.product(sides, (5, 9, 24)):
        row = vocabulary.pair(one, other, length)
        assert len(row) == length and row[: len(before)] == before and row[length - len(behind) :] == behind
        assert vocabulary.windows(one, other, length, 1) == [row]
        ours = (tf.constant(ids, tf.int32) for ids in (one, other))
        assert token_rows.pair(*ours, length, specials).numpy().tolist() == row
        single = token_rows.single(tf.constant(second, tf.int32), length, specials)
        assert single.numpy().tolist() == vocabulary.single(second, length)


def test_an_export_puts_the_same_around_a_text(made, tmp_path):
    _, _, vocabulary = made
    vocabulary.export(tmp_path, length=64, types=2)
    theirs, again = Tokenizer.from_file(str(tmp_path / "tokenizer.json")), vocabularies.load(tmp_path)
    assert again.template == vocabulary.template and again.fingerprint == vocabulary.fingerprint
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["pad_token"] in vocabulary.tokens  # without one sentence-transformers makes no batch
    for first, second in zip(LINES[:60], LINES[60:]):
        ids = vocabulary.encode_batch([first, second])
        assert theirs.encode(first).ids == vocabulary.single(ids[0], 999) == again.single(again.encode(first), 999)
        if ids[0]:
            assert theirs.encode(first, second).ids == vocabulary.pair(*ids, 999)


PROMPTS = {"query_prefix": "Instruct: Find it.\nQuery:", "document_prefix": "title: none | text: "}


def test_a_prompt_and_a_text_are_one_string(made):
    """Also where the tokens of the two apart are others; `Query:` and `what` are such."""
    _, tokenizer, vocabulary = made
    query, document = PROMPTS.values()
    prefixes = Prefixes.of(PROMPTS, vocabulary)
    specials = Specials.of(vocabulary, prefixes.of_stored)
    joined = Prefixes.of({**PROMPTS, "titles": "joined"}, vocabulary)
    queries = prefixes.encode_query(vocabulary, LINES)
    texts, wholes = (each.encode_document(vocabulary, LINES, LINES[::-1]) for each in (prefixes, joined))
    for line, other, stored, (title, text), (_, whole) in zip(LINES, LINES[::-1], queries, texts, wholes):
        row = vocabulary.single(plain(tokenizer, query + line), 64)
        assert prefixes.query_row(vocabulary, stored, 64) == row
        assert token_rows.query_row(tf.constant(stored, tf.int32), 64, specials).numpy().tolist() == row
        row = vocabulary.single(plain(tokenizer, document + " ".join(filter(None, (line, other)))), 64)
        assert joined.document_rows(vocabulary, [], whole, 64) == [row]
        parts = (document + line, other) if line else ("", document + other)
        row = vocabulary.pair(*(plain(tokenizer, part) if part else [] for part in parts), 64)
        if line:
            assert prefixes.document_rows(vocabulary, title, text, 64) == [row]


def test_every_window_begins_with_the_prompt(made):
    _, _, vocabulary = made
    prefixes, words = Prefixes.of(PROMPTS, vocabulary), "zebras graze on grassland " * 9
    ((_, text),) = prefixes.encode_document(vocabulary, [""], [words])
    before, _, behind = vocabulary.template
    length = len(before) + len(prefixes.document) + 6 + len(behind)
    rows = prefixes.document_rows(vocabulary, [], text, length, 99)
    bodies = [row[len(before) : len(row) - len(behind)] for row in rows]
    assert len(rows) > 3 and all(len(row) == length for row in rows[:-1])
    assert all(tuple(body[: len(prefixes.document)]) == prefixes.document for body in bodies[1:])
    assert sum(([*body[len(prefixes.document) :]] for body in bodies[1:]), bodies[0]) == text
    assert prefixes.document_rows(vocabulary, [], text, length, 2) == rows[:2]


def test_a_token_of_padding_that_ends_a_text_stays(tmp_path):
    tokenizer = write(tmp_path, "Qwen3-Embedding")
    vocabulary = vocabularies.load(tmp_path)
    assert vocabulary.single(vocabulary.encode("a"), 9)[-1] == vocabulary.pad_id == vocabulary.sep_id
    assert vocabulary.encode("a<|endoftext|>")[-1] == vocabulary.pad_id == tokenizer.token_to_id("<|endoftext|>")


def test_roles_that_there_are_not(tmp_path):
    write(tmp_path, "Qwen3")
    vocabulary = vocabularies.load(tmp_path)
    assert (vocabulary.cls_id, vocabulary.mask_id, vocabulary.unk_id) == (-1, -1, -1)
    with pytest.raises(UserError, match=r"a reader needs a vocabulary with a token like BERT's \[CLS\] and \[UNK\]"):
        vocabulary.require("a reader", "cls", "sep", "unk")


def test_the_token_that_ends_a_text_can_be_appended(tmp_path):
    write(tmp_path / "base", "Qwen3")
    vocabulary = vocabularies.load(tmp_path / "base")
    fingerprint = vocabulary.fingerprint
    vocabulary.append_eos()
    assert vocabulary.fingerprint == fingerprint  # stored tokens serve as before
    assert vocabulary.single([5, 6, 7], 3) == [5, 6, vocabulary.eos_id] and vocabulary.sep_id == vocabulary.eos_id
    with pytest.raises(UserError, match=r"config\.data\.append_eos=True, and the vocabulary names no eos_token"):
        vocabulary.append_eos()
    config = json.loads((tmp_path / "base" / "tokenizer_config.json").read_text())
    (tmp_path / "base" / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": None}))
    with pytest.raises(UserError, match="names no eos_token"):
        vocabularies.load(tmp_path / "base").append_eos()


@pytest.mark.parametrize(("bos", "eos"), [(True, True), (True, False), (False, True), (False, False), (None, None)])
def test_settings_of_llama_say_what_stands_around_a_text(tmp_path, bos, eos):
    tokenizer, settings = llama()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    flags = {name: flag for name, flag in (("add_bos_token", bos), ("add_eos_token", eos)) if flag is not None}
    kept = {name: value for name, value in settings.items() if not name.startswith("add_")}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(kept | flags))
    template = vocabularies.load(tmp_path).template
    begin, end = (tokenizer.token_to_id(token) for token in ("<s>", "</s>"))
    assert template.before == ((begin,) if bos in (True, None) else ()) and template.behind == ((end,) if eos else ())
    if eos:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(kept | flags | {"eos_token": None}))
        with pytest.raises(UserError, match=r"tokenizer_config\.json: add_eos_token is true, and eos_token names no"):
            vocabularies.load(tmp_path)

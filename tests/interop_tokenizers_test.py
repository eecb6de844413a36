"""Tokenizers of every family: the ids of `AutoTokenizer`, and of sentence-transformers with prompts."""

import json

import pytest
from support.languages import lines
from support.tokenizer_kinds import KINDS, write
from transformers import AutoTokenizer

from retrieval.data.tokenizers import tokenizer_files, vocabularies
from retrieval.data.tokenizers.prefixes import Prefixes

# transformers 5 makes the pipelines of these anew from their vocabulary: of T5 with another normaliser than ours, and
# of Mistral without the token behind a text. With another class it reads the file.
REMADE = ("T5", "E5-Mistral")


@pytest.mark.parametrize("kind", KINDS)
def test_ids_are_those_of_transformers(tmp_path, kind):
    write(tmp_path, kind)
    vocabulary, path = vocabularies.load(tmp_path), tmp_path / "tokenizer_config.json"
    if kind in REMADE:
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    if kind == "E5-Mistral":
        theirs.add_bos_token = theirs.add_eos_token = True  # as its settings say
    for line in lines():
        assert theirs(line)["input_ids"] == vocabulary.single(vocabulary.encode(line), 10_000)
    long = " ".join(lines()[:40])
    cut = theirs(long, truncation=True, max_length=24)["input_ids"]
    assert cut == vocabulary.single(vocabulary.encode(long), 24)


@pytest.mark.parametrize("kind", KINDS)
def test_transformers_reads_what_is_exported(tmp_path, kind):
    write(tmp_path / "published", kind)
    vocabulary = vocabularies.load(tmp_path / "published")
    (tmp_path / "export").mkdir()
    tokenizer_files.write_tokenizer(tmp_path / "export", vocabulary, length=32, types=1)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "export")
    rows = theirs(lines(), truncation=True, padding=True)  # which takes a token of padding
    for line, ids, mask in zip(lines(), rows["input_ids"], rows["attention_mask"]):
        ours = vocabulary.single(vocabulary.encode(line), 32)
        assert ids[: len(ours)] == ours and sum(mask) == len(ours)


@pytest.mark.parametrize("kind", KINDS)
def test_prompts_are_those_of_sentence_transformers(tmp_path, kind):
    """Its `tokenize` is given prompt and text as one string."""
    write(tmp_path / "published", kind)
    vocabulary = vocabularies.load(tmp_path / "published")
    (tmp_path / "export").mkdir()
    tokenizer_files.write_tokenizer(tmp_path / "export", vocabulary, length=32, types=1)
    theirs, prompt = AutoTokenizer.from_pretrained(tmp_path / "export"), "Instruct: Find it.\nQuery:"
    prefixes = Prefixes.of({"query_prefix": prompt}, vocabulary)
    stored = prefixes.encode_queries(vocabulary, lines())
    for line, ids in zip(lines(), stored):
        row = prefixes.query_row(vocabulary, ids, 32)
        assert theirs(prompt + line, truncation=True)["input_ids"] == row

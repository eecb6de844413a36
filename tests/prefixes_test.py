"""Prefixes of queries and documents: the same rows in training as in encoding, and prompts in an export."""

import json

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from jax.sharding import SingleDeviceSharding
from support import exported

import retrieval
from configs import reqa
from retrieval.data.examples.batches import Batches, Drawn
from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.examples.seqio_tasks import register
from retrieval.data.examples.task_kind import TaskData
from retrieval.data.examples.token_rows import Specials, document_row, query_row
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.data.tokenizers.prefixes import Prefixes, type_change
from retrieval.recipes import towers
from retrieval.runs.pipeline.stage import readers_of
from retrieval.search.text_batches import padded

VOCABULARY = exported.VOCABULARY
ROBERTA = REPOSITORY / "tests" / "golden" / "byte_pairs" / "tokenizer.json"
TEXTS = {"query_prefix": "the fox: ", "document_prefix": "a dog: "}


def ids(text):
    return VOCABULARY.encode(text)


@pytest.mark.parametrize("title", ["", "fox dog", "fox " * 30])
@pytest.mark.parametrize("text", ["dog", "the dog sep " * 12])
def test_rows_begin_with_the_prefix(title, text):
    prefixes = Prefixes.of(TEXTS, VOCABULARY)
    first = TEXTS["document_prefix"] + (title or text)
    expected = VOCABULARY.pair(ids(first), ids(text), 24) if title else VOCABULARY.single(ids(first), 24)
    assert prefixes.document_rows(VOCABULARY, ids(title), ids(text), 24) == [expected]
    query = VOCABULARY.single(ids(TEXTS["query_prefix"] + text), 24)
    assert prefixes.query_row(VOCABULARY, ids(text), 24) == query
    specials = Specials.of(VOCABULARY, prefixes)
    in_training = (np.array(ids(part), np.int32) for part in (title, text))
    assert document_row(*in_training, 24, specials).numpy().tolist() == expected
    assert query_row(np.array(ids(text), np.int32), 24, specials).numpy().tolist() == query


@pytest.mark.parametrize("titles", ["pair", "joined"])
@pytest.mark.parametrize("words", ["word pieces", "byte pairs"])
def test_training_on_pairs_sees_what_is_encoded(tmp_path, words, titles):
    """Without a space behind the prefix too, where byte pairs have other tokens than prefix and text apart."""
    vocabulary = VOCABULARY if words == "word pieces" else vocabularies.load(ROBERTA)
    config, lengths = reqa.get_config("local"), {"query_length": 12, "document_length": 24}
    config.data.update(query_prefix="the fox:", document_prefix="a", titles=titles, **lengths)
    prefixes = Prefixes.of(config.data, vocabulary)
    texts = [Candidate("1", "fox dog", "the dog"), Candidate("2", "", "dog fox dog " * 9), Candidate("3", "fox", "")]
    queries = ["fox", "the dog", "dog"]
    pairs = [Example(query, (text,)) for query, text in zip(queries, texts)]
    pair_shards.PairWriter(pairs, vocabulary, prefixes=prefixes).write(tmp_path, 1)
    options = {"shuffle_buffer": 1, "prefixes": prefixes}
    name, _ = register(TaskData(tmp_path, {"tasks": {}}, tmp_path), vocabulary, {"pairs": 1.0}, **options)
    lengths, device = pair_lengths(12, 24), SingleDeviceSharding(jax.devices()[0])
    converter = Converter(PAIRS, lengths, type_change(config.data, vocabulary.sep_id))
    lanes = Drawn(name, lengths, converter, batch_size=3, lanes=1, seed=0).open_lanes(device)
    batch = next(Batches({"": lanes}, device))
    encoded = [row for (row,) in towers.candidate_windows(config, vocabulary, texts)]
    seen = {tuple(row) for row in np.concatenate([batch["query"], batch["document"][:, 0, :12]], axis=1).tolist()}
    rows = zip(padded(towers.query_tokens(config, vocabulary, queries), 3, 12), padded(encoded, 3, 24)[:, :12])
    assert seen == {tuple(np.concatenate(row).tolist()) for row in rows}
    assert "pairs" in readers_of("data.query_prefix") and "pairs" in readers_of("data.titles")


def test_an_export_has_them_as_prompts(tmp_path):
    changes = {f"data.{name}": text for name, text in TEXTS.items()}
    run = exported.work_directory(tmp_path / "run", **changes, **{"model.tied": False})
    folder = exported.export(run)
    record = json.loads((folder / "config_sentence_transformers.json").read_text())
    assert record["prompts"] == {"query": "the fox: ", "document": "a dog: "}
    of_query = json.loads((folder / "query" / "config_sentence_transformers.json").read_text())
    assert (record["default_prompt_name"], of_query["default_prompt_name"]) == ("document", "query")
    assert "`encode_query` puts 'the fox: ' before each text." in (folder / "README.md").read_text()
    ours, theirs = retrieval.load(run.folder), retrieval.load(folder)
    assert np.array_equal(ours.encode_query(["fox"]), theirs.encode_query(["fox"]))
    run.config.data.query_prefix = ""
    plain = towers.query_tokens(run.config, VOCABULARY, ["the fox: fox"])
    run.config.data.query_prefix = "the fox: "
    assert towers.query_tokens(run.config, VOCABULARY, ["fox"]) == plain


@pytest.mark.parametrize("titles", ["pair", "joined"])
def test_a_prefix_in_brackets_that_is_a_token_is_that_token(titles):
    """Also where tokens do not end at spaces, as in ColBERT on a RoBERTa; any other prefix is text."""
    vocabulary = vocabularies.load(ROBERTA)
    data = {"query_prefix": "<mask>", "document_prefix": "a dog: ", "titles": titles}
    prefixes = Prefixes.of(data, vocabulary)
    (query,) = prefixes.encode_query(vocabulary, ["the fox"])
    assert query == vocabulary.encode("the fox")
    row = vocabulary.single([vocabulary.mask_id, *query], 24)
    assert prefixes.query_row(vocabulary, query, 24) == row
    assert query_row(np.array(query, np.int32), 24, Specials.of(vocabulary, prefixes.of_stored)).numpy().tolist() == row
    ((title, text),) = prefixes.encode_document(vocabulary, [""], ["runs"])
    assert text == vocabulary.encode("a dog: runs") and title == []
    assert prefixes.document_rows(vocabulary, title, text, 24) == [vocabulary.single(text, 24)]
    assert Prefixes.of({"query_prefix": "[unused0]"}, VOCABULARY).query == tuple(ids("[unused0]"))
    assert len(ids("[unused0]")) > 1  # no token of this vocabulary

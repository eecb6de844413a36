"""A run with the tokenizer of a base language model: from labelled pairs to search, and an export."""

import importlib
import json

import numpy as np
import pytest
from conftest import REPOSITORY
from support.run_results import values
from support.tiny import TINY, complete
from support.tokenizer_kinds import write

import retrieval
from retrieval.data.tokenizers import vocabularies
from retrieval.recipes import towers
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run


@pytest.fixture(scope="module")
def run(tmp_path_factory, one_device):
    root = tmp_path_factory.mktemp("base_model")
    tokenizer = write(root / "tokenizer", "Qwen3")
    assert tokenizer.encode("a").ids == tokenizer.encode("a", add_special_tokens=False).ids  # nothing around a text
    texts = [{"query": f"what {i}", "positive": {"title": f"No {i}", "text": f"It is {i}."}} for i in range(40)]
    (root / "p.jsonl").write_text("\n".join(map(json.dumps, texts)))
    config = importlib.import_module("configs.dpr").get_config("local")
    config.vocab, config.train.init_from = str(root / "tokenizer"), ""
    config.pairs.files = config.sets.labelled = str(root / "p.jsonl")
    config.model.update(TINY["model"])
    config.data.update(query_length=24, document_length=32, lanes=1, negatives=0, append_eos=True, titles="joined")
    config.data.update(query_prefix="Instruct: find\nQuery:", document_prefix="text:")
    config.data.shuffle_buffer, config.split.shards = 64, 2
    config.train.update(steps=2, batch_size=8)
    config.loop.update(checkpoint_every=2, validate_every=2)
    config.index.dense, config.stages = "exact", (*config.stages[:-1], "export")
    return complete(Run(config, root / "run", REPOSITORY / "requirements.lock"))


def test_it_trains_and_searches(run):
    assert {system for system, _, _ in values(run.folder)} >= {"bm25", "dense"}
    vocabulary, plain = run.load_vocabulary(), vocabularies.load(run.vocabulary)
    (row,) = towers.query_tokens(run.config, vocabulary, ["what 1"])
    assert row == [*plain.encode("Instruct: find\nQuery:what 1"), plain.eos_id] and len(row) < 24
    assert plain.template.behind == () and row != [*plain.encode("Instruct: find\nQuery:"), *plain.encode("what 1")]


def test_an_export_has_the_token_that_ends_a_text(run):
    ours, theirs = retrieval.load(run.folder), retrieval.load(run.folder / "export")
    assert vocabularies.load(run.folder / "export").template == run.load_vocabulary().template
    np.testing.assert_array_equal(ours.encode_query(["what 1"]), theirs.encode_query(["what 1"]))
    document = [{"title": "No 1", "text": "It is 1."}]
    np.testing.assert_array_equal(ours.encode_document(document), theirs.encode_document(document))


def test_pairs_with_another_prefix_are_made_anew(run):
    assert records.is_current(run, "pairs")
    run.config.data.document_prefix = "passage:"
    assert not records.is_current(run, "pairs")

"""The recipe 'deepct' and the stage `weigh`: from labelled passages to an index of weighed words."""

import json

import numpy as np
import pytest
import tensorflow as tf
from support import tiny

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.deepct import task
from retrieval.runs.pipeline import preflight

PIECES = "what eat ##s eats eating gr ##ass ##land ##lands fox the red foxes ?".split()
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *PIECES])
STAGES = ("prepare", "sets", "pairs", "train", "weigh")
CHANGES = {"stages": STAGES, "split.set": "reqa", "split.ratio": 0.9, "split.validation": 0.1, "split.shards": 2}
CHANGES |= {"train.steps": 60, "train.batch_size": 8, "train.learning_rate": 2e-2, "loop.checkpoint_every": 60}
CHANGES |= {"encode.shard_size": 50, "encode.corpus": False}


def make_run(inputs, folder, **changes):
    return tiny.make_run("deepct", inputs, folder, **{**CHANGES, **changes})


@pytest.fixture(scope="module")
def trained(inputs, tmp_path_factory):
    run = make_run(inputs, tmp_path_factory.mktemp("deepct") / "run")
    tiny.execute(run)
    return run


def label(vocabulary, text, query):
    """The targets and the mask of token ids, stemmed by Porter."""
    continues = [token.startswith("##") for token in vocabulary.tokens]
    special = [vocabulary.tokens.index(token) for token in SPECIAL_TOKENS]
    stems = task.stem_numbers(vocabulary)
    return task.label(tf.constant(text), tf.constant(query), continues, stems, special)


@pytest.mark.parametrize(
    ("text", "query", "targets", "mask"),
    [
        ("[CLS] the red fox eats gr ##ass [SEP]", "what eat foxes", "00011000", "01111100"),
        ("[CLS] red [SEP] gr ##ass ##land eat ##s [SEP]", "gr ##ass ##lands red", "010000000", "010100100"),
        ("[CLS] gr ##ass ##land [UNK] gr ##ass ##land ? [SEP]", "gr ##ass ##land [UNK]", "0100010000", "0100010010"),
    ],
)
def test_labels_are_the_words_of_the_query(text, query, targets, mask):
    """On the first piece of words that are one in stem or in spelling."""
    ids = ([VOCABULARY.tokens.index(piece) for piece in pieces.split()] for pieces in (text, query))
    for found, expected in zip(label(VOCABULARY, *ids), (targets, mask)):
        np.testing.assert_array_equal(found, [float(digit) for digit in expected])


def test_words_that_queries_ask_for_get_more(trained):
    """Every toy query names its animal; none has 'grass', 'leaves' or 'nobody'."""
    lines = (trained.folder / "term_weights" / "reqa.jsonl").read_text().splitlines()
    words = [json.loads(line)["frequencies"] for line in lines]
    animals = ("fox", "dog", "cat", "owl", "hen", "ox", "ant")
    named = np.mean([max(own.get(word, 0) for word in animals) for own in words])
    assert named > 20 and named > 3 * np.mean([own.get("leaves", 0) for own in words])
    counts = files.read_json(trained.record("weigh"))["details"]["reqa"]
    assert counts["passages longer than the model reads"] == 0
    assert counts["passages"] == len(lines) and counts["words kept"] == sum(map(len, words))


def test_bm25_over_weighed_words_stands_beside_bm25(trained, inputs, tmp_path):
    stages = ("index", "evaluate", "report")
    index = {"index.words": ("bm25", "deepct"), "index.term_weights": str(trained.folder / "term_weights")}
    base = {"stages": stages, "base": str(trained.folder)}
    run = tiny.make_run("evaluate", inputs, tmp_path / "run", **base, **index)
    preflight.check(run, stages)
    tiny.execute(run)
    assert {row["system"] for row in files.read_json(run.folder / "results.json")} == {"bm25", "deepct"}
    path = trained.folder / "term_weights" / "reqa.jsonl"
    content = path.read_bytes()
    path.write_bytes(content.replace(b": 1", b": 7", 1))
    try:
        with pytest.raises(UserError, match=r"term_weights/reqa\.jsonl: damaged.*--stage=weigh makes it again in "):
            tiny.execute(run, "index")
    finally:
        path.write_bytes(content)

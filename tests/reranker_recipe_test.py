"""The recipe 'reranker': its rows, its losses and its scores."""

import jax
import numpy as np
import pytest
import tensorflow as tf

from configs import monobert
from retrieval.data.examples.example_kind import pair_lengths
from retrieval.data.examples.seqio_classes import Converter
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.template import PairTemplate, Template
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.recipes.inference import token_types
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.runs.weights.pair_scorer import JoinedRows

WORDS = [f"w{number}" for number in range(45)]
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
SIZES = dict(num_layers=2, hidden_size=16, num_heads=4, mlp_size=24, dropout=0.0)


def make_config(**changes):
    config = monobert.get_config("local")
    config.model.update(SIZES)
    config.data.update(query_length=6, document_length=14, negatives=2)
    config.train.update(batch_size=8)
    config.update_from_flattened_dict(changes)
    return config


def example(query, titles, texts, length=14):
    """What the task gives: `[CLS] query [SEP]`, and the documents as pairs of title and text."""
    documents = [VOCABULARY.pair(*map(VOCABULARY.encode, pair), length) for pair in zip(titles, texts)]
    return {
        "query": np.array(VOCABULARY.single(VOCABULARY.encode(query), 6), np.int32),
        "document": np.array([ids + [-1] * (length - len(ids)) for ids in documents], np.int32),
        "document_id": np.arange(len(documents), dtype=np.int32),
        "log_q": np.zeros(len(documents), np.float32),
    }


def converted(*examples):
    lengths = pair_lengths(6, 14, 2)
    converter = Converter(recipe_of(make_config()).framed(VOCABULARY), lengths, VOCABULARY.sep_id)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(examples),
        output_signature={
            "query": tf.TensorSpec([None], tf.int32),
            "document": tf.TensorSpec([None, None], tf.int32),
            "document_id": tf.TensorSpec([None], tf.int32),
            "log_q": tf.TensorSpec([None], tf.float32),
        },
    )
    return list(converter(dataset, lengths).as_numpy_iterator())


def tokens(ids):
    return " ".join(VOCABULARY.tokens[id] for id in ids if id >= 0)


def test_rows_are_a_query_and_a_document():
    (row,) = converted(example("w1 w2", ["", "w3", "w4"], ["w5", "w6 w7", ""]))
    assert [tokens(ids) for ids in row["pair"]] == [
        "[CLS] w1 w2 [SEP] w5 [SEP]",
        "[CLS] w1 w2 [SEP] w3 w6 w7 [SEP]",
        "[CLS] w1 w2 [SEP] w4 [SEP]",
    ]
    assert row["pair_types"].tolist()[1] == [0] * 4 + [1] * 4 + [0] * 6
    assert row["pair"].shape == row["pair_types"].shape == (3, 14)


@pytest.mark.parametrize(
    ("template", "pair"),
    [
        (VOCABULARY.template, VOCABULARY.pair_template),
        (Template((2,), (3,), (3,)), PairTemplate((2,), (3, 3), (3,))),
        (Template((), (3,), (3,)), PairTemplate()),
        (Template((2,), (), (3,)), PairTemplate((2,), (3, 2), (3,), 2)),
    ],
    ids=["BERT", "RoBERTa", "nothing", "two beginnings"],
)
def test_reranking_reads_the_rows_that_training_had(template, pair, monkeypatch):
    monkeypatch.setattr(VOCABULARY, "template", template)
    monkeypatch.setattr(VOCABULARY, "pair_template", pair)
    random = np.random.default_rng(0)

    def text(most):
        return " ".join(WORDS[number] for number in random.integers(0, 45, random.integers(1, most)))

    drawn = [(text(9), [text(12), "", text(4)], [text(20), text(20), ""]) for _ in range(30)]
    rows = converted(*(example(*texts) for texts in drawn))
    ours = JoinedRows(VOCABULARY, 14, 6)
    sep_id, place = pair.change
    for (query, titles, texts), row in zip(drawn, rows, strict=True):
        pairs = ours.of(ours.begin([query]) * 3, [Candidate("", *both) for both in zip(titles, texts)])
        assert pairs == [[id for id in ids if id >= 0] for ids in row["pair"].tolist()]
        np.testing.assert_array_equal(row["pair_types"], token_types(row["pair"], sep_id, place))


def batch_of(count=8):
    random = np.random.default_rng(1)
    is_text = np.arange(14) < random.integers(6, 15, (count, 3, 1))
    ids = np.where(is_text, random.integers(5, 50, (count, 3, 14)), -1)
    types = np.where(ids >= 0, np.arange(14) > 4, 0)
    batch = {"pair": ids, "pair_types": types, "document_id": np.arange(count * 3).reshape(count, 3)}
    return {name: values.astype(np.int32) for name, values in batch.items()}


@pytest.mark.parametrize(
    ("loss", "classes"), [("class_cross_entropy", 2), pytest.param("margin_mse", 1, marks=pytest.mark.long)]
)
def test_every_loss_of_scores_trains_it(loss, classes):
    """In one piece and in chunks; the loss of a query is that of its own rows."""
    batch = batch_of() | {"teacher": np.random.default_rng(2).normal(size=(8, 3)).astype(np.float32)}
    found = []
    for chunk in (0, 4):
        config = make_config(**{"train.loss": loss, "model.classes": classes, "train.chunk_size": chunk})
        model = build_model(config, 50)
        of_batch = jax.jit(recipe_of(config).objective(bind(model)))
        loss_B, metrics = of_batch(parameters_of(model), jax.tree.map(jax.numpy.asarray, batch), jax.random.key(0))
        assert loss_B.shape == (8,) and set(metrics) == {"recall@1", "spread", "tokens"}
        assert metrics["tokens"].tolist() == (batch["pair"] >= 0).sum(axis=(1, 2)).tolist()
        found.append(np.asarray(loss_B))
        alone = jax.tree.map(lambda x: jax.numpy.asarray(x[:1]), batch)
        whole = recipe_of(make_config(**{"train.loss": loss, "model.classes": classes})).objective(bind(model))
        alone_B, _ = jax.jit(whole)(parameters_of(model), alone, jax.random.key(0))
        np.testing.assert_allclose(alone_B, loss_B[:1], atol=1e-5)
    np.testing.assert_allclose(*found, atol=1e-5)

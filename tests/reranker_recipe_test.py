"""The recipe 'reranker': its rows, its scores, what it starts from, and what is refused."""

import importlib
import logging
import shutil

import jax
import numpy as np
import pytest
import tensorflow as tf
from conftest import REPOSITORY
from flax import nnx

from configs import monobert
from retrieval.data.examples import feature_lengths, features
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.methods.reranker.model import CrossEncoder
from retrieval.methods.reranker.pair_scores import Lengths, PairScorer, document_bodies, joined, query_beginnings
from retrieval.models.hugging_face import BertFolder
from retrieval.recipes import initial_parameters
from retrieval.recipes.placement import bind, make_mesh, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.search.encoding import encode_rows
from retrieval.stage_outputs import Run
from retrieval.training.collapse import SPREAD, Collapse

GOLDEN = REPOSITORY / "tests" / "golden"
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
        "document": np.array([ids + [0] * (length - len(ids)) for ids in documents], np.int32),
        "document_id": np.arange(len(documents), dtype=np.int32),
        "log_q": np.zeros(len(documents), np.float32),
    }


def converted(*examples):
    converter = features.JoinedConverter(VOCABULARY.sep_id)
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(examples),
        output_signature={
            "query": tf.TensorSpec([None], tf.int32),
            "document": tf.TensorSpec([None, None], tf.int32),
            "document_id": tf.TensorSpec([None], tf.int32),
            "log_q": tf.TensorSpec([None], tf.float32),
        },
    )
    return list(converter(dataset, feature_lengths.pair_lengths(6, 14, 2)).as_numpy_iterator())


def tokens(ids):
    return " ".join(VOCABULARY.tokens[id] for id in ids if id)


def test_rows_are_a_query_and_a_document():
    (row,) = converted(example("w1 w2", ["", "w3", "w4"], ["w5", "w6 w7", ""]))
    assert [tokens(ids) for ids in row["pair"]] == [
        "[CLS] w1 w2 [SEP] w5 [SEP]",
        "[CLS] w1 w2 [SEP] w3 w6 w7 [SEP]",
        "[CLS] w1 w2 [SEP] w4 [SEP]",
    ]
    assert row["pair_types"].tolist()[1] == [0] * 4 + [1] * 4 + [0] * 6
    assert row["pair"].shape == row["pair_types"].shape == (3, 14)


def test_only_the_document_of_a_pair_is_cut():
    long = " ".join(WORDS[5:])
    (row,) = converted(example(" ".join(WORDS[:5]), ["", "w44", ""], [long, long, "w9"]))
    assert [tokens(ids) for ids in row["pair"]] == [
        "[CLS] w0 w1 w2 w3 [SEP] w5 w6 w7 w8 w9 w10 w11 [SEP]",
        "[CLS] w0 w1 w2 w3 [SEP] w44 w5 w6 w7 w8 w9 w10 [SEP]",
        "[CLS] w0 w1 w2 w3 [SEP] w9 [SEP]",
    ]


def test_reranking_reads_the_rows_that_training_had():
    random = np.random.default_rng(0)

    def text(most):
        return " ".join(WORDS[number] for number in random.integers(0, 45, random.integers(1, most)))

    drawn = [(text(9), [text(12), "", text(4)], [text(20), text(20), ""]) for _ in range(30)]
    rows = converted(*(example(*texts) for texts in drawn))
    lengths = Lengths(6, 14)
    for (query, titles, texts), row in zip(drawn, rows, strict=True):
        (beginning,) = query_beginnings(VOCABULARY, [query], lengths)
        bodies = document_bodies(VOCABULARY, [Candidate("", *pair) for pair in zip(titles, texts)], lengths)
        ours = [joined(beginning, body, VOCABULARY.sep_id, lengths) for body in bodies]
        assert ours == [[id for id in ids if id] for ids in row["pair"].tolist()]


def batch_of(count=8):
    random = np.random.default_rng(1)
    ids = random.integers(5, 50, (count, 3, 14)) * (np.arange(14) < random.integers(6, 15, (count, 3, 1)))
    types = np.where(ids > 0, np.arange(14) > 4, 0)
    batch = {"pair": ids, "pair_types": types, "document_id": np.arange(count * 3).reshape(count, 3)}
    return {name: values.astype(np.int32) for name, values in batch.items()}


@pytest.mark.parametrize(
    ("loss", "classes"),
    [("class_cross_entropy", 2), ("binary_cross_entropy", 1), ("binary_cross_entropy", 2), ("margin_mse", 1)],
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
        assert metrics["tokens"].tolist() == (batch["pair"] > 0).sum(axis=(1, 2)).tolist()
        found.append(np.asarray(loss_B))
        alone = jax.tree.map(lambda x: jax.numpy.asarray(x[:1]), batch)
        whole = recipe_of(make_config(**{"train.loss": loss, "model.classes": classes})).objective(bind(model))
        alone_B, _ = jax.jit(whole)(parameters_of(model), alone, jax.random.key(0))
        np.testing.assert_allclose(alone_B, loss_B[:1], atol=1e-5)
    np.testing.assert_allclose(*found, atol=1e-5)


def test_a_score_does_not_depend_on_its_batch():
    """Batches of other rows, of other sizes and with other padding."""
    config = make_config(**{"model.positions": 64})
    model, mesh = build_model(config, 50), make_mesh(config)
    model.classifier.kernel[...] = jax.numpy.asarray(np.random.default_rng(0).normal(size=(16, 2)), np.float32)
    score = PairScorer(config, model, VOCABULARY.sep_id, mesh).of(parameters_of(model))
    rows = [[id for id in ids if id] for ids in batch_of()["pair"].reshape(-1, 14).tolist()]
    rows = [[*row[:4], VOCABULARY.sep_id, *row[5:-1], VOCABULARY.sep_id] for row in rows]
    scores = encode_rows(rows, score, 512, 14, mesh.size)[:, 0]
    assert scores.std() > 0.01
    backwards = encode_rows(rows[::-1], score, 64, 64, mesh.size)[::-1, 0]
    np.testing.assert_allclose(backwards, scores, rtol=0, atol=1e-5)
    for row in (0, 7):
        np.testing.assert_allclose(encode_rows([rows[row]], score, 16, 14, mesh.size)[0], scores[row], atol=1e-5)


def test_equal_scores_warn_and_then_end_the_run(caplog):
    """A fifth of 100 steps after a warm-up of 10; what comes between counts them anew."""
    lines = []
    watched = Collapse(lambda step, metrics: lines.append(step), SPREAD, steps=100, warmup=10)
    with caplog.at_level(logging.WARNING):
        for step in range(0, 30, 5):
            watched(step, {"spread": SPREAD.least / 2})
            watched(step, {"validation/RR": 0.1})
    assert len(caplog.records) == 1 and "step 0: the scores of a query's candidates have been all alike" in caplog.text
    watched(30, {"spread": 1.0})
    for step in range(31, 51):
        watched(step, {"spread": 0.0})
    with pytest.raises(UserError, match=r"step 51: .* have been all alike since step 31: the reranker learns nothing"):
        watched(51, {"spread": 0.0})
    assert lines[-1] == 51


@pytest.fixture
def bert(tmp_path):
    folder = shutil.copytree(GOLDEN / "bert", tmp_path / "bert")
    VOCABULARY.save(folder / "vocab.txt")
    return folder


def started(folder, init_from, **changes):
    """A reranker before the first step."""
    config = make_config(**{"train.init_from": str(init_from), "vocab": str(init_from), **changes})
    run = Run(config, folder / "run", REPOSITORY / "requirements.lock")
    initial_parameters.check_start(run)
    model = build_model(config, 50)
    initial_parameters.init_from(model, config, 50)
    return model


def parameters(module):
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def same(a, b):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, a, b)))


def test_it_starts_from_berts_weights(tmp_path, bert):
    model = started(tmp_path, bert)
    assert isinstance(model, CrossEncoder) and model.classes == 2
    assert same(parameters(model.encoder), BertFolder.open(bert).encoder(parameters(model.encoder)))
    assert np.asarray(model.classifier.kernel[...]).std() > 0


@pytest.mark.parametrize("name", ["mlm", "ict", "seed_encoder"])
@pytest.mark.parametrize("tied", [False, True])
def test_it_starts_from_the_encoder_of_another_model(tmp_path, monkeypatch, name, tied):
    source = importlib.import_module(f"configs.{name}").get_config("local")
    source.model.update(SIZES | {"tied": tied, "embed_dim": 6})
    source.data.update(query_length=6, document_length=20)
    trained = build_model(source, 50)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    monkeypatch.setattr(initial_parameters, "load_parameters", lambda *_: (source, nnx.clone(trained)))
    config = make_config(**{"train.init_from": str(tmp_path / "other")})
    initial_parameters.check_sizes(config, source)
    model = build_model(config, 50)
    initial_parameters.init_from(model, config, 50)
    if name == "ict":
        encoder = trained.query_tower.encoder if tied else trained.document_tower.encoder
    else:
        encoder = trained.encoder
    expected = parameters(encoder)
    expected["position_embedding"]["embedding"] = expected["position_embedding"]["embedding"][:14]
    assert same(parameters(model.encoder), expected)


def test_another_reranker_gives_all_that_it_has(tmp_path, monkeypatch):
    source = make_config(**{"seed": 5})
    trained = build_model(source, 50)
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(initial_parameters, "load_parameters", lambda *_: (source, nnx.clone(trained)))
    config = make_config(**{"train.init_from": str(tmp_path)})
    initial_parameters.check_sizes(config, source)
    model = build_model(config, 50)
    initial_parameters.init_from(model, config, 50)
    assert same(parameters(model), parameters(trained))
    config.model.classes = 1
    with pytest.raises(UserError, match=r"config\.model\.classes is 2 there and 1 here"):
        initial_parameters.check_sizes(config, source)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.loss": "in_batch_softmax"}, r"config\.train\.loss=in_batch_softmax compares embeddings"),
        ({"data.document_length": 7}, "leaves no room for a document"),
        ({"model.encoder": "bow_mlp"}, r"config\.model\.encoder is 'bow_mlp', and a reranker needs a transformer"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        recipe_of(make_config(**changes)).check()


def test_monoberts_setting():
    """Nogueira & Cho 2019, section 3: 128 pairs, half of them relevant."""
    config = monobert.get_config("paper")
    assert (config.model.num_layers, config.model.hidden_size, config.model.num_heads) == (24, 1024, 16)
    assert (config.train.batch_size * (1 + config.data.negatives), config.train.steps) == (128, 100_000)
    assert (config.train.learning_rate, config.train.warmup_ratio, config.train.weight_decay) == (3e-6, 0.1, 0.01)
    assert (config.data.query_length, config.data.document_length, config.model.classes) == (64, 512, 2)

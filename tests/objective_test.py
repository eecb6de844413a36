"""What a config is trained for: the loss that it names, of what its model makes of a batch."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from configs import ict_bfs_wlp
from retrieval.common.errors import UserError
from retrieval.methods.quadruplets.loss import Quadruplet
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of
from retrieval.runs.pipeline import preflight
from retrieval.training.candidates import inner_products
from retrieval.training.objectives.distillation import KLDivergence
from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax
from retrieval.training.objectives.margins import MultiLabelMargin
from retrieval.training.objectives.own_negatives import Triplet

RANDOM = np.random.default_rng(0)
IS_TEXT = np.arange(10) < RANDOM.integers(4, 11, (4, 1))
TEXTS = np.where(IS_TEXT, RANDOM.integers(0, 50, (4, 10)), -1).astype(np.int32)


def make_config(**changes):
    config = ict_bfs_wlp.get_config("local")
    config.model.update(encoder="bow_mlp", num_layers=1, hidden_size=16, mlp_size=32, embed_dim=8)
    config.data.update(query_length=10, document_length=10)
    config.train.temperature = 0.5
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture(scope="module")
def labelled():
    """A batch with two hard negatives for each of four queries, and its embeddings."""
    config = make_config()
    model = build_model(config, 50)
    documents = RANDOM.integers(1, 50, (4, 3, 10), np.int32)
    batch = {"query": TEXTS, "document": documents, "document_id": RANDOM.integers(0, 5, (4, 3))}
    batch |= {name: RANDOM.normal(size=(4, 3)).astype(np.float32) for name in ("log_q", "teacher")}
    rows = documents.reshape(12, 10)
    query, document = nnx.jit(
        lambda model, texts, rows: (model.encode_query(texts, None), model.encode_document(rows, None))
    )(model, Text.from_ids(jnp.asarray(TEXTS), 0 * TEXTS), Text.from_ids(jnp.asarray(rows), 0 * rows))
    document = document.reshape(4, 3, 8)
    return model, jax.tree.map(jnp.asarray, batch), query, document


# Losses that two towers can have, with options of every kind, as functions of their embeddings and of a batch.
OF_TOWERS = {
    "in_batch_softmax": InBatchSoftmax(0.5),
    "multi_label_margin": MultiLabelMargin(margin=2.0),
    "quadruplet": Quadruplet(margin=2.0),
    "triplet": lambda q, d, batch: Triplet(0.5, margin=2.0)(inner_products(q, d), batch),
    "kl_divergence": lambda q, d, batch: KLDivergence(0.5, teacher_temperature=3.0)(inner_products(q, d), batch),
}


@pytest.mark.parametrize("name", OF_TOWERS)
def test_towers_are_trained_for_the_named_loss(name, labelled):
    model, batch, query, document = labelled
    config = make_config(**{"train.loss": name, "train.margin": 2.0, "train.teacher_temperature": 3.0})
    found, metrics = jax.jit(recipe_of(config).objective(bind(model)))(parameters_of(model), batch, jax.random.key(0))
    expected, _ = jax.jit(OF_TOWERS[name])(query, document, batch)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(metrics["tokens"], (TEXTS >= 0).sum(axis=1) + 30)


def test_known_positives_are_masked_or_counted_or_pushed_away(labelled):
    """In chunks, whose gradients are cached."""
    model, batch, query, document = labelled
    ids = np.arange(12).reshape(4, 3)
    known = np.stack([ids[:, 0], ids[[1, 0, 3, 2], 0]], axis=1)
    batch |= {"document_id": ids, "positive_ids": known}
    found = {}
    for use in ("mask", "mean", "negatives"):
        config = make_config(**{"train.other_positives": use, "train.symmetric": True, "train.chunk_size": 2})
        without = {name: value for name, value in batch.items() if name != "positive_ids"}
        given = without if use == "negatives" else batch  # as `examples.known_positives` has it
        found[use], _ = jax.jit(recipe_of(config).objective(bind(model)))(
            parameters_of(model), given, jax.random.key(0)
        )
        expected, _ = jax.jit(InBatchSoftmax(0.5, symmetric=True, other_positives=use))(query, document, given)
        np.testing.assert_allclose(found[use], expected, rtol=1e-4, atol=1e-5)
    assert all((np.abs(found["mask"] - found[use]) > 1e-3).any() for use in ("mean", "negatives"))


@pytest.mark.parametrize(
    ("loss", "option", "value", "owner", "default"),
    [
        ("two_way_nll", "other_positives", "mean", "other losses", "mask"),
        ("two_way_nll", "symmetric", True, r"config\.train\.loss=in_batch_softmax", "False"),
        ("two_way_nll", "margin", 2.0, "other losses", "1.0"),
        ("quadruplet", "temperature", 0.05, "other losses", "1.0"),  # of which no name would be a hint
    ],
)
def test_an_option_that_the_loss_would_ignore_is_refused(loss, option, value, owner, default):
    config = make_config(**{"train.loss": loss, "data.negatives": 1, f"train.{option}": value})
    message = (
        rf"train\.{option}={value} is a part of {owner}, and .* loss is {loss}: set config\.train\.{option}={default}"
    )
    with pytest.raises(UserError, match=message):
        check_recipe(config)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("train.false_margin", 0.2, r"config\.train\.false_negatives alone, and that is ''"),
        ("data.source_alpha", 0.5, r"config\.pairs\.sources alone, and that is ''"),
    ],
)
def test_a_field_that_another_keeps_from_being_read_is_refused(field, value, message):
    with pytest.raises(UserError, match=rf"config\.{field}={value} is read with {message}"):
        preflight.check_settings(make_config(**{field: value}), ["train"])


@pytest.mark.parametrize(
    ("name", "field", "value", "message"),
    [
        ("mlm", "train.loss", "quadruplet", "train.loss=quadruplet: a masked language model does not read it"),
        ("dpr", "model.classes", 1, "a model of two towers does not read it: set config.model.classes=2"),
    ],
)
def test_a_field_that_a_recipe_would_ignore_is_refused(name, field, value, message):
    config = importlib.import_module(f"configs.{name}").get_config("local")
    config.train.log_q = False  # which only leaves something out
    check_recipe(config)
    config.update_from_flattened_dict({field: value})
    with pytest.raises(UserError, match=message):
        check_recipe(config)
    recipe_of(config).check()  # so that what was trained with it can be used

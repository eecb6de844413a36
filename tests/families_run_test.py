"""Every recipe on encoders of today: it learns, or says in a sentence why it cannot."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from support.tiny import make_config

from retrieval.common.errors import UserError
from retrieval.methods.late_interaction.token_masks import Rules
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model, check_recipe, recipe_of

V, B, L = 50, 6, 20
RANDOM = np.random.default_rng(0)
SIZES = {"model.num_layers": 2, "model.hidden_size": 24, "model.num_heads": 4, "data.document_length": L}
SIZES |= {"data.query_length": 10, "model.dropout": 0.0, "loop.validate_every": 0, "model.positions": 0}
# The second layer is local; two heads of keys for four of queries, of another size than the hidden one's share.
FAMILIES = {
    "modernbert": {"model.family": "modernbert", "model.switches": ("window=3",)},
    "qwen3": {"model.family": "qwen3", "model.switches": ("kv_heads=2", "head_size=8")},
}
BOTH_SIDES = {"model.switches": ("kv_heads=2", "head_size=8", "causal=False")}
POOLED = {"model.pooling": "mean"}


def ids(*shape, longest=L):
    lengths = RANDOM.integers(6, longest + 1, (*shape, 1))
    return np.where(np.arange(longest) < lengths, RANDOM.integers(5, V, (*shape, longest)), -1).astype(np.int32)


def pairs(negatives=0):
    numbers = np.arange(B * (1 + negatives), dtype=np.int32).reshape(B, -1)
    own = {"document_id": numbers, "log_q": np.zeros(numbers.shape, np.float32)}
    return own | {"query": ids(B, longest=10), "document": ids(*numbers.shape)}


def known():
    """Each query has its own document alone; -1 fills up."""
    batch = pairs()
    return batch | {"positive_ids": np.pad(batch["document_id"], ((0, 0), (0, 1)), constant_values=-1)}


def joined():
    batch = pairs(1)
    return {"pair": batch["document"], "document_id": batch["document_id"]}


def marked():
    """A token of documents does not count, and queries are filled up."""
    batch = pairs(1)
    query, query_mask = (rules := Rules(4, (7,))).of_queries(batch["query"])
    return batch | {"query": query, "query_mask": query_mask, "document_mask": rules.of_documents(batch["document"])}


def masked():
    text = ids(B)
    return {
        "text": text,
        "positions": np.tile(np.arange(1, 4, dtype=np.int32), (B, 1)),
        "labels": RANDOM.integers(5, V, (B, 3), np.int32),
        "weights": np.ones((B, 3), np.float32),
        "is_random": RANDOM.integers(0, 2, (B, 1), np.int32),
    }


def answered():
    pair = ids(B, 2)
    inside = ((np.arange(L) > 1) & (np.arange(L) < 5)).astype(np.int32)
    spans = np.stack([RANDOM.integers(0, 2, (B, 1)), np.full((B, 1), 2), np.full((B, 1), 3)], axis=2)
    return {
        "pair": pair,
        "inside": np.broadcast_to(inside, pair.shape),
        "spans": spans.astype(np.int32),
        "paragraph": np.tile(np.arange(2, dtype=np.int32), (B, 1)),
        "retrieved": np.zeros((B, 2), np.float32),
    }


def weighed():
    text = ids(B)
    counts = (text >= 0).astype(np.float32)
    return {"text": text, "targets": counts * RANDOM.integers(0, 2, text.shape).astype(np.float32), "counts": counts}


def written():
    return {"source": ids(B), "target": ids(B, longest=10)}


# Experiments -> what they need of an encoder that is causal, what else, and a batch.
RECIPES = {
    "ict_bfs_wlp": (POOLED, {}, pairs),
    "repbert": (POOLED, {"model.token_types": "texts"}, known),
    "quadruplet": (POOLED, {}, lambda: pairs(2)),
    "monobert": ({}, {"data.negatives": 1}, joined),
    "reader": ({}, {"train.select": True, "data.query_length": 8, "data.paragraphs": 2, "spans.depth": 2}, answered),
    "colbert": ({}, {"data.negatives": 1}, marked),
    "deepct": ({}, {}, weighed),
    "doc2query": ({}, {"model.writer.pre_norm": False}, written),
    "mlm": (BOTH_SIDES, {}, masked),
    "seed_encoder": (BOTH_SIDES, {}, masked),
    "bert": (BOTH_SIDES, {}, masked),
}


def config_of(experiment, family, **changes):
    causal, own, _ = RECIPES[experiment]
    return make_config(experiment, **SIZES | FAMILIES[family] | (causal if family == "qwen3" else {}) | own | changes)


# Each kind on one of the families, in turn; the others in the long tests. `embedding_test` trains towers on both.
LONG = ("ict_bfs_wlp", "quadruplet", "reader", "doc2query", "seed_encoder", "bert", "repbert", "colbert", "deepct")
TURNS = [
    pytest.param(experiment, family, marks=pytest.mark.long if (i + j) % 2 or experiment in LONG else ())
    for i, experiment in enumerate(RECIPES)
    for j, family in enumerate(FAMILIES)
]


@pytest.mark.parametrize(("experiment", "family"), TURNS)
def test_it_learns_a_batch_by_heart(experiment, family):
    config = config_of(experiment, family)
    recipe, batch = recipe_of(config), jax.tree.map(jnp.asarray, RECIPES[experiment][2]())
    recipe.check()
    model = build_model(config, V)
    objective, optimizer = recipe.objective(bind(model)), optax.adam(5e-3)

    @jax.jit
    def step(params, state):
        loss, grads = jax.value_and_grad(lambda params: objective(params, batch, jax.random.key(0))[0].mean())(params)
        updates, state = optimizer.update(grads, state)
        return optax.apply_updates(params, updates), state, loss

    params = start = parameters_of(model)
    state, losses = optimizer.init(params), []
    for _ in range(25):
        params, state, loss = step(params, state)
        losses.append(float(loss))
    assert np.isfinite(losses).all() and losses[-1] < 0.9 * losses[0]
    stays = jax.tree.map(np.array_equal, params, start)
    assert not [path for path, is_same in jax.tree.leaves_with_path(stays) if is_same], "no gradient reaches them"


@pytest.mark.parametrize(
    ("experiment", "changes", "says"),
    [
        ("ict_bfs_wlp", {"model.pooling": "cls"}, "model.family=qwen3: its tokens see none behind them.*pooling=last"),
        ("mlm", {"model.switches": ()}, "a masked language model tells a token from both sides: take another"),
        ("doc2query", {"model.writer.pre_norm": True}, "has its own places for norms.*pre_norm=False"),
        ("repbert", {"model.token_types": "sides"}, "model.token_types=sides takes two token types"),
        ("deepct", {"model.switches": ("head=8",)}, "head"),
        ("deepct", {"model.switches": (), "model.num_heads": 5}, "hidden_size=24 is not a multiple of"),
    ],
)
def test_what_does_not_go_together_is_refused(experiment, changes, says):
    with pytest.raises(UserError, match=says):
        check_recipe(config_of(experiment, "qwen3", **changes))

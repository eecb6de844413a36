"""A batch in groups that do not see each other, against as many batches of an accumulated update."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh
from support.losses import in_batch_softmax
from support.tiny import make_config

from retrieval.errors import UserError
from retrieval.recipes.recipe import check_recipe

B, GROUPS, E = 64, 8, 4


def batch(K):
    """Questions of few paragraphs, so that a paragraph is in several groups, and twice in one."""
    random = np.random.default_rng(0)
    ids_BK = random.integers(0, 30, (B, K)).astype(np.int32)
    return {
        "query": random.normal(size=(B, E)).astype(np.float32),
        "document": random.normal(size=(B, K, E)).astype(np.float32),
        "ids": ids_BK,
        "log_q": random.normal(size=(B, K)).astype(np.float32),
        "known": np.stack([ids_BK[:, 0], random.integers(0, 30, B)], axis=1).astype(np.int32),
    }


def loss(weights, rows, groups, **options):
    """The mean loss of embeddings that are multiplied by weights, and the metrics."""
    loss_B, metrics = in_batch_softmax(
        jnp.einsum("be,ef->bf", rows["query"], weights["query"]),
        jnp.einsum("bke,ef->bkf", rows["document"], weights["document"]),
        rows["ids"],
        rows["log_q"],
        temperature=0.5,
        known=rows["known"],
        groups=groups,
        block=5,
        **options,
    )
    return loss_B.mean(), (loss_B, metrics["recall@1"])


@pytest.mark.parametrize(("K", "options"), [(1, dict(other_positives="mean")), (3, dict(symmetric=True))])
def test_groups_equal_accumulated_batches_on_one_device_and_eight(K, options):
    rows, random = batch(K), np.random.default_rng(1)
    weights = {name: random.normal(size=(E, E)).astype(np.float32) for name in ("query", "document")}

    def whole(params, rows):
        return jax.value_and_grad(lambda p: loss(p, rows, GROUPS, **options), has_aux=True)(params)

    (value, (loss_B, hit_B)), gradient = assert_same_on_any_mesh(whole, weights, rows)
    size, parts = B // GROUPS, []
    alone = jax.jit(jax.value_and_grad(lambda p, part: loss(p, part, 1, **options), has_aux=True))
    for start in range(0, B, size):
        part = {name: values[start : start + size] for name, values in rows.items()}
        parts.append(alone(weights, part))
    np.testing.assert_allclose(value, np.mean([part[0][0] for part in parts]), rtol=1e-6)
    np.testing.assert_allclose(loss_B, np.concatenate([part[0][1][0] for part in parts]), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(hit_B, np.concatenate([part[0][1][1] for part in parts]))
    for name in weights:
        np.testing.assert_allclose(gradient[name], np.mean([part[1][name] for part in parts], 0), rtol=1e-4, atol=1e-6)
    _, one = alone(weights, rows)
    assert not np.allclose(one["query"], gradient["query"], rtol=1e-2)


def test_groups_that_do_not_fit_the_batch_are_refused():
    with pytest.raises(UserError, match=r"config\.train\.groups=3 does not divide .*batch_size=16: take 2 or 4"):
        check_recipe(make_config("ict", **{"train.groups": 3}))

"""Adapters of low rank: what they add, and what is trained."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util
from support.tiny_towers import LORA, VOCABULARY, begin, make_config, run

from retrieval.common.errors import UserError
from retrieval.models import lora
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import abstract_model, build_model
from retrieval.runs.weights import adapters
from retrieval.training import frozen

IDS = jnp.asarray(np.random.default_rng(0).integers(5, VOCABULARY, (3, 12)))


def flat(params):
    return dict(traverse_util.flatten_dict(params, sep="/"))


def nested(leaves):
    return traverse_util.unflatten_dict(leaves, sep="/")


def drawn(params):
    """Parameters of which none is 0, no B either."""
    random = np.random.default_rng(3)
    return jax.tree.map(lambda leaf: jnp.asarray(random.normal(0, 0.3, leaf.shape), jnp.float32), params)


def embedded(config, params, key):
    text = Text.from_ids(IDS, jnp.zeros_like(IDS))
    return bind(abstract_model(config, VOCABULARY))(params).encode_query(text, key)


def embed(config, params, key=None):
    return np.asarray(jax.jit(lambda params: embedded(config, params, key))(params))


def test_new_adapters_change_nothing():
    config = make_config(**LORA)
    base = parameters_of(build_model(make_config(**{"model.tied": True}), VOCABULARY))
    params = begin(config)[1].params
    np.testing.assert_array_equal(embed(config, params), embed(config, base))
    np.testing.assert_allclose(embed(config, params, jax.random.key(1)), embed(config, base), rtol=0, atol=1e-6)


def test_an_adapter_is_drawn_as_peft_draws_it():
    _, state = begin(make_config(**LORA | {"train.lora.targets": ("all",), "train.lora.rank": 8}))
    leaves = flat(lora.divide(state.params)[1])
    assert len(leaves) == 2 * 6
    for path, leaf in leaves.items():
        if path.endswith("lora_b"):
            assert not np.any(leaf)
        else:
            bound = leaf.shape[1] ** -0.5
            assert 0.9 * bound < np.abs(leaf).max() < bound and abs(np.mean(leaf)) < 0.1 * bound
            assert leaf.shape == (2, 32 if "mlp_out" in path else 16, 8)


def test_a_model_gives_what_one_with_the_products_added_gives():
    scale = 2.0
    config = make_config(**LORA | {"train.lora.alpha": 8.0})
    params = drawn(begin(config)[1].params)
    leaves = flat(params)
    by_hand = {path: np.array(leaf, np.float64) for path, leaf in leaves.items() if "lora_" not in path}
    for path, a in leaves.items():
        if path.endswith("lora_a"):
            b, kernel = leaves[path.replace("lora_a", "lora_b")], by_hand[path.replace("lora_a", "kernel")]
            for number in range(2):
                kernel[number] += scale * np.asarray(a[number], np.float64) @ np.asarray(b[number], np.float64)
    by_hand = nested({path: jnp.asarray(leaf, jnp.float32) for path, leaf in by_hand.items()})
    np.testing.assert_allclose(embed(config, params), embed(config, by_hand), rtol=0, atol=1e-5)
    merged = adapters.merged(config, params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-6), merged, by_hand)


def test_dropout_is_of_what_goes_into_adapters():
    """Without a B nothing is seen of it, as above. With one, the mean over many masks is what there is without any."""
    config = make_config(**LORA | {"model.num_layers": 1, "train.lora.dropout": 0.5, "train.lora.alpha": 0.1})
    params = drawn(begin(config)[1].params)
    drop = jax.vmap(lambda key: embedded(config, params, key))
    found = np.asarray(jax.jit(drop)(jax.random.split(jax.random.key(0), 60)))
    whole, apart = embed(config, params), np.abs(found - embed(config, params)).max(axis=0)
    assert apart.min() > 0
    np.testing.assert_allclose(found.mean(axis=0), whole, rtol=0, atol=0.3 * apart.max())


@pytest.mark.parametrize("base", ["bfloat16", pytest.param("float32", marks=pytest.mark.long)])
def test_adapters_and_heads_alone_are_trained(base):
    config = make_config(**LORA | {"train.lora.base": base, "train.optimizer": "lamb", "train.accumulation": 1})
    before, (after, losses) = begin(config)[1], run(config)
    (head, fixed), (trained, others) = frozen.split(before.params), frozen.split(after.params)
    names = {"query_tower/projection/kernel", "query_tower/projection/bias"}
    modules = ("attention/query", "mlp_in", "mlp_out")
    names |= {f"query_tower/encoder/layers/{module}/lora_{side}" for module in modules for side in "ab"}
    assert flat(trained).keys() == names and len(flat(others)) == 21
    assert {leaf.dtype.name for leaf in jax.tree.leaves(others)} == {base}
    jax.tree.map(np.testing.assert_array_equal, fixed, others)
    for moment in (after.opt_state[1][0].mu, after.opt_state[1][0].nu):
        assert flat(moment).keys() == names
        assert all(np.any(leaf) and leaf.dtype == "float32" for leaf in jax.tree.leaves(moment))
    assert not any(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(head), jax.tree.leaves(trained)))
    assert len(set(losses)) == 3


@pytest.mark.parametrize(
    ("changes", "match"),
    [({"train.lora.rank": 4}, r"adapters stand on trained parameters, of every tower: set config\.train\.init_from")],
)
def test_fields_that_do_not_fit_are_refused(changes, match):
    with pytest.raises(UserError, match=match):
        adapters.check(make_config(**changes))


def test_targets_have_names_of_ours_or_of_a_family():
    assert lora.modules(["q_proj", "value", "down_proj"]) == {"query", "value", "mlp_out"}
    assert lora.are_targets(("all",)) and not lora.are_targets(()) and not lora.are_targets(("query", "norm"))
    with pytest.raises(UserError, match="no matrix of the encoder is one of them"):
        begin(make_config(**LORA | {"train.lora.targets": ("mlp_gate",)}))

"""Keys that are counted in Python against flax's."""

import jax
import pytest
from flax import nnx

from retrieval.models.rngs import Rngs
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig


@pytest.mark.parametrize("seed", [0, 7])
def test_keys_are_those_of_flax(seed):
    ours, flax_own = Rngs(seed), nnx.Rngs(seed)
    for draw in (lambda rngs: rngs.params(), lambda rngs: rngs.other(), lambda rngs: rngs()):
        assert draw(ours) == draw(flax_own)


@pytest.mark.long
def test_a_traced_model_has_the_parameters_that_flax_would_draw():
    def parameters(rngs):
        return jax.jit(lambda: nnx.state(Transformer(TransformerConfig(9, 2, 8, 2, 16, 4), rngs=rngs(3))))()

    same = jax.tree.map(lambda ours, flax_own: bool((ours == flax_own).all()), parameters(Rngs), parameters(nnx.Rngs))
    assert jax.tree.leaves(same) and all(jax.tree.leaves(same))

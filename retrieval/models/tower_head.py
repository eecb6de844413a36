"""What follows the pooling of a tower, one layer after the other, each as a text: so a config has it.

    dense:256           a linear layer to 256 dimensions, with a bias; an activation may follow, and `no_bias`:
    dense:256:tanh:no_bias
    layer_norm          with a scale and a bias
    normalize           to length 1

They are the modules of sentence-transformers with these names.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.models.gelu import gelu
from retrieval.models.norms import LayerNorm
from retrieval.models.rngs import Rngs
from retrieval.models.transformer import INIT

DENSE, LAYER_NORM, NORMALIZE = "dense", "layer_norm", "normalize"
ACTIVATIONS = {
    "identity": lambda x: x,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "gelu": gelu,
    "sigmoid": jax.nn.sigmoid,
    "silu": jax.nn.silu,
}

_NO_BIAS = "no_bias"
_ATTRIBUTES = {DENSE: "projection", LAYER_NORM: "norm"}
KINDS = {DENSE: "Dense", LAYER_NORM: "LayerNorm", NORMALIZE: "Normalize"}  # what sentence-transformers calls them
# Our parameters of a layer -> the tensors of sentence-transformers.
TENSORS = {
    DENSE: {"kernel": "linear.weight", "bias": "linear.bias"},
    LAYER_NORM: {"scale": "norm.weight", "bias": "norm.bias"},
    NORMALIZE: {},
}


class Layer(NamedTuple):
    """A layer: its kind, and of a dense one its size, its activation and whether it has a bias."""

    kind: str
    size: int = 0
    activation: str = "identity"
    bias: bool = True

    def __str__(self) -> str:
        if self.kind != DENSE:
            return self.kind
        activation = [self.activation] if self.activation != "identity" else []
        return ":".join([DENSE, str(self.size), *activation, *([] if self.bias else [_NO_BIAS])])


def layer_of(text: str) -> Layer:
    """The layer that a text names.

    Raises:
      ValueError: it names none.
    """
    kind, *parts = text.split(":")
    if kind in (LAYER_NORM, NORMALIZE) and not parts:
        return Layer(kind)
    size, *options = parts or [""]
    bias = _NO_BIAS not in options[-1:]
    (activation,) = options[: None if bias else -1] or ["identity"]
    if kind != DENSE or not size.isdecimal() or int(size) < 1 or activation not in ACTIVATIONS:
        raise ValueError(text)
    return Layer(DENSE, int(size), activation, bias)


def names(layers: Sequence[Layer]) -> list[str]:
    """The attributes of a tower that hold the parameters of its layers; '' for a layer without any."""
    kinds = [layer.kind for layer in layers]
    places = (kinds[: number + 1].count(kind) for number, kind in enumerate(kinds))
    stems = (_ATTRIBUTES.get(kind, "") for kind in kinds)
    return [f"{stem}_{place}" if stem and place > 1 else stem for stem, place in zip(stems, places)]


def make(layer: Layer, size: int, rngs: Rngs | nnx.Rngs) -> Any:
    """The module with the parameters of a layer, of inputs of a size."""
    if layer.kind == DENSE:
        return nnx.Linear(size, layer.size, use_bias=layer.bias, kernel_init=INIT, rngs=rngs)
    return LayerNorm(size, epsilon=1e-5, rngs=rngs)  # PyTorch's epsilon, which ANCE has


def apply(layer: Layer, module: Any, x_BE: jax.Array) -> jax.Array:
    """What a layer makes of embeddings, float32; `module` is what `make` gave."""
    if layer.kind == NORMALIZE:
        # The small number inside the root: a zero vector stays zero, and so does its gradient.
        return x_BE * jax.lax.rsqrt(jnp.square(x_BE).sum(axis=1, keepdims=True) + 1e-12)
    return ACTIVATIONS[layer.activation](module(x_BE))


def are_layers(value: Any) -> bool:
    """Whether a value of `config.model.head` describes layers."""
    try:
        return isinstance(value, tuple | list) and all(isinstance(text, str) and layer_of(text) for text in value)
    except ValueError:
        return False

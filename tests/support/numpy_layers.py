"""The layers of Transformers written anew in numpy, in float64, for one text: arrays are [tokens, features]."""

import math

import jax
import numpy as np
from flax import nnx


def parameters(module):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), nnx.to_pure_dict(nnx.state(module, nnx.Param)))


def layers(at):
    """The parameters of each of the layers that are stacked on the first axis."""
    count = len(jax.tree.leaves(at)[0])
    return [jax.tree.map(lambda leaf, number=number: leaf[number], at) for number in range(count)]


def norm(x, at):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * at["scale"] + at["bias"]


def dense(x, at):
    return x @ at["kernel"] + at["bias"]


def gelu(x):
    return x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def mlp(x, at):
    return dense(gelu(dense(x, at["mlp_in"])), at["mlp_out"])


def softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def attend(x, others, at, heads, sees=True):
    """What each token of `x` sees of others, where `sees` is true."""
    query, key, value = dense(x, at["query"]), dense(others, at["key"]), dense(others, at["value"])
    parts = []
    for head in np.split(np.arange(query.shape[1]), heads):
        score = query[:, head] @ key[:, head].T / math.sqrt(len(head))
        parts.append(softmax(np.where(sees, score, -np.inf)) @ value[:, head])
    return dense(np.concatenate(parts, axis=1), at["output"])

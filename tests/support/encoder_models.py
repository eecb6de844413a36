"""Encoders with the weights of a folder, and texts for them, alone in their rows or packed."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig


def load(folder, switches=None, **settings):
    """An encoder; settings are fields of a `TransformerConfig`, and switches take the place of the folder's."""
    opened = EncoderFolder.open(folder)
    sizes = {**opened.sizes, "architecture": opened.sizes["architecture"].replaced(**(switches or {}))}
    encoder = nnx.eval_shape(lambda: Transformer(TransformerConfig(**sizes, dropout=0.0, **settings), rngs=nnx.Rngs(0)))
    state = nnx.state(encoder, nnx.Param)
    nnx.replace_by_pure_dict(state, opened.encoder(nnx.to_pure_dict(state)))
    nnx.update(encoder, state)
    return encoder


def rows(ids, length=None):
    """One text a row, as long as the longest of them, or longer."""
    length = length or max(map(len, ids))
    ids_BL, segments_BL = np.zeros((2, len(ids), length), np.int32)
    for row, text in enumerate(ids):
        ids_BL[row, : len(text)], segments_BL[row, : len(text)] = text, 1
    positions_BL = np.tile(np.arange(length, dtype=np.int32), (len(ids), 1))
    return Text(*map(jnp.asarray, (ids_BL, np.zeros_like(ids_BL), segments_BL, positions_BL)))


def packed(ids, gap=3):
    """All texts in one row, one after another, with filler behind the last."""
    starts = np.cumsum([0, *map(len, ids)])
    ids_L, segments_L, positions_L = np.zeros((3, starts[-1] + gap), np.int32)
    for number, (text, start) in enumerate(zip(ids, starts)):
        here = slice(start, start + len(text))
        ids_L[here], segments_L[here], positions_L[here] = text, number + 1, np.arange(len(text))
    arrays = (ids_L, np.zeros_like(ids_L), segments_L, positions_L)
    return Text.from_groups(*(jnp.asarray(x[None, None]) for x in arrays), jnp.asarray(starts[None, :-1], jnp.int32))


def hidden(encoder, text):
    """The hidden states of each text's tokens, a list of float32 [tokens, H]."""
    graphdef, params = nnx.split(encoder)
    return of_texts(_hidden(graphdef, params, text), text)


def of_texts(hidden_RLH, text):
    """The hidden states of each text's tokens."""
    hidden_RLH, segments_RL = np.asarray(hidden_RLH, np.float32), np.asarray(text.segments_RL)
    if text.starts_GC is None:
        return [states[segments > 0] for states, segments in zip(hidden_RLH, segments_RL)]
    assert len(segments_RL) == 1, "one packed row"
    return [hidden_RLH[0, segments_RL[0] == number + 1] for number in range(text.starts_GC.shape[1])]


def gradient(encoder, text, direction_H):
    """The gradient of the sum over texts of their mean hidden state along a direction, as a tree of parameters."""
    graphdef, params = nnx.split(encoder)
    return nnx.to_pure_dict(_gradient(graphdef, params, text, direction_H))


@functools.partial(jax.jit, static_argnums=0)
def _hidden(graphdef, params, text):
    return nnx.merge(graphdef, params)(text, dropout_key=None)


@functools.partial(jax.jit, static_argnums=0)
def _gradient(graphdef, params, text, direction_H):
    segments_RL = text.segments_RL

    def total(params):
        hidden_RLH = nnx.merge(graphdef, params)(text, dropout_key=None).astype(jnp.float32)
        # Of each token, one over the tokens of its text.
        same_RLM = segments_RL[:, :, None] == segments_RL[:, None, :]
        weight_RL = jnp.where(segments_RL > 0, 1 / same_RLM.sum(axis=2), 0)
        return (weight_RL * (hidden_RLH @ direction_H)).sum()

    return jax.grad(total)(params)

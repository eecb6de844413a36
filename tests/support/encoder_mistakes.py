"""Mistakes that are made in reading a published encoder, each as the change of a folder that has the same effect."""

import numpy as np

from support.encoder_folders import LAYERS, H


def _set(**fields):
    def change(config, tensors):
        config.update(fields)

    return change


def _swap(one, other):
    """Takes tensors for each other, of every layer."""

    def change(config, tensors):
        for key in [key for key in tensors if one in key]:
            partner = key.replace(one, other)
            tensors[key], tensors[partner] = tensors[partner], tensors[key]

    return change


def _map(end, function):
    """Changes tensors by the ends of their names."""

    def change(config, tensors):
        found = [key for key in tensors if key.endswith(end)]
        assert found
        for key in found:
            tensors[key] = np.ascontiguousarray(function(tensors[key]), np.float32)

    return change


def _both(*changes):
    def change(config, tensors):
        for each in changes:
            each(config, tensors)

    return change


def _halves(x):
    return np.roll(x, len(x) // 2, axis=0)


def _heads(order, axis):
    """The heads along an axis in another order."""

    def function(x):
        x = np.moveaxis(x, axis, 0)
        x = x.reshape(len(order), -1, *x.shape[1:])[list(order)].reshape(x.shape)
        return np.moveaxis(x, 0, axis)

    return function


def _interleaved(size):
    """Neighbours are turned against each other, in place of a head's halves."""

    def function(x):
        heads = x.reshape(-1, size, *x.shape[1:])
        order = np.arange(size).reshape(2, -1).T.flatten()
        return heads[:, order].reshape(x.shape)

    return function


_TILED = (0, 2, 1, 3)  # where four query heads take two heads of keys in turn: 0, 1, 0, 1 in place of 0, 0, 1, 1
_tile = _both(_map("q_proj.weight", _heads(_TILED, 0)), _map("o_proj.weight", _heads(_TILED, 1)))
_swap_glu = _swap("gate_proj", "up_proj")


def _rows(start, stop, other, function):
    """Changes some rows of a fused tensor, by those of another place."""

    def change(x):
        x = x.copy()
        x[start:stop] = function(x[other])
        return x

    return change


MISTAKES = {
    "modernbert": {
        "the halves of the GLU are swapped": _map("mlp.Wi.weight", _halves),
        "queries, keys and values in another order": _map("Wqkv.weight", lambda x: np.roll(x, H, axis=0)),
        "neighbours are turned": _map(
            "Wqkv.weight", lambda x: np.concatenate([_interleaved(16)(x[: 2 * H]), x[2 * H :]])
        ),
        "one angle for all layers": _set(local_rope_theta=160000.0),
        "the angles are swapped": _set(local_rope_theta=160000.0, global_rope_theta=10000.0),
        "the window is the reach": _set(local_attention=16),
        "a window that is one less on each side": _set(local_attention=6),
        "all layers are global": _set(global_attn_every_n_layers=1),
        "another layer of three is global": _set(
            layer_types=[("full" if n % 3 == 2 else "sliding") + "_attention" for n in range(LAYERS)]
        ),
        "the norms are swapped": _both(
            *(_swap(f"layers.{n}.attn_norm", f"layers.{n}.mlp_norm") for n in range(1, LAYERS))
        ),
        "the epsilon of another family": _set(norm_eps=1e-2),
    },
    "qwen3": {
        "the parts of the GLU are swapped": _swap_glu,
        "heads of keys in turn": _tile,
        "neighbours are turned": _both(
            *(_map(f"{name}_{kind}.weight", _interleaved(8)) for name in "qk" for kind in ("proj", "norm"))
        ),
        "no causal mask": _set(is_causal=False),
        "the angles of Llama": _set(rope_theta=10000.0),
        "scores by hidden size over heads": _map("q_norm.weight", lambda x: x * (8 / (H / 4)) ** 0.5),
        "the norms of queries and keys are one": _map("q_norm.weight", np.ones_like),
        "the norms are swapped": _swap("input_layernorm", "post_attention_layernorm"),
        "scales are stored less 1": _map("norm.weight", lambda x: x + 1),
    },
    "qwen3_both_ways": {"a causal mask": _set(is_causal=True)},
    "qwen2": {
        "no biases": _both(*(_map(f"{name}_proj.bias", np.zeros_like) for name in "qkv")),
        "biases of keys alone are left out": _map("k_proj.bias", np.zeros_like),
        "heads of keys in turn": _both(
            *(
                _map(name, _heads((0, 3, 1, 4, 2, 5), axis))
                for name, axis in (("q_proj.weight", 0), ("q_proj.bias", 0), ("o_proj.weight", 1))
            )
        ),
    },
    "llama": {
        "the parts of the GLU are swapped": _swap_glu,
        "heads of keys in turn": _tile,
        "neighbours are turned": _both(*(_map(f"{name}_proj.weight", _interleaved(8)) for name in "qk")),
        "keys are not turned as queries are": _map("k_proj.weight", _interleaved(8)),
    },
    "llama3": {
        "long waves stay": _set(rope_scaling=None),
        "all waves are longer": _set(rope_scaling=dict(rope_type="linear", factor=8.0)),
    },
    "mistral": {
        "no window": _set(sliding_window=None),
        "a window that is one more": _set(sliding_window=7),
    },
    "gemma3": {
        "scales are not stored less 1": _map("norm.weight", lambda x: x - 1),
        "embeddings are not scaled": _map("embed_tokens.weight", lambda x: x / H**0.5),
        "scores by the size of a head": _set(query_pre_attn_scalar=8),
        "the parts of the GLU are swapped": _swap_glu,
        "one angle for all layers": _set(rope_local_base_freq=1e6),
        "the angles are swapped": _set(rope_local_base_freq=1e6, rope_theta=1e4),
        "a window on both sides": _set(use_bidirectional_attention=True, sliding_window=10),
        "no window": _set(sliding_window=160),
        "a window that is one more": _set(sliding_window=7),
        "the first of three layers is global": _set(
            layer_types=[("sliding" if n % 3 else "full") + "_attention" for n in range(LAYERS)]
        ),
        "the norm after attention stands before the MLP": _swap(
            "post_attention_layernorm", "pre_feedforward_layernorm"
        ),
    },
    "embedding_gemma": {
        "a causal mask": _set(use_bidirectional_attention=False, sliding_window=5),
        "the window is halved twice": _set(sliding_window=4),
        "the window is the reach": _set(sliding_window=16),
    },
    "t5": {
        "scores are divided": _map("SelfAttention.q.weight", lambda x: x / 8**0.5),
        "keys behind and before are swapped": _map("relative_attention_bias.weight", _halves),
        "no bias by distance": _map("relative_attention_bias.weight", np.zeros_like),
        "one far bucket": _map("relative_attention_bias.weight", _rows(31, 32, 30, lambda x: x)),
    },
    "t5_gated": {"the parts of the GLU are swapped": _swap("wi_0", "wi_1")},
    "mpnet": {
        "the bias is divided with the scores": _map("relative_attention_bias.weight", lambda x: x / 12**0.5),
        "positions count from 0": _map("position_embeddings.weight", lambda x: np.roll(x, 2, axis=0)),
        "another epsilon": _set(layer_norm_eps=1e-2),
    },
    "nomic_bert": {
        "the parts of the GLU are swapped": _swap("fc11", "fc12"),
        "the angles of Llama": _set(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        "no token types": _map("token_type_embeddings.weight", np.zeros_like),
    },
    "gte": {
        "the halves of the GLU are swapped": _map("up_gate_proj.weight", _halves),
        "the angles of Llama": _set(rope_parameters=dict(rope_type="default", rope_theta=10000.0)),
        "no token types": _map("token_type_embeddings.weight", np.zeros_like),
    },
}

# Switches of the architecture that are set in a wrong way.
SWITCHES = {
    "modernbert": [
        dict(first_norm=True),
        dict(activation="gelu_tanh"),
        dict(positions="none"),
        dict(causal=True),
        dict(local_theta=0.0),
        dict(global_first=False),
        dict(score_size=48),
    ],
    "qwen3": [dict(positions="none"), dict(causal=False), dict(norm="rms_plus_one"), dict(rope_theta=1e4)],
    "gemma3": [
        dict(embedding_scale=False),
        dict(norm="rms"),
        dict(activation="gelu"),
        dict(score_size=0),
        dict(reach=6),
        dict(causal=False),
        dict(global_first=True),
    ],
    "embedding_gemma": [dict(causal=True), dict(reach=3), dict(reach=5)],
    "t5": [dict(score_size=0), dict(causal=True), dict(positions="rope"), dict(embedding_scale=True)],
    "t5_gated": [dict(activation="gelu"), dict(activation="silu")],
    "gte": [dict(activation="gelu_tanh")],
    "nomic_bert": [dict(activation="gelu"), dict(positions="none")],
}

ALL_SWITCHES = [(name, switch) for name, switches in SWITCHES.items() for switch in switches]
ALL = [(name, mistake) for name, mistakes in MISTAKES.items() for mistake in mistakes]

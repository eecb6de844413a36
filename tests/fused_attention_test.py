"""Fused attention: the kernels give what plain attention gives, and are taken where they fit."""

import contextlib
import dataclasses
import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.devices import assert_same_on_any_mesh
from support.modules import spread

from configs import ict_bfs_wlp
from retrieval.common.errors import UserError
from retrieval.models import attention, fused_attention
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.text import Text
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.recipes.encoder_sizes import check_encoder
from retrieval.training import work

RANDOM = np.random.default_rng(0)
INTERPRETED = functools.partial(fused_attention.splash, interpret=True)
WITHOUT_CUDNN = functools.partial(fused_attention.cudnn, implementation="xla")


def packed(L):
    """Segments of a row of one text, of two with padding behind them, and of padding alone; int32 [3, L]."""
    segments = np.ones((3, L), np.int32)
    segments[1, L // 3 :], segments[1, L // 2 :], segments[2] = 2, 0, 0
    return segments


def value_and_gradients(attend, shape, dtype=jnp.float32, shared=1):
    """What tokens see, and the gradients by queries, keys and values of a readout of it.

    Args:
      shared: heads of queries for one of keys and values.
    """
    R, N, D, L = shape
    random, of_keys = np.random.default_rng(1), (R, N // shared, D, L)
    *given, readout = (random.normal(size=s).astype(np.float32) for s in (shape, of_keys, of_keys, shape))

    def loss(given):
        seen = attend(*(x.astype(dtype) for x in given)).astype(jnp.float32)
        return (seen * readout).sum(), seen

    (_, seen), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(tuple(given))
    return seen, *gradients


# Heads of queries, of keys and values, their size, length of a row, causal, and the tokens that a window reaches.
SEEN = [
    pytest.param(4, 2, 64, 150, True, None, id="Qwen3"),
    pytest.param(2, 2, 64, 150, False, 40, id="ModernBERT's local layers"),
    pytest.param(3, 1, 128, 150, False, 70, id="EmbeddingGemma's"),
    pytest.param(2, 1, 24, 700, True, 300, id="Mistral's, of three blocks"),
    pytest.param(2, 2, 64, 150, False, None, id="BERT's"),
]


@pytest.mark.parametrize(
    ("kernel", "N", "K", "D", "L", "causal", "window"),
    [
        pytest.param(
            kernel,
            *seen.values,
            id=f"{seen.id}-{name}",
            marks=pytest.mark.long if (i + j) % 2 or i not in (1, 2) else (),
        )
        for i, seen in enumerate(SEEN)
        for j, (name, kernel) in enumerate({"cudnn": WITHOUT_CUDNN, "splash": INTERPRETED}.items())
    ],
)
def test_kernels_see_what_a_mask_lets_tokens_see(kernel, N, K, D, L, causal, window):
    """Of packed texts, padding and empty rows, filled up to a multiple of 128; by the mask's definition."""
    segments, place = packed(L), np.arange(L)
    mask = segments[:, :, None] == segments[:, None]
    if causal:
        mask &= place <= place[:, None]
    if window is not None:
        mask &= abs(place - place[:, None]) <= window

    def plain(q, k, v):
        return attention.plain((q, *(jnp.repeat(x, N // K, axis=1) for x in (k, v))), mask[:, None], 0.0, None)

    sees = fused_attention.Segments(jnp.asarray(segments), kernel, causal, window)
    for dtype, atol in (jnp.float32, 1e-4), (jnp.bfloat16, 2e-2):
        expected = value_and_gradients(plain, (3, N, D, L), shared=N // K)
        found = value_and_gradients(lambda *given: fused_attention.attend(given, sees), (3, N, D, L), dtype, N // K)
        for wanted, one in zip(expected, found, strict=True):
            np.testing.assert_allclose(one / abs(wanted).max(), wanted / abs(wanted).max(), rtol=0, atol=atol)


def test_devices_attend_to_their_own_rows():
    segments = np.repeat(packed(128), 3, axis=0)[:8]
    shape = (8, 1, 64, 128)

    def gradients(_, batch):
        sees = fused_attention.Segments(batch[3], WITHOUT_CUDNN)
        return jax.grad(lambda q, k, v: jnp.sin(fused_attention.attend((q, k, v), sees)).mean(), (0, 1, 2))(*batch[:3])

    assert_same_on_any_mesh(gradients, {}, (*RANDOM.normal(size=(3, *shape)).astype(np.float32), segments))


CONFIG = TransformerConfig(50, 1, 128, 2, 64, 16, dropout=0.1, attention_dropout=0.0, dtype="bfloat16")


def hidden_states(config, key=0):
    ids = np.where(np.arange(16) < np.array([[16], [5], [0]]), 7, -1).astype(np.int32)
    model = spread(Transformer(config, rngs=nnx.Rngs(0)))
    dropout_key = None if key is None else jax.random.key(key)
    hidden = nnx.jit(lambda model, text: model(text, dropout_key=dropout_key))
    return hidden(model, Text.from_ids(jnp.asarray(ids), 0 * jnp.asarray(ids))).astype(jnp.float32)


def test_a_transformer_takes_the_kernel_where_there_is_one(monkeypatch):
    plain = hidden_states(CONFIG)
    auto = dataclasses.replace(CONFIG, attention="auto")
    np.testing.assert_array_equal(hidden_states(auto), plain)  # a CPU has none
    calls = []

    def kernel(*given, **seen):
        calls.append(given)
        return WITHOUT_CUDNN(*given, **seen)

    monkeypatch.setattr(fused_attention, "_kernel_of", lambda device, head_size: kernel)
    found = hidden_states(auto)
    assert calls[0][0][0].shape == (3, 2, 64, 128)
    calls.clear()
    assert np.abs(found - plain).max() < 0.2 and np.abs(found - plain).mean() < 0.01
    for other in ({"attention_dropout": -1.0}, {"dtype": "float32"}, {"num_heads": 32}, {"attention": "plain"}):
        nnx.eval_shape(lambda: hidden_states(dataclasses.replace(auto, **other)))  # noqa: B023
    assert not calls
    encoding = dataclasses.replace(auto, attention_dropout=-1.0)
    nnx.eval_shape(lambda: hidden_states(encoding, key=None))  # nothing is dropped
    assert calls


@pytest.mark.parametrize("family", ["qwen3", "modernbert", pytest.param("gemma3_text", marks=pytest.mark.long), "t5"])
def test_a_family_has_the_same_hidden_states_by_a_kernel(monkeypatch, family):
    switches = {"kv_heads": 1} if family in ("qwen3", "gemma3_text") else {}
    if FAMILIES[family].architecture.window:
        switches |= {"window": 5, "global_every": 2}
    architecture = FAMILIES[family].architecture.replaced(**switches)
    config = dataclasses.replace(CONFIG, num_layers=2, dropout=0.0, architecture=architecture)
    plain, seen = hidden_states(config), []

    def kernel(*given, causal, window):
        seen.append((given[0][1].shape[1], causal, window))
        return WITHOUT_CUDNN(*given, causal=causal, window=window)

    monkeypatch.setattr(fused_attention, "_kernel_of", lambda device, head_size: kernel)
    found = hidden_states(dataclasses.replace(config, attention="auto"))
    texts = [slice(None), slice(None, 5)]  # what stands behind a text is padding
    for row, tokens in enumerate(texts):
        np.testing.assert_allclose(found[row, tokens], plain[row, tokens], rtol=0, atol=0.03 * abs(plain).max())
    expected = {
        "qwen3": {(1, True, None)},
        "modernbert": {(2, False, 5), (2, False, None)},
        "gemma3_text": {(1, True, 5), (1, True, None)},
    }
    assert set(seen) == expected.get(family, set())  # no kernel knows the bias of the others


@pytest.mark.parametrize(("platform", "kind", "name"), [("tpu", "TPU v4", ""), ("tpu", "TPU v5 lite", "splash")])
def test_tpus_have_a_kernel_from_v5e_on(platform, kind, name):
    device = types.SimpleNamespace(platform=platform, device_kind=kind)
    assert getattr(fused_attention._kernel_of(device, 64), "__name__", "") == name


@pytest.mark.parametrize(("capability", "largest"), [("7.5", 0), ("8.9", 128), ("9.0", 256)])
def test_gpus_have_a_kernel_from_ampere_on_for_heads_that_cudnn_takes(monkeypatch, capability, largest):
    """JAX raises NotImplementedError for larger ones."""
    device = types.SimpleNamespace(platform="gpu", device_kind="a GPU", compute_capability=capability)
    monkeypatch.setattr(jax, "local_devices", lambda: [device])
    for size in (64, 128, 192, 256, 320):
        is_taken = size <= largest
        assert (fused_attention._kernel_of(device, size) is fused_attention.cudnn) == is_taken
        with contextlib.nullcontext() if is_taken else pytest.raises(UserError, match=f"heads of {size} "):
            fused_attention.check_device("fused", device, size)


def test_fused_attention_that_no_kernel_computes_is_refused():
    model = ict_bfs_wlp.get_config("local").model
    model.update({"attention": "fused", "dtype": "bfloat16", "dropout": 0.1})
    with pytest.raises(UserError, match=r"no dropout on attention, which is 0\.1: set .*attention_dropout=0"):
        check_encoder(model)
    model.update({"dropout": 0.0, "switches": ("head_size=36",)})
    with pytest.raises(UserError, match=r"attention=fused: kernels take heads of a multiple of 8, and these have 36"):
        check_encoder(model)
    model.update({"family": "t5", "switches": ()})
    with pytest.raises(UserError, match=r"attention=fused: kernels have no bias by the distance of tokens"):
        check_encoder(model)


def test_the_work_of_a_kernel_is_that_of_its_products_on_a_device():
    L, shape = 256, (8, 2, 64, 256)
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    rows = NamedSharding(mesh, P(("data", "fsdp")))
    head = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=rows)
    segments = jax.ShapeDtypeStruct((8, L), jnp.int32, sharding=rows)

    def attend(query, key, value, segments):
        return fused_attention.attend((query, key, value), fused_attention.Segments(segments, fused_attention.splash))

    with jax.set_mesh(mesh):
        counted = work.flops(jax.jit(attend).trace(head, head, head, segments).jaxpr)
    assert counted == 2 * (2 * 2 * L * L * 64)  # a row of a device, two products of two heads

"""Attention by a kernel of the chip, which keeps the scores in fast memory: they are never written out.

On TPUs from v5e on it is JAX's splash attention (Pallas), on GPUs that of cuDNN. Values and gradients are those of
`attention.plain` to within bfloat16. The kernels have no dropout on the weights, and none has a bias by distance.

Letters of shapes beside those of `attention`: K heads of keys and values, each of which N / K heads of queries share.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import traced_device
from retrieval.models.attention import Heads
from retrieval.models.text import seen_tokens

# Queries [R, N, D, L] with keys and values [R, K, D, L], and segments [R, L], to what each token sees [R, N, D, L]; it
# also takes the `causal` and `window` of `Segments`.
Kernel: TypeAlias = Callable[..., jax.Array]

_LANES = 128  # tokens: the kernels take rows of a multiple
_BLOCKS = (512, 384, 256, 128)  # tokens that a kernel holds at a time: the most that divide a row
_LOCAL_BLOCK = 256  # the most in a layer of windows, where the row has blocks to skip
_HEAD_SIZE = 8  # or a multiple: cuDNN takes no others
_OLDER_TPUS = ("TPU v2", "TPU v3", "TPU v4")
_CUDNN_HEADS = ((9.0, 256), (8.0, 128))  # compute capability from which on, and the largest head that cuDNN takes


@dataclasses.dataclass(frozen=True)
class Segments:
    """Tokens of a row see those with the same number; and the kernel that attends so.

    Attributes:
      causal: whether a token sees none behind it.
      window: how far before it a token sees, and behind it where it sees any; None: the whole text.
    """

    ids_RL: jax.Array
    kernel: Kernel
    causal: bool = False
    window: int | None = None


def check(form: str, dtype: str, head_size: int, rate: float, has_bias: bool = False) -> None:
    """Checks that a kernel can compute attention that is to be fused.

    Args:
      rate: of dropout on attention's weights.
      has_bias: whether scores have a bias by distance.
    """
    if form == "fused" and (reason := _refusal(dtype, head_size, rate, has_bias)):
        raise UserError(f"config.model.attention=fused: {reason}")


def check_device(form: str, device: Any, head_size: int) -> None:
    """Checks that a device has a kernel for heads of a size, where attention is to be fused."""
    if form == "fused" and _kernel_of(device, head_size) is None:
        problem = (
            f"no kernel for a device of kind '{device.device_kind}' and heads of {head_size} (TPUs have one from v5e"
        )
        raise UserError(f"config.model.attention=fused: {problem} on, GPUs from capability 8.0 on): set it to auto")


def kernel_for(form: str, dtype: str, head_size: int, rate: float, has_bias: bool = False) -> Kernel | None:
    """The kernel of the devices that a program is traced for; None where attention is to be plain."""
    if form == "plain" or _refusal(dtype, head_size, rate, has_bias):
        return None
    return _kernel_of(traced_device(), head_size)


def attend(heads: Heads, segments: Segments) -> jax.Array:
    """What each token sees of its row, [R, N, D, L]; keys and values are [R, K, D, L], and K divides N."""
    L = heads[0].shape[3]
    padding = -L % _LANES

    def padded(x: jax.Array, value: int = 0) -> jax.Array:
        return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, padding)], constant_values=value)

    # What fills a row up sees itself alone: no row of a softmax is empty.
    ids_RL = padded(segments.ids_RL, -1)
    kernel = functools.partial(segments.kernel, causal=segments.causal, window=segments.window)
    return _on_own_rows(kernel)(tuple(map(padded, heads)), ids_RL)[..., :L]


def splash(
    heads: Heads, segments_RL: jax.Array, causal: bool = False, window: int | None = None, interpret: bool = False
) -> jax.Array:
    """The kernel of TPUs; `interpret` runs it on a CPU, slowly."""
    from jax.experimental.pallas.ops.tpu import splash_attention as tpu

    query_RNDL, key_RKDL, value_RKDL = heads
    _, N, D, L = query_RNDL.shape
    is_local = window is not None and window < L and L > 2 * _LOCAL_BLOCK
    block = next(size for size in _BLOCKS if L % size == 0 and (size <= _LOCAL_BLOCK or not is_local))
    # Nothing is transposed.
    layouts: dict[str, Any] = dict.fromkeys(("q_layout", "k_layout", "v_layout"), tpu.QKVLayout.SEQ_MINOR)
    blocks: dict[str, Any] = dict.fromkeys(("block_q", "block_kv", "block_q_dkv", "block_kv_dkv"), block)
    # One backward kernel takes less time than two, but goes over the blocks that no window has, and keeps the gradient
    # of queries once for every block of keys.
    blocks |= dict.fromkeys(("block_q_dq", "block_kv_dq"), block if is_local else None)
    sizes = tpu.BlockSizes(**blocks, **layouts, use_fused_bwd_kernel=not is_local)
    mask: Any = tpu.CausalMask((L, L)) if causal else tpu.FullMask((L, L))
    if window is not None:
        mask = tpu.LocalMask((L, L), (window, 0 if causal else window), 0)
    row = tpu.make_splash_mha(
        tpu.MultiHeadMask([mask] * N), block_sizes=sizes, head_shards=1, q_seq_shards=1, interpret=interpret
    )
    scaled_RNDL = (query_RNDL.astype(jnp.float32) / D**0.5).astype(query_RNDL.dtype)
    last = (x.swapaxes(2, 3) for x in (scaled_RNDL, key_RKDL, value_RKDL))
    mean_RNLD: Any = jax.vmap(row)(*last, tpu.SegmentIds(segments_RL, segments_RL))
    return mean_RNLD.swapaxes(2, 3)


def cudnn(
    heads: Heads,
    segments_RL: jax.Array,
    causal: bool = False,
    window: int | None = None,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """The kernel of GPUs; `implementation="xla"` says the same without it."""
    mask_R1LM = seen_tokens(segments_RL, causal, window)[:, None]
    by_token = (x.transpose(0, 3, 1, 2) for x in heads)
    seen_RLND = jax.nn.dot_product_attention(*by_token, mask=mask_R1LM, implementation=implementation)
    return seen_RLND.transpose(0, 2, 3, 1)


def _refusal(dtype: str, head_size: int, rate: float, has_bias: bool) -> str:
    """Why no kernel computes such attention; empty where one does."""
    reasons = {
        "kernels have no bias by the distance of tokens, which this family has: set it to auto": has_bias,
        f"kernels have no dropout on attention, which is {rate}: set config.model.attention_dropout=0 or auto": rate,
        f"kernels compute in bfloat16, and config.model.dtype is {dtype}: set it to auto": dtype != "bfloat16",
        f"kernels take heads of a multiple of {_HEAD_SIZE}, and these have {head_size}: set it to auto": (
            head_size % _HEAD_SIZE
        ),
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def _kernel_of(device: Any, head_size: int) -> Kernel | None:
    """The kernel that a device has; it may be one of an abstract mesh, which knows its kind alone."""
    if device.platform == "tpu":
        return None if device.device_kind in _OLDER_TPUS else splash
    if device.platform in ("gpu", "cuda"):
        capability = float(jax.local_devices()[0].compute_capability)
        most = next((size for least, size in _CUDNN_HEADS if capability >= least), 0)
        return cudnn if head_size <= most else None
    return None


def _on_own_rows(kernel: Kernel) -> Kernel:
    """The kernel on the rows that each device has: a compiler cannot share a kernel out by itself."""
    if jax.sharding.get_abstract_mesh().empty:
        return kernel

    def call(heads: Heads, ids_RL: jax.Array) -> jax.Array:
        rows = P(*jax.typeof(heads[0]).sharding.spec[:1])
        return jax.shard_map(kernel, in_specs=(rows, rows), out_specs=rows, check_vma=False)(heads, ids_RL)

    return call

"""The encoder of BERT (Devlin et al. 2019), so that published weights fit: post-LN, learned positions, erf GELU.

With `pre_norm` each LayerNorm stands before its sublayer instead, which trains more steadily from nothing.

The layers are one module whose parameters have a leading axis, and `jax.lax.scan` goes over it. So a model of any depth
compiles as fast as a model of one layer.

Letters of shapes beside those of `text`: N heads, D head size, M the tokens attended to.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import PartitionSpec as P

from retrieval.errors import UserError, multiples, unknown_name
from retrieval.models import cpu_attention, fused_attention
from retrieval.models.attention import attend
from retrieval.models.dropout import dropout, split
from retrieval.models.fused_attention import FORMS, Segments
from retrieval.models.gelu import gelu
from retrieval.models.layer_norm import LayerNorm
from retrieval.models.products import FACTORS, SAME, columns, factor_type, times
from retrieval.models.text import Text, lookup, same_text
from retrieval.runtime.arrays import is_on_cpu

# Two standard deviations are cut off and the rest is not rescaled, as in BERT's own code.
INIT = nnx.initializers.truncated_normal(0.02)

DTYPES = ("float32", "bfloat16")

# What the forward pass of a layer keeps for the backward pass; the rest is computed again, and parameters that are
# sharded over devices are gathered again.
REMAT = {
    "none": jax.checkpoint_policies.everything_saveable,
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # products with weights, not attention
    "full": jax.checkpoint_policies.nothing_saveable,  # a layer's input alone
}
AUTO = "auto"
# A larger encoder, in layers times hidden size, trains about as fast on a CPU with `dots`, in much less memory.
_SMALL = 512


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes of a Transformer; BERT-base is (30522, 12, 768, 12, 3072, 512).

    Attributes:
      max_length: number of positions, the longest text in tokens (a row of packed texts may be longer).
      type_vocab_size: number of token types; with one of them every token has it, whatever its text says.
      layer_norm_epsilon: 1e-12 in BERT, 1e-5 in RoBERTa.
      pre_norm: whether a LayerNorm stands before each sublayer, and one after the last layer; BERT has them after each
        residual sum and after the embeddings.
      dropout: rate after the embeddings and on the output of every sublayer.
      attention_dropout: rate on attention probabilities; -1: as `dropout`.
      dtype: 'float32' or 'bfloat16', of the computation; parameters, sums with biases, softmax and LayerNorm are
        always float32.
      products: a name in `FACTORS`, of what is multiplied with weights, and in attention on a CPU.
      attention: a name in `FORMS`; where the devices have no kernel for it, it is plain.
      remat: a name in `REMAT`: memory of training for time.
      unroll: layers in one turn of the loop over layers. More compile longer. With 0 it is one where the backward pass
        computes again, for more would keep more, and up to four elsewhere.
    """

    vocab_size: int
    num_layers: int
    hidden_size: int
    num_heads: int
    mlp_size: int
    max_length: int
    type_vocab_size: int = 2
    layer_norm_epsilon: float = 1e-12
    dropout: float = 0.1
    attention_dropout: float = -1
    dtype: str = "float32"
    products: str = SAME
    attention: str = "plain"
    remat: str = "none"
    unroll: int = 1
    pre_norm: bool = False

    def __post_init__(self):
        if self.hidden_size % self.num_heads:
            raise UserError(
                f"transformer: hidden_size {self.hidden_size} is not a multiple of num_heads {self.num_heads}: take "
                f"{multiples(self.hidden_size, self.num_heads)}"
            )
        for name, rate in (("dropout", self.dropout), ("attention_dropout", self.attention_rate)):
            if not 0 <= rate < 1:
                raise UserError(f"transformer: {name} {rate} is not in [0, 1)")
        if self.dtype not in DTYPES:
            raise unknown_name("dtype", self.dtype, DTYPES)
        if self.products not in FACTORS:
            raise unknown_name("format of products", self.products, FACTORS)
        if self.remat not in REMAT:
            raise unknown_name("remat", self.remat, REMAT)
        if self.attention not in FORMS:
            raise unknown_name("form of attention", self.attention, FORMS)
        fused_attention.check(self.attention, self.dtype, self.head_size, self.attention_rate)
        if self.num_layers < 1 or self.unroll < 0:
            raise UserError(
                f"transformer: num_layers {self.num_layers} must be at least 1, and unroll {self.unroll} at least 0"
            )

    @property
    def head_size(self) -> int:
        """The size of a head's vectors."""
        return self.hidden_size // self.num_heads

    @property
    def attention_rate(self) -> float:
        """The rate of dropout on attention probabilities."""
        return self.dropout if self.attention_dropout == -1 else self.attention_dropout


def remat_for(remat: str, num_layers: int, hidden_size: int) -> str:
    """The name in `REMAT` that a config means for an encoder of such a size."""
    if remat != AUTO:
        return remat
    return "none" if num_layers * hidden_size <= _SMALL else "dots"


class Transformer(nnx.Module):
    """Token ids to one vector per token."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        self.token_embedding = nnx.Embed(config.vocab_size, config.hidden_size, embedding_init=INIT, rngs=rngs)
        self.position_embedding = nnx.Embed(config.max_length, config.hidden_size, embedding_init=INIT, rngs=rngs)
        self.type_embedding = nnx.Embed(config.type_vocab_size, config.hidden_size, embedding_init=INIT, rngs=rngs)
        if config.pre_norm:
            self.final_norm = layer_norm(config, rngs)
        else:
            self.embedding_norm = layer_norm(config, rngs)
        self.layers = stack([Layer(config, rngs) for _ in range(config.num_layers)])

    def __call__(self, text: Text, *, dropout_key: jax.Array | None) -> jax.Array:
        """Hidden states [R, L, H] in `config.dtype`; those of padding mean nothing.

        Args:
          dropout_key: the same key gives the same masks on any number of devices; None for no dropout.

        Raises:
          UserError: the texts are longer than `config.max_length`.
        """
        config = self.config
        if text.starts_GC is None and text.ids_RL.shape[1] > config.max_length:
            raise UserError(
                f"texts of {text.ids_RL.shape[1]} tokens, but the encoder's max_length is {config.max_length}"
            )
        keys = split(dropout_key, config.num_layers + 1)
        x_RLH = lookup(self.token_embedding.embedding[...], text.ids_RL)
        x_RLH += lookup(self.position_embedding.embedding[...], text.positions_RL)
        types_RL = text.types_RL if config.type_vocab_size > 1 else jnp.zeros_like(text.types_RL)
        x_RLH += lookup(self.type_embedding.embedding[...], types_RL)
        x_RLH = x_RLH if config.pre_norm else self.embedding_norm(x_RLH)
        x_RLH = dropout(x_RLH.astype(config.dtype), config.dropout, keys[0])
        rate = config.attention_rate if dropout_key is not None else 0.0
        kernel = fused_attention.kernel_for(config.attention, config.dtype, config.head_size, rate)
        sees = Segments(text.segments_RL, kernel) if kernel else same_text(text)[:, None]
        x_RLH = through_layers(self.layers, config, x_RLH, keys[1:], lambda layer, x, _, key: layer(x, sees, key))
        return self.final_norm(x_RLH).astype(config.dtype) if config.pre_norm else x_RLH


class Layer(nnx.Module):
    """Self-attention and a two-layer MLP, each followed by dropout, the residual sum and LayerNorm."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        self.attention = Attention(config, rngs)
        self.attention_norm = layer_norm(config, rngs)
        self.mlp_in = dense(config.hidden_size, config.mlp_size, config, rngs)
        self.mlp_out = dense(config.mlp_size, config.hidden_size, config, rngs)
        self.mlp_norm = layer_norm(config, rngs)

    def __call__(self, x_RLH: jax.Array, sees: jax.Array | Segments, dropout_key: jax.Array | None) -> jax.Array:
        probability_key, *keys = split(dropout_key, 3)
        x_RLH = self._add(x_RLH, lambda x: self.attention(x, sees, probability_key), self.attention_norm, keys[0])
        return self._add(x_RLH, self._mlp, self.mlp_norm, keys[1])

    def _mlp(self, x_RLH: jax.Array) -> jax.Array:
        return self.mlp_out(gelu(self.mlp_in(x_RLH)))

    def _add(
        self,
        x_RLH: jax.Array,
        sublayer: Callable[[jax.Array], jax.Array],
        norm: LayerNorm,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """The residual sum of a sublayer, with its LayerNorm where the config has it."""
        rate, dtype = self.config.dropout, self.config.dtype
        if self.config.pre_norm:
            return x_RLH + dropout(sublayer(norm(x_RLH).astype(dtype)), rate, dropout_key)
        return norm(x_RLH + dropout(sublayer(x_RLH), rate, dropout_key)).astype(dtype)


class Attention(nnx.Module):
    """Multi-head attention; of its own tokens, unless it is given the keys and values of others."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        self.query = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.key = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.value = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.output = dense(config.hidden_size, config.hidden_size, config, rngs)

    def __call__(self, x_RLH: jax.Array, sees: jax.Array | Segments, dropout_key: jax.Array | None) -> jax.Array:
        return self.attend(x_RLH, *self.keys_and_values(x_RLH), sees, dropout_key)

    def keys_and_values(self, x_RMH: jax.Array) -> tuple[jax.Array, jax.Array]:
        """What tokens offer to those that attend to them, both [R, N, D, M]."""
        return self._heads(self.key, x_RMH), self._heads(self.value, x_RMH)

    def attend(
        self,
        x_RLH: jax.Array,
        key_RNDM: jax.Array,
        value_RNDM: jax.Array,
        sees: jax.Array | Segments,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """Attention of the tokens `x` to those with these keys and values.

        Args:
          sees: whom each token sees, a mask as `attention.attend` has it; or the segments of a row and their kernel.
        """
        config, query_RNDL = self.config, self._heads(self.query, x_RLH)
        given = query_RNDL, key_RNDM, value_RNDM
        if isinstance(sees, Segments):
            seen_RNDL = fused_attention.attend(*given, sees)
        elif config.dtype == "float32" and is_on_cpu():
            factor = factor_type(config.dtype, config.products)
            seen_RNDL = cpu_attention.attend(*given, sees, config.attention_rate, dropout_key, factor)
        else:
            seen_RNDL = attend(*given, sees, config.attention_rate, dropout_key)
        # The axes first: on a TPU a reshape before them costs copies, 1.7 % of the paper's step on a v5e.
        return self.output(seen_RNDL.transpose(0, 3, 1, 2).reshape(x_RLH.shape))

    def _heads(self, layer: "Linear", x_RLH: jax.Array) -> jax.Array:
        """Each head's part of what a layer makes, [R, N, D, L]; a TPU would fill up a last axis as short as D."""
        heads = self.config.num_heads
        if is_on_cpu():
            return layer(x_RLH).reshape(*x_RLH.shape[:2], heads, -1).transpose(0, 2, 3, 1)
        y_RHL = layer.columns(x_RLH)
        return y_RHL.reshape(len(y_RHL), heads, -1, y_RHL.shape[2])


def stack(layers: list[nnx.Module]) -> nnx.Module:
    """One module for all: its parameters have a leading axis, of layers."""
    graphdefs, states = zip(*map(nnx.split, layers))
    return nnx.merge(graphdefs[0], jax.tree.map(lambda *leaves: jnp.stack(leaves), *states))


def through_layers(
    layers: nnx.Module,
    config: TransformerConfig,
    x_RLH: Any,
    keys: jax.Array | list[None],
    call: Callable[[Any, Any, jax.Array, Any], Any],
) -> Any:
    """`x = call(layer, x, number, key)` for one layer after the other, of those that `stack` made one module.

    Args:
      x_RLH: hidden states, or a tree with what else goes from layer to layer.
      keys: of dropout, one for each layer.
    """
    graphdef, params = nnx.split(layers)

    def step(x_RLH: Any, given: tuple) -> tuple[Any, None]:
        params, number, key = given
        params = jax.tree.map(lambda leaf: gathered(leaf, config.dtype), params)
        return call(nnx.merge(graphdef, params), x_RLH, number, key), None

    # Inside a loop nothing can be merged with the backward pass, which CSE prevention is there to prevent.
    step = jax.checkpoint(step, policy=_kept(config.remat), prevent_cse=False)
    given = (params, jnp.arange(config.num_layers), None if keys[0] is None else keys)
    # So the loop has to stay one: unrolled whole, the compiler would keep what is to be computed again.
    most = config.num_layers if config.remat == "none" else max(1, config.num_layers // 2)
    unroll = config.unroll or (4 if config.remat == "none" else 1)
    return jax.lax.scan(step, x_RLH, given, unroll=min(unroll, most))[0]


class Linear(nnx.Linear):
    """A linear layer with BERT's initialisation, that multiplies as the config says and adds the bias in float32."""

    def __init__(self, size_in: int, size_out: int, config: TransformerConfig, rngs: nnx.Rngs):
        super().__init__(size_in, size_out, dtype=config.dtype, kernel_init=INIT, rngs=rngs)
        self.config = config

    def __call__(self, x: jax.Array) -> jax.Array:
        """[..., size in] to [..., size out], in `dtype`."""
        assert self.bias is not None, "every layer of BERT has one"
        y = times(x, self.kernel[...], self.config.dtype, self.config.products)
        # The bias's gradient is a sum over all tokens: in bfloat16 it stops growing at 256 terms of a size.
        return (y.astype(jnp.float32) + self.bias[...]).astype(self.dtype)

    def columns(self, x_RLI: jax.Array) -> jax.Array:
        """[R, L, size in] to [R, size out, L]: the same, with the tokens last."""
        assert self.bias is not None
        y_ROL = columns(x_RLI, self.kernel[...], self.config.dtype, self.config.products)
        return (y_ROL.astype(jnp.float32) + self.bias[...][:, None]).astype(self.dtype)


def dense(size_in: int, size_out: int, config: TransformerConfig, rngs: nnx.Rngs) -> Linear:
    """A linear layer with BERT's initialisation; computes in `config.dtype`."""
    return Linear(size_in, size_out, config, rngs)


def token_logits(hidden_RLH: jax.Array, table_VH: jax.Array) -> jax.Array:
    """The output layer that is the token embeddings once more: logits of all tokens, float32 [R, L, V]."""
    table_VH = table_VH.astype(hidden_RLH.dtype)
    return jnp.einsum("rlh,vh->rlv", hidden_RLH, table_VH, preferred_element_type=jnp.float32)


def layer_norm(config: TransformerConfig, rngs: nnx.Rngs) -> LayerNorm:
    """LayerNorm; float32 out."""
    return LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon, rngs=rngs)


def gathered(x: jax.Array, matrix_dtype: str = "float32") -> jax.Array:
    """A parameter as every device needs it to compute. A sharded one is gathered, others stay as they are.

    Matrices travel in the type that they are multiplied in. The gradient comes back sharded as the parameter is.
    """
    if not any(jax.typeof(x).sharding.spec):
        return x
    return jax.reshard(x.astype(matrix_dtype) if x.ndim > 1 else x, P())


def _kept(remat: str) -> Callable[..., bool]:
    return lambda primitive, *given, **settings: (
        primitive.name != "reshard" and REMAT[remat](primitive, *given, **settings)
    )

"""One encoder with the switches of `architecture`, so that published weights of every family fit.

By default it is BERT's (Devlin et al. 2019): post-LN, learned positions, erf GELU.

The layers are one module, which `layer_loop` goes through.

Letters of shapes beside those of `text`: N heads, D head size, M the tokens attended to.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import is_on_cpu
from retrieval.models import cpu_attention, fused_attention, lora, positions
from retrieval.models.attention import attend, plain
from retrieval.models.dropout import dropout, split
from retrieval.models.fused_attention import Segments
from retrieval.models.gelu import gelu, gelu_tanh
from retrieval.models.layer_loop import gathered, stack, through_layers
from retrieval.models.norms import LayerNorm, RMSNorm
from retrieval.models.positions import RelativeBias, Rotation
from retrieval.models.products import columns, factor_type, times
from retrieval.models.text import Text, lookup, position_vectors, seen_tokens, token_vectors
from retrieval.models.transformer_config import TransformerConfig

# Two standard deviations are cut off and the rest is not rescaled, as in BERT's own code.
INIT = nnx.initializers.truncated_normal(0.02)

ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "relu": jax.nn.relu, "silu": jax.nn.silu}


class Biased(NamedTuple):
    """Whom each token sees, and what is added to its scores."""

    mask_R1LM: jax.Array
    bias_RNLM: jax.Array


# Whom each token sees: a mask as `attention.attend` has it, perhaps with a bias; or the segments of a row and a kernel.
Mask: TypeAlias = jax.Array | Biased | Segments


class Transformer(nnx.Module):
    """Token ids to one vector per token."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.config = config
        switches, size = config.architecture, config.hidden_size
        table = functools.partial(nnx.Embed, features=size, embedding_init=INIT, rngs=rngs)
        self.token_embedding = table(config.vocab_size)
        if switches.positions == "learned":
            self.position_embedding = table(config.max_length)
        if switches.token_types:
            self.type_embedding = table(config.type_vocab_size)
        if switches.embedding_norm:
            self.embedding_norm = norm(config, size, rngs)
        if switches.final_norm:
            self.final_norm = norm(config, size, rngs)
        if switches.relative_bias:
            self.relative_bias = RelativeBias(config.num_heads, rngs)
        self.layers = stack([Layer(config, rngs) for _ in range(config.num_layers)])

    def __call__(self, text: Text, *, dropout_key: jax.Array | None) -> jax.Array:
        """Hidden states [R, L, H] in `config.dtype`; those of padding mean nothing.

        Args:
          dropout_key: the same key gives the same masks on any number of devices; None for no dropout.

        Raises:
          UserError: the texts are longer than `config.max_length`, where positions are learned.
        """
        config, switches = self.config, self.config.architecture
        keys = split(dropout_key, config.num_layers + 1)
        x_RLH = dropout(self._embed(text), config.dropout, keys[0])
        rate = config.attention_rate if dropout_key is not None else 0.0
        # Local layers and others may see other tokens, by other angles.
        kinds = {is_local: self._call(text, rate, is_local) for is_local in set(switches.locality())}
        calls = [kinds[is_local] for is_local in switches.locality()]
        x_RLH = through_layers(self.layers, config, x_RLH, keys[1:], *calls)
        return self.final_norm(x_RLH).astype(config.dtype) if switches.final_norm else x_RLH

    def _embed(self, text: Text) -> jax.Array:
        config, switches = self.config, self.config.architecture
        x_RLH = token_vectors(self.token_embedding.embedding[...], text.ids_RL)
        if switches.embedding_scale:
            x_RLH *= config.hidden_size**0.5
        if switches.positions == "learned":
            length = text.ids_RL.shape[1]
            # A length that is a symbol has its bound from whoever exports.
            if text.starts_GC is None and isinstance(length, int) and length > config.max_length:
                raise UserError(f"texts of {length} tokens, but the encoder's max_length is {config.max_length}")
            x_RLH += position_vectors(self.position_embedding.embedding[...], text, switches.padding_id)
        if switches.token_types:
            types_RL = text.types_RL if config.type_vocab_size > 1 else jnp.zeros_like(text.types_RL)
            x_RLH += lookup(self.type_embedding.embedding[...], types_RL)
        return (self.embedding_norm(x_RLH) if switches.embedding_norm else x_RLH).astype(config.dtype)

    def _call(self, text: Text, rate: float, is_local: bool) -> Callable:
        """What the layers do that are local, or those that are not; `rate` is of dropout on attention."""
        config, switches = self.config, self.config.architecture
        rotation = None
        if switches.positions == "rope":
            theta = (switches.local_theta if is_local else 0) or switches.rope_theta
            scaling = "" if is_local and switches.local_theta else switches.rope_scaling
            rotation = positions.rotation(text.positions_RL, positions.frequencies(config.head_size, theta, scaling))
        mask = self._mask(text, rate, switches.window if is_local else None)
        return lambda layer, x, number, key: layer(x, mask, key, rotation, number)

    def _mask(self, text: Text, rate: float, window: int | None) -> Mask:
        config, switches = self.config, self.config.architecture
        settings = config.attention, config.dtype, config.head_size, rate, switches.relative_bias
        if text.unattended_RL is None and (kernel := fused_attention.kernel_for(*settings)):
            return Segments(text.segments_RL, kernel, switches.causal, window)
        mask_R1LM = seen_tokens(text.segments_RL, switches.causal, window, text.unattended_RL)[:, None]
        return Biased(mask_R1LM, self.relative_bias(mask_R1LM.shape[3])) if switches.relative_bias else mask_R1LM


class Layer(nnx.Module):
    """Self-attention and an MLP, each with dropout, the residual sum and norms where the architecture has them."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        switches, size = config.architecture, config.hidden_size
        self.attention = Attention(config, rngs)
        self.attention_norm = norm(config, size, rngs)
        self.mlp_in = dense(size, config.mlp_size, config, rngs, "mlp_in")
        if switches.gated:
            self.mlp_gate = dense(size, config.mlp_size, config, rngs, "mlp_gate")
        self.mlp_out = dense(config.mlp_size, size, config, rngs, "mlp_out")
        self.mlp_norm = norm(config, size, rngs)
        if switches.norms == "around":
            self.attention_out_norm = norm(config, size, rngs)
            self.mlp_out_norm = norm(config, size, rngs)

    def __call__(
        self,
        x_RLH: jax.Array,
        mask: Mask,
        dropout_key: jax.Array | None,
        rotation: Rotation | None = None,
        number: jax.Array | int = 1,
    ) -> jax.Array:
        """Hidden states to hidden states, [R, L, H].

        Args:
          rotation: the angles of positions, where they are rotary.
          number: of the layer, from 0 on.
        """
        first_norm, (probability_key, *keys) = self.config.architecture.first_norm, split(dropout_key, 3)

        def attention(x_RLH: jax.Array) -> jax.Array:
            return self.attention(x_RLH, mask, probability_key, rotation)

        def attention_norm(x_RLH: jax.Array) -> jax.Array:
            normed = self.attention_norm(x_RLH)
            return normed if first_norm else jnp.where(number == 0, x_RLH, normed)

        x_RLH = self._add(x_RLH, attention, attention_norm, getattr(self, "attention_out_norm", None), keys[0])
        return self._add(x_RLH, self._mlp, self.mlp_norm, getattr(self, "mlp_out_norm", None), keys[1])

    def _mlp(self, x_RLH: jax.Array) -> jax.Array:
        activation = ACTIVATIONS[self.config.architecture.activation]
        gated = self.config.architecture.gated
        hidden = activation(self.mlp_gate(x_RLH)) * self.mlp_in(x_RLH) if gated else activation(self.mlp_in(x_RLH))
        return self.mlp_out(hidden)

    def _add(
        self,
        x_RLH: jax.Array,
        sublayer: Callable[[jax.Array], jax.Array],
        in_norm: Callable[[jax.Array], jax.Array],
        out_norm: Callable[[jax.Array], jax.Array] | None,
        dropout_key: jax.Array | None,
    ) -> jax.Array:
        """The residual sum of a sublayer, with its norms where the architecture has them."""
        rate, dtype = self.config.dropout, self.config.dtype
        if self.config.architecture.norms == "after":
            return in_norm(x_RLH + dropout(sublayer(x_RLH), rate, dropout_key)).astype(dtype)
        y_RLH = sublayer(in_norm(x_RLH).astype(dtype))
        return x_RLH + dropout(out_norm(y_RLH).astype(dtype) if out_norm else y_RLH, rate, dropout_key)


class Attention(nnx.Module):
    """Multi-head attention; of its own tokens, unless it is given the keys and values of others."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        size, of_queries = config.hidden_size, config.num_heads * config.head_size
        of_keys = config.kv_heads * config.head_size
        self.query = dense(size, of_queries, config, rngs, "query")
        self.key = dense(size, of_keys, config, rngs, "key")
        self.value = dense(size, of_keys, config, rngs, "value")
        self.output = dense(of_queries, size, config, rngs, "output")
        if config.architecture.qk_norm:
            self.query_norm = norm(config, config.head_size, rngs)
            self.key_norm = norm(config, config.head_size, rngs)

    def __call__(
        self, x_RLH: jax.Array, mask: Mask, dropout_key: jax.Array | None, rotation: Rotation | None = None
    ) -> jax.Array:
        return self.attend(x_RLH, *self.keys_and_values(x_RLH, rotation), mask, dropout_key, rotation)

    def keys_and_values(self, x_RMH: jax.Array, rotation: Rotation | None = None) -> tuple[jax.Array, jax.Array]:
        """What tokens offer to those that attend to them, both [R, K, D, M] of K heads, each of which N / K share."""
        return self._placed(self._heads(self.key, x_RMH), "key_norm", rotation), self._heads(self.value, x_RMH)

    def attend(
        self,
        x_RLH: jax.Array,
        key_RKDM: jax.Array,
        value_RKDM: jax.Array,
        mask: Mask,
        dropout_key: jax.Array | None,
        rotation: Rotation | None = None,
    ) -> jax.Array:
        """Attention of the tokens `x` to those with these keys and values."""
        config, rate = self.config, self.config.attention_rate
        query_RNDL = self._placed(self._heads(self.query, x_RLH), "query_norm", rotation)
        if (size := config.architecture.score_size) not in (0, config.head_size):  # attention divides by a head's
            query_RNDL = (query_RNDL.astype(jnp.float32) * (config.head_size / size) ** 0.5).astype(query_RNDL.dtype)
        heads = query_RNDL, self._for_every_head(key_RKDM), self._for_every_head(value_RKDM)
        if isinstance(mask, Segments):
            seen_RNDL = fused_attention.attend((query_RNDL, key_RKDM, value_RKDM), mask)
        elif isinstance(mask, Biased):
            seen_RNDL = plain(heads, mask.mask_R1LM, rate, dropout_key, mask.bias_RNLM)
        elif config.dtype == "float32" and is_on_cpu():
            factor = factor_type(config.dtype, config.matmul_dtype)
            seen_RNDL = cpu_attention.attend(heads, mask, rate, dropout_key, factor)
        else:
            seen_RNDL = attend(heads, mask, rate, dropout_key)
        # The axes first: on a TPU a reshape before them costs copies, 1.7 % of the paper's step on a v5e.
        return self.output(seen_RNDL.transpose(0, 3, 1, 2).reshape(*x_RLH.shape[:2], -1))

    def _heads(self, layer: "Linear", x_RLH: jax.Array) -> jax.Array:
        """Each head's part of what a layer makes, [R, N, D, L]; a TPU would fill up a last axis as short as D."""
        size = self.config.head_size
        if is_on_cpu():
            return layer(x_RLH).reshape(*x_RLH.shape[:2], -1, size).transpose(0, 2, 3, 1)
        y_RHL = layer(x_RLH, columns)
        return y_RHL.reshape(y_RHL.shape[0], -1, size, y_RHL.shape[2])

    def _placed(self, x_RNDL: jax.Array, name: str, rotation: Rotation | None) -> jax.Array:
        """Queries or keys with their norm and their angles, where the architecture has these."""
        if self.config.architecture.qk_norm:
            x_RNDL = getattr(self, name)(x_RNDL, axis=2).astype(x_RNDL.dtype)
        return x_RNDL if rotation is None else positions.rotate(x_RNDL, rotation)

    def _for_every_head(self, x_RKDM: jax.Array) -> jax.Array:
        """Keys or values once for each of the heads that share them, [R, N, D, M]."""
        R, K, D, M = x_RKDM.shape
        if (N := self.config.num_heads) == K:
            return x_RKDM
        return jnp.broadcast_to(x_RKDM[:, :, None], (R, K, N // K, D, M)).reshape(R, N, D, M)


class Linear(nnx.Linear):
    """A linear layer with BERT's initialisation, that multiplies as the config says and adds a bias in float32."""

    def __init__(self, size_in: int, size_out: int, config: TransformerConfig, rngs: nnx.Rngs, bias: bool = True):
        super().__init__(size_in, size_out, use_bias=bias, dtype=config.dtype, kernel_init=INIT, rngs=rngs)
        self.config = config

    def __call__(self, x: jax.Array, product: Callable[..., jax.Array] = times) -> jax.Array:
        """[..., size in] to [..., size out], in `dtype`; by `products.columns` [R, L, size in] to [R, size out, L]."""
        y = product(x, self.kernel[...], self.config.dtype, self.config.matmul_dtype)
        if hasattr(self, lora.A):
            y = y.astype(jnp.float32) + lora.branch(self, x, product)
        if self.bias is not None:
            # The bias's gradient is a sum over all tokens: in bfloat16 it stops growing at 256 terms of a size.
            y = y.astype(jnp.float32) + (self.bias[...][:, None] if product is columns else self.bias[...])
        return y.astype(self.dtype)


def dense(size_in: int, size_out: int, config: TransformerConfig, rngs: nnx.Rngs, name: str = "") -> Linear:
    """A linear layer with BERT's initialisation; computes in `config.dtype`.

    Args:
      name: of one in `architecture.MATRICES`, which has a bias where the architecture says so; others have one.
    """
    return Linear(size_in, size_out, config, rngs, not name or name in config.architecture.biases)


def token_logits(hidden_RLH: jax.Array, table_VH: jax.Array) -> jax.Array:
    """The output layer that is the token embeddings once more: logits of all tokens, float32 [R, L, V]."""
    table_VH = gathered(table_VH, hidden_RLH.dtype).astype(hidden_RLH.dtype)
    return jnp.einsum("rlh,vh->rlv", hidden_RLH, table_VH, preferred_element_type=jnp.float32)


def layer_norm(config: TransformerConfig, rngs: nnx.Rngs) -> LayerNorm:
    """LayerNorm of hidden states, with scale and bias; float32 out."""
    return LayerNorm(config.hidden_size, epsilon=config.layer_norm_epsilon, rngs=rngs)


def norm(config: TransformerConfig, size: int, rngs: nnx.Rngs) -> LayerNorm | RMSNorm:
    """The norm of the architecture, of vectors of a size; float32 out."""
    kind, epsilon = config.architecture.norm, config.layer_norm_epsilon
    if kind.startswith("rms"):
        return RMSNorm(size, epsilon=epsilon, plus_one=kind == "rms_plus_one")
    return LayerNorm(size, epsilon=epsilon, use_bias=kind == "layer", rngs=rngs)

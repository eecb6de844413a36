"""An encoder-decoder Transformer, which writes a text from another (a query from a passage).

The encoder is that of the towers. Its norms come before the sublayers, or after them where it starts from an own
encoder. The decoder is pre-LN with learned positions (Vaswani et al. 2017; Xiong et al. 2020). One table of token
embeddings serves both and the output layer.

Letters of shapes beside those of `text`: R sources, M tokens of a source, L tokens of a text that is written, W texts
that are written of each source at a time, T tokens that a text has at most, V vocabulary, K layers, N heads, D head
size.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.common.runtime.filler import FILLER
from retrieval.models.dropout import dropout, split
from retrieval.models.gelu import gelu
from retrieval.models.layer_loop import stack, through_layers
from retrieval.models.norms import LayerNorm
from retrieval.models.text import Text, lookup, token_vectors
from retrieval.models.transformer import INIT, Attention, Transformer, dense, layer_norm, token_logits
from retrieval.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class WriterConfig:
    """The decoder; its other sizes are the encoder's.

    Attributes:
      layers: of the decoder.
      max_length: number of positions, the longest text that can be written, in tokens.
      copy: whether a token may be copied from the source.
    """

    layers: int
    max_length: int
    copy: bool = False


# Of tokens, by a layer's attention: [R, N, D, M] of a source.
KeysValues = tuple[jax.Array, jax.Array]

ArrayAndCache = tuple[jax.Array, jax.Array]

_put = jax.lax.dynamic_update_index_in_dim


class Source(NamedTuple):
    """A source as the decoder sees it.

    Attributes:
      ids_RM: token ids, of padding the first token's.
      mask_R11M: which places hold a token. The first always does: an empty source is one token of padding.
    """

    ids_RM: jax.Array
    mask_R11M: jax.Array
    states_RMH: jax.Array


class Memory(NamedTuple):
    """What writing token by token computes once: the source, and its keys and values (2) in every layer."""

    source: Source
    read_RK2NDM: jax.Array


class EncoderDecoder(nnx.Module):
    """Token ids of a source and of a text to the logits of the token after each."""

    def __init__(self, config: TransformerConfig, writer: WriterConfig, *, rngs: nnx.Rngs):
        self.config = dataclasses.replace(config, num_layers=writer.layers)
        self.writer = writer
        self.encoder = Transformer(config, rngs=rngs)
        self.position_embedding = nnx.Embed(writer.max_length, config.hidden_size, embedding_init=INIT, rngs=rngs)
        self.layers = stack([DecoderLayer(config, rngs) for _ in range(writer.layers)])
        self.norm = layer_norm(config, rngs)
        self.bias = nnx.Param(jnp.zeros(config.vocab_size))
        if writer.copy:
            self.pointer = Pointer(config, rngs)

    def __call__(self, source: Text, ids_RL: jax.Array, dropout_key: jax.Array | None) -> jax.Array:
        """Logits of the token after each, float32 [R, L, V]; with `copy` they are log-probabilities.

        Args:
          source: one text per row.
          ids_RL: the text so far, from its start token on. No logit depends on what follows its token.
        """
        encoder_key, decoder_key = split(dropout_key, 2)
        read, keys = self._read(source, encoder_key), split(decoder_key, self.config.num_layers + 1)
        place_L = jnp.arange(ids_RL.shape[1], dtype=ids_RL.dtype)
        x_RLH = dropout(self._embed(ids_RL, place_L), self.config.dropout, keys[0])
        mask_11LM = (place_L[:, None] >= place_L)[None, None]

        def call(layer: DecoderLayer, x_RLH: jax.Array, _: jax.Array, key: jax.Array | None) -> jax.Array:
            return layer(x_RLH, mask_11LM, layer.source_attention.keys_and_values(read.states_RMH), read, key)

        return self._predict(through_layers(self.layers, self.config, x_RLH, keys[1:], call), read)

    def read(self, source: Text) -> Memory:
        """What `step` needs of the sources; without dropout."""
        read = self._read(source, None)
        heads = self.config.kv_heads, self.config.head_size
        zeros_RK2NDM = _zeros(read.states_RMH, self.config.num_layers, 2, *heads, read.ids_RM.shape[1])

        def call(layer: DecoderLayer, all_layers: jax.Array, number: jax.Array, _: None) -> jax.Array:
            both = jnp.stack(layer.source_attention.keys_and_values(read.states_RMH), axis=1)
            return _put(all_layers, both, number, 1)

        no_keys = [None] * self.config.num_layers
        return Memory(read, through_layers(self.layers, self.config, zeros_RK2NDM, no_keys, call))

    def empty_cache(self, memory: Memory, width: int, length: int) -> jax.Array:
        """Room for keys and values of `width` texts of each source, of `length` tokens: zeros [R, W, K, 2, N, D, T]."""
        return _zeros(memory.read_RK2NDM, width, *memory.read_RK2NDM.shape[1:-1], length)

    def step(self, ids_RW: jax.Array, place: jax.Array, memory: Memory, cache: jax.Array) -> ArrayAndCache:
        """Logits of the token after these, float32 [R, W, V], as `__call__` gives them, and the cache with these in it.

        Args:
          ids_RW: the tokens at `place` of all texts, the start token at place 0; those before are in the cache.
        """
        x_RWH = self._embed(ids_RW, jnp.zeros_like(ids_RW) + place)

        def call(layer: DecoderLayer, carry: ArrayAndCache, number: jax.Array, _: None) -> ArrayAndCache:
            x_RWH, cache = carry
            read_R2NDM = jax.lax.dynamic_index_in_dim(memory.read_RK2NDM, number, 1, keepdims=False)
            past_RW2NDT = jax.lax.dynamic_index_in_dim(cache, number, 2, keepdims=False)
            read = read_R2NDM[:, 0], read_R2NDM[:, 1]
            x_RWH, past_RW2NDT = layer.step(x_RWH, place, past_RW2NDT, read, memory.source)
            return x_RWH, _put(cache, past_RW2NDT, number, 2)

        x_RWH, cache = through_layers(self.layers, self.config, (x_RWH, cache), [None] * self.config.num_layers, call)
        return self._predict(x_RWH, memory.source), cache

    def _read(self, source: Text, dropout_key: jax.Array | None) -> Source:
        states_RMH = self.encoder(source, dropout_key=dropout_key)
        mask_RM = (source.segments_RL > 0) | (jnp.arange(source.ids_RL.shape[1]) == 0)
        return Source(jnp.where(source.ids_RL == FILLER, 0, source.ids_RL), mask_RM[:, None, None], states_RMH)

    def _embed(self, ids_RL: jax.Array, places: jax.Array) -> jax.Array:
        x_RLH = token_vectors(self.encoder.token_embedding.embedding[...], ids_RL)
        x_RLH += lookup(self.position_embedding.embedding[...], places)
        return x_RLH.astype(self.config.dtype)

    def _predict(self, x_RLH: jax.Array, source: Source) -> jax.Array:
        hidden_RLH = self.norm(x_RLH).astype(self.config.dtype)
        logits_RLV = token_logits(hidden_RLH, self.encoder.token_embedding.embedding[...]) + self.bias[...]
        return self.pointer(hidden_RLH, logits_RLV, source) if self.writer.copy else logits_RLV


class DecoderLayer(nnx.Module):
    """Attention to the text so far, attention to the source and a two-layer MLP, each after a LayerNorm."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        self.attention_norm = layer_norm(config, rngs)
        self.attention = Attention(config, rngs)
        self.source_norm = layer_norm(config, rngs)
        self.source_attention = Attention(config, rngs)
        self.mlp_norm = layer_norm(config, rngs)
        self.mlp_in = dense(config.hidden_size, config.mlp_size, config, rngs)
        self.mlp_out = dense(config.mlp_size, config.hidden_size, config, rngs)

    def __call__(
        self, x_RLH: jax.Array, mask_11LM: jax.Array, read: KeysValues, source: Source, dropout_key: jax.Array | None
    ) -> jax.Array:
        """All tokens of a text at a time.

        Args:
          read: of the source, by this layer.
        """
        own_key, dropout_key, *keys = split(dropout_key, 5)
        y_RLH = self.attention(self._normed(self.attention_norm, x_RLH), mask_11LM, own_key)
        x_RLH += dropout(y_RLH, self.config.dropout, dropout_key)
        return self._rest(x_RLH, read, source, keys)

    def step(
        self, x_RWH: jax.Array, place: jax.Array, past_RW2NDT: jax.Array, read: KeysValues, source: Source
    ) -> tuple[jax.Array, jax.Array]:
        """One token of each text: hidden states [R, W, H], and the keys and values of the past with this token."""
        R, W, *_, T = past_RW2NDT.shape
        y_B1H = reshape_rows(self._normed(self.attention_norm, x_RWH), R * W, 1, -1)
        new_B2ND = jnp.stack(self.attention.keys_and_values(y_B1H), axis=1)[..., 0]
        past_B2NDT = _put(reshape_rows(past_RW2NDT, R * W, *past_RW2NDT.shape[2:]), new_B2ND, place, 4)
        mask_111T = (jnp.arange(T) <= place)[None, None, None]
        y_B1H = self.attention.attend(y_B1H, past_B2NDT[:, 0], past_B2NDT[:, 1], mask_111T, None)
        x_RWH = self._rest(x_RWH + reshape_rows(y_B1H, R, W, -1), read, source, [None] * 3)
        return x_RWH, reshape_rows(past_B2NDT, *past_RW2NDT.shape)

    def _rest(self, x_RLH: jax.Array, read: KeysValues, source: Source, keys: list) -> jax.Array:
        """What follows the attention to the text so far. Tokens of a text and texts of a source are alike here."""
        rate = self.config.dropout
        y_RLH = self._normed(self.source_norm, x_RLH)
        y_RLH = self.source_attention.attend(y_RLH, *read, source.mask_R11M, keys[0])
        x_RLH += dropout(y_RLH, rate, keys[1])
        y_RLH = gelu(self.mlp_in(self._normed(self.mlp_norm, x_RLH)))
        return x_RLH + dropout(self.mlp_out(y_RLH), rate, keys[2])

    def _normed(self, norm: LayerNorm, x_RLH: jax.Array) -> jax.Array:
        return norm(x_RLH).astype(self.config.dtype)


class Pointer(nnx.Module):
    """Copies tokens of the source (See et al. 2017, equations 8 and 9).

    A gate decides between a token of the vocabulary and one of the source. An attention of its own points at that one.
    """

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.query = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.gate = nnx.Linear(2 * config.hidden_size, 1, kernel_init=INIT, rngs=rngs)

    def __call__(self, hidden_RLH: jax.Array, logits_RLV: jax.Array, source: Source) -> jax.Array:
        """Log-probabilities, float32 [R, L, V], from the logits of the vocabulary."""
        query_RLH = self.query(hidden_RLH) / hidden_RLH.shape[-1] ** 0.5
        states_RMH = source.states_RMH
        score_RLM = jnp.einsum("rlh,rmh->rlm", query_RLH, states_RMH, preferred_element_type=jnp.float32)
        weight_RLM = jax.nn.softmax(jnp.where(source.mask_R11M[:, 0], score_RLM, -jnp.inf))
        context_RLH = jnp.einsum("rlm,rmh->rlh", weight_RLM, states_RMH.astype(jnp.float32))
        gate_RL1 = self.gate(jnp.concatenate([hidden_RLH.astype(jnp.float32), context_RLH], axis=2))
        written_RLV = jax.nn.log_softmax(logits_RLV) + jax.nn.log_sigmoid(gate_RL1)
        # Tokens that the source has may be copied, too. They are few: the vocabulary is gone through but once.
        alike_RMM = source.ids_RM[:, :, None] == source.ids_RM[:, None]
        precision = jax.lax.Precision.HIGHEST  # these are sums of probabilities
        copied_RLM = jnp.einsum("rlm,rmn->rln", weight_RLM, alike_RMM.astype(jnp.float32), precision=precision)
        # The logarithm of 0 has no gradient: padding is not copied.
        is_copied_RLM = copied_RLM > 0
        log_copied_RLM = jnp.log(jnp.where(is_copied_RLM, copied_RLM, 1)) + jax.nn.log_sigmoid(-gate_RL1)
        only_written_RLM = jnp.take_along_axis(written_RLV, source.ids_RM[:, None], axis=2)
        more_RLM = jnp.logaddexp(only_written_RLM, log_copied_RLM) - only_written_RLM
        # A token that stands at several places gets a part at each of them.
        parts_RLM = jnp.where(is_copied_RLM, more_RLM / alike_RMM.sum(axis=1)[:, None], 0)
        add = jax.vmap(lambda x_LV, ids_M, parts_LM: x_LV.at[:, ids_M].add(parts_LM))
        return add(written_RLV, source.ids_RM, parts_RLM)


def teacher_forced(ids_RL: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A text with its start and its end token as what the decoder sees, what it has to say, and the weights of that.

    [CLS] 7 8 [SEP] -1 gives [CLS] 7 8 [SEP], 7 8 [SEP] -1 and 1 1 1 0; all [R, L - 1].
    """
    return ids_RL[:, :-1], ids_RL[:, 1:], (ids_RL[:, 1:] != FILLER).astype(jnp.float32)


def _zeros(like: jax.Array, *shape: int) -> jax.Array:
    """Zeros [R, *shape], whose rows are over the same devices as those of `like`."""
    zero_R = jnp.zeros_like(like.reshape(len(like), -1)[:, 0])
    return zero_R.reshape(-1, *[1] * len(shape)) + jnp.zeros(shape, like.dtype)

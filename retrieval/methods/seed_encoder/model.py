"""SEED-Encoder (Lu et al. 2021): a masked language model whose [CLS] a weak decoder has to write the text again from.

The decoder sees [CLS] and the few tokens before the one that it predicts. What it cannot know from these has to be in
[CLS]. It is there for pre-training alone. A span of the whole text makes it the strong decoder of Figure 3. A latent
variable between the two makes it the model of Optimus (Li et al. 2020).

Letters of shapes beside those of `text`: P masked positions of a group, V vocabulary, M the tokens attended to, Z size
of the latent variable, S 1 or L.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.runtime.arrays import reshape_rows
from retrieval.models.dropout import dropout, split
from retrieval.models.gelu import gelu
from retrieval.models.layer_loop import stack, through_layers
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.pooling import first
from retrieval.models.text import Text, by_group, lookup, same_text, token_vectors
from retrieval.models.transformer import INIT, Attention, Layer, dense, layer_norm
from retrieval.models.transformer_config import TransformerConfig


@dataclasses.dataclass(frozen=True)
class DecoderConfig:
    """The decoder; its other sizes are the encoder's.

    Attributes:
      span: k, the tokens before the predicted one that it may depend on; 0 leaves [CLS] alone, the length of the text
        is full attention.
      wiring: how [CLS] comes to the decoder. 'cross': to every layer, through cross-attention (the authors' code);
        'prefix': once, as the vector of the text's first position, before layers that are the encoder's.
      window: what the span is of. 'layer': of each layer, so that D layers reach back D * (span - 1) + 1 tokens (the
        authors' code); 'decoder': of all (equation 9), where only the first layer looks back.
      bias: whether its logits have the bias of the output layer, as the encoder's do; the authors' code has none.
      latent: Z, of the Gaussian that [CLS] is drawn anew from (Optimus); 0 for none.
    """

    layers: int = 3
    span: int = 2
    wiring: str = "cross"
    window: str = "layer"
    latent: int = 0
    bias: bool = True


class Reconstruction(NamedTuple):
    """What an autoencoder makes of a masked text.

    Attributes:
      masked_GPV: logits of the masked tokens, from the encoder.
      next_RLV: logits of the token after each, from the decoder.
      divergence_BZ: of the latent variable from a standard Gaussian; None where there is none.
    """

    masked_GPV: jax.Array
    next_RLV: jax.Array
    divergence_BZ: jax.Array | None


class Autoencoder(MaskedLanguageModel):
    """A masked language model and a decoder, with one table of token embeddings for both and their output layers."""

    def __init__(self, config: TransformerConfig, decoder: DecoderConfig, *, rngs: nnx.Rngs):
        super().__init__(config, rngs=rngs)
        if decoder.latent:
            self.bottleneck = Bottleneck(config, decoder.latent, rngs)
        self.decoder = Decoder(config, decoder, rngs)

    def __call__(
        self, text: Text, masked_positions_GP: jax.Array, original_RL: jax.Array, dropout_key: jax.Array | None
    ) -> Reconstruction:
        """Logits, float32.

        Args:
          masked_positions_GP: as `MaskedLanguageModel` takes them.
          original_RL: the ids of the text before it was masked, as `unmasked` gives them.
          dropout_key: also of the noise of a latent variable; without a key that is its mean.
        """
        encoder_key, noise_key, decoder_key = split(dropout_key, 3)
        hidden_RLH = self.encoder(text, dropout_key=encoder_key)
        cls_BH, divergence_BZ = first(hidden_RLH, text), None
        if hasattr(self, "bottleneck"):
            cls_BH, divergence_BZ = self.bottleneck(cls_BH, noise_key)
        token_RLH = token_vectors(self.encoder.token_embedding.embedding[...], original_RL)
        next_RLH = self.decoder(token_RLH, cls_BH, text, decoder_key)
        next_RLV = self.scores(next_RLH, self.decoder.decoder.bias)
        return Reconstruction(self.predict(hidden_RLH, masked_positions_GP), next_RLV, divergence_BZ)


class Bottleneck(nnx.Module):
    """The latent variable of a variational autoencoder (Kingma & Welling 2014; Li et al. 2020, section 3)."""

    def __init__(self, config: TransformerConfig, size: int, rngs: nnx.Rngs):
        self.moments = nnx.Linear(config.hidden_size, 2 * size, kernel_init=INIT, rngs=rngs)
        self.output = nnx.Linear(size, config.hidden_size, kernel_init=INIT, rngs=rngs)

    def __call__(self, cls_BH: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        """What stands for [CLS], [B, H], and KL(N(mean, variance) || N(0, 1)) of every dimension, [B, Z]; float32."""
        mean_BZ, log_variance_BZ = jnp.split(self.moments(cls_BH.astype(jnp.float32)), 2, axis=1)
        latent_BZ = mean_BZ
        if key is not None:
            noise_BZ = jax.random.normal(key, mean_BZ.shape, out_sharding=jax.typeof(mean_BZ).sharding)
            latent_BZ += jnp.exp(log_variance_BZ / 2) * noise_BZ
        divergence_BZ = (jnp.square(mean_BZ) + jnp.exp(log_variance_BZ) - 1 - log_variance_BZ) / 2
        return self.output(latent_BZ), divergence_BZ


class Decoder(nnx.Module):
    """From [CLS] and the tokens before it to each token of the text."""

    def __init__(self, config: TransformerConfig, decoder: DecoderConfig, rngs: nnx.Rngs):
        self.config = dataclasses.replace(config, num_layers=decoder.layers)
        self.decoder = decoder
        self.position_embedding = nnx.Embed(config.max_length, config.hidden_size, embedding_init=INIT, rngs=rngs)
        self.embedding_norm = layer_norm(config, rngs)
        kind = CrossLayer if decoder.wiring == "cross" else Layer
        self.layers = stack([kind(config, rngs) for _ in range(decoder.layers)])
        if decoder.wiring == "cross":
            self.norm = layer_norm(config, rngs)

    def __call__(self, token_RLH: jax.Array, cls_BH: jax.Array, text: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Hidden states [R, L, H]; that of a token is what the next one is predicted from.

        Args:
          token_RLH: embeddings of the tokens.
          cls_BH: the vectors of the texts.
          text: where the texts lie; of its ids nothing is seen.
        """
        config, is_prefix = self.config, self.decoder.wiring == "prefix"
        keys = split(dropout_key, config.num_layers + 1)
        cls_RSH = _for_every_token(cls_BH.astype(jnp.float32), text)  # its gradient is a sum over the text's tokens
        is_first_RL1 = text.positions_RL[:, :, None] == 0
        if not self.decoder.span:
            token_RLH = jnp.where(is_first_RL1, token_RLH, 0)
        if is_prefix:
            token_RLH = jnp.where(is_first_RL1, cls_RSH, token_RLH)
        x_RLH = token_RLH + lookup(self.position_embedding.embedding[...], text.positions_RL)
        x_RLH = dropout(self.embedding_norm(x_RLH).astype(config.dtype), config.dropout, keys[0])
        sees_R1LM = _before(text)

        def call(layer: nnx.Module, x_RLH: jax.Array, number: jax.Array, key: jax.Array | None) -> jax.Array:
            mask_R1LM = sees_R1LM(self._span(number))
            return layer(x_RLH, mask_R1LM, key) if is_prefix else layer(x_RLH, mask_R1LM, key, cls_RSH)

        x_RLH = through_layers(self.layers, config, x_RLH, keys[1:], call)
        return x_RLH if is_prefix else self.norm(x_RLH).astype(config.dtype)

    def _span(self, number: jax.Array) -> jax.Array:
        """How many tokens a layer sees at a position, from the position's own on."""
        span = max(1, self.decoder.span)
        return jnp.where(number == 0, span, span if self.decoder.window == "layer" else 1)


class CrossLayer(nnx.Module):
    """Self-attention, attention to [CLS] and a two-layer MLP, each after a LayerNorm and before a residual sum."""

    def __init__(self, config: TransformerConfig, rngs: nnx.Rngs):
        self.config = config
        self.attention_norm = layer_norm(config, rngs)
        self.attention = Attention(config, rngs)
        # The softmax over a single key is 1: whatever query and key would be, what comes out is the value.
        self.cls_value = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.cls_output = dense(config.hidden_size, config.hidden_size, config, rngs)
        self.mlp_norm = layer_norm(config, rngs)
        self.mlp_in = dense(config.hidden_size, config.mlp_size, config, rngs)
        self.mlp_out = dense(config.mlp_size, config.hidden_size, config, rngs)

    def __call__(self, x_RLH: jax.Array, mask_R1LM: jax.Array, key: jax.Array | None, cls_RSH: jax.Array) -> jax.Array:
        rate, dtype = self.config.dropout, self.config.dtype
        probability_key, attention_key, cls_key, mlp_key = split(key, 4)
        y_RLH = self.attention(self.attention_norm(x_RLH).astype(dtype), mask_R1LM, probability_key)
        x_RLH += dropout(y_RLH, rate, attention_key)
        y_RLH = jnp.zeros_like(x_RLH) + self.cls_output(self.cls_value(cls_RSH))
        x_RLH += dropout(y_RLH, rate, cls_key)
        y_RLH = gelu(self.mlp_in(self.mlp_norm(x_RLH).astype(dtype)))
        return x_RLH + dropout(self.mlp_out(y_RLH), rate, mlp_key)


def unmasked(ids_RL: jax.Array, positions_GP: jax.Array, labels_GP: jax.Array, weights_GP: jax.Array) -> jax.Array:
    """The ids of a masked text with its tokens back in their places, [R, L]. Places of weight 0 change nothing."""
    ids_GT = by_group(ids_RL, len(positions_GP))
    outside = ids_GT.shape[1]
    at_GP = jnp.where(weights_GP > 0, positions_GP, outside)
    put_back = jax.vmap(lambda ids_T, at_P, labels_P: ids_T.at[at_P].set(labels_P, mode="drop"))
    return reshape_rows(put_back(ids_GT, at_GP, labels_GP), *ids_RL.shape)


def following(ids_RL: jax.Array, segments_RL: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The token after each, and whether there is one: 0 at the end of a text and for padding. Both are [R, L]."""
    after_RL = jnp.roll(segments_RL, -1, axis=1)
    is_inside_RL = (segments_RL == after_RL) & (segments_RL > 0) & (jnp.arange(ids_RL.shape[1]) < ids_RL.shape[1] - 1)
    return jnp.roll(ids_RL, -1, axis=1), is_inside_RL.astype(jnp.float32)


def _for_every_token(cls_BH: jax.Array, text: Text) -> jax.Array:
    """The vector of each token's text, [R, L, H]; [R, 1, H] where a row has one text."""
    if text.starts_GC is None:
        return cls_BH[:, None]
    G, C = text.starts_GC.shape
    number_GT = jnp.maximum(by_group(text.segments_RL, G) - 1, 0)
    cls_GTH = jnp.take_along_axis(reshape_rows(cls_BH, G, C, -1), number_GT[:, :, None], axis=1)
    return reshape_rows(cls_GTH, *text.ids_RL.shape, -1)


def _before(text: Text) -> Callable[[jax.Array], jax.Array]:
    """From a span to what the tokens of a row see: so many tokens up to their own, and the first of their text."""
    place_L = jnp.arange(text.ids_RL.shape[1])
    distance_LM = place_L[:, None] - place_L
    seen_RLM = same_text(text) & (distance_LM >= 0)
    is_first_R1M = text.positions_RL[:, None] == 0
    return lambda span: (seen_RLM & ((distance_LM < span) | is_first_R1M))[:, None]

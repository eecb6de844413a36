"""DeepCT (Dai & Callan 2019): an encoder and a linear unit that weighs every token of a passage.

A word is one or more word pieces of BERT: its first piece carries its weight, and pieces with ## go on.

Letters of shapes beside those of `text`: B passages of the global batch.
"""

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS
from retrieval.models.dropout import dropout, split
from retrieval.models.text import Text
from retrieval.models.transformer import INIT, Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.search.words import paired

_GOES_ON = "##"


class DeepCT(nnx.Module):
    """Token ids to one number per token. Only that of a word's first piece is trained and means something."""

    def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
        self.encoder = Transformer(config, rngs=rngs)
        self.weight = nnx.Linear(config.hidden_size, 1, kernel_init=INIT, rngs=rngs)

    def __call__(self, text: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Weights, float32 [R, L]; about 0 to 1, and below 0 too."""
        encoder_key, key = split(dropout_key, 2)
        hidden_RLH = self.encoder(text, dropout_key=encoder_key).astype(jnp.float32)
        return self.weight(dropout(hidden_RLH, self.encoder.config.dropout, key))[:, :, 0]


def term_regression(
    weight_BL: jax.Array, target_BL: jax.Array, counts_BL: jax.Array
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The squared error of tokens (Dai & Callan 2019, section 3.1).

    Each passage's sum over its tokens is scaled by B / (tokens of the batch): the mean of the result over the batch is
    the mean over tokens.

    Args:
      target_BL: the share of the passage's queries that a token's word is in.
      counts_BL: 1 for the first piece of a word, 0 for other tokens and for padding.

    Returns:
      The loss [B], and 'absolute_error' [B], scaled likewise.
    """
    counts_BL = counts_BL.astype(jnp.float32)
    error_BL = weight_BL.astype(jnp.float32) - target_BL
    scale = len(counts_BL) / jnp.maximum(counts_BL.sum(), 1)
    loss_B, absolute_B = (scale * (counts_BL * x_BL).sum(axis=1) for x_BL in (jnp.square(error_BL), jnp.abs(error_BL)))
    return loss_B, {"absolute_error": absolute_B}


def term_frequencies(
    pieces: Sequence[str],
    weights: Sequence[float],
    *,
    scale: int = 100,
) -> dict[str, int]:
    """What a model said of a passage as term frequencies of an index: round(scale * weight) of each word (equation 4).

    A word that comes again has its greatest weight. Words that round to 0 or less are left out. The authors' program
    rounds nothing up to 1; their paper does.

    Args:
      weights: of each piece; of those with ## they are not looked at.
    """
    frequencies: dict[str, int] = {}
    parts = list(itertools.accumulate(piece in SPECIAL_TOKENS for piece in pieces))
    for _, part in itertools.groupby(words(pieces), lambda found: parts[found[0]]):
        for word, weight in paired((word, max(weights[place], 0.0)) for place, word in part):
            frequency = round(scale * weight)
            if frequency > frequencies.get(word, 0):
                frequencies[word] = frequency
    return frequencies


def words(pieces: Sequence[str]) -> list[tuple[int, str]]:
    """The words that pieces make, each after the place of its first piece; special tokens are none.

    A word cut off at the end of a passage is what is left of it. One that the vocabulary has no pieces for is left out.
    """
    found: list[tuple[int, str]] = []
    in_word = False
    for place, piece in enumerate(pieces):
        goes_on = piece.startswith(_GOES_ON)
        if goes_on and in_word:
            found[-1] = (found[-1][0], found[-1][1] + piece.removeprefix(_GOES_ON))
        elif not goes_on:
            in_word = piece not in SPECIAL_TOKENS
            if in_word:
                found.append((place, piece))
    return found

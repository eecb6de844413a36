"""Readers: a question and a paragraph in one row, to scores of where the answer stands.

Letters of shapes beside those of `text`: W lengths of a span, D size of a span's representation.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.arrays import reshape_rows
from retrieval.models.layer_norm import LayerNorm
from retrieval.models.text import Text, first
from retrieval.models.transformer import INIT, Transformer, TransformerConfig, dropout, split
from retrieval.models.two_tower import TwoTower

PAIR_SIZE = 256  # of a span's representation (Lee et al. 2019)
_NORM_EPSILON = 1e-5
_NEVER = -1e30  # the score of a span that is none, finite so that it can be stored


class SpanReader(nnx.Module):
    """An encoder; a score of each token as the first and as the last of an answer, or one of each span.

    Whole spans are scored as ORQA does (Lee et al. 2019, section 5.2): w . LayerNorm(relu(W_s h_first + W_e h_last)).
    Where paragraphs are selected, a linear unit on BERT's pooled output scores each (Karpukhin et al. 2020). Where the
    question tower of its retriever is trained too, a reader has that tower.
    """

    def __init__(
        self,
        config: TransformerConfig,
        *,
        widths: int = 0,
        selects: bool = False,
        retriever: TwoTower | None = None,
        rngs: nnx.Rngs,
    ):
        """Args:
        widths: tokens of the longest span, where whole spans are scored; 0: their ends are.
        selects: whether paragraphs have a score.
        retriever: the question tower, as a model of one tower.
        """
        self.widths = widths
        if retriever:
            self.retriever = retriever
        self.encoder = Transformer(config, rngs=rngs)
        size = config.hidden_size
        if widths:
            self.first = nnx.Linear(size, PAIR_SIZE, kernel_init=INIT, rngs=rngs)
            self.last = nnx.Linear(size, PAIR_SIZE, use_bias=False, kernel_init=INIT, rngs=rngs)
            self.norm = LayerNorm(PAIR_SIZE, epsilon=_NORM_EPSILON, rngs=rngs)
            self.span = nnx.Linear(PAIR_SIZE, 1, kernel_init=INIT, rngs=rngs)
        else:
            self.ends = nnx.Linear(size, 2, kernel_init=INIT, rngs=rngs)
        if selects:
            self.pooler = nnx.Linear(size, size, kernel_init=INIT, rngs=rngs)
            self.select = nnx.Linear(size, 1, kernel_init=INIT, rngs=rngs)

    def __call__(self, pairs: Text, dropout_key: jax.Array | None) -> dict[str, jax.Array]:
        """Scores by name, float32: 'start' and 'end' [R, L], or 'pairs' [R, L, W]; and 'select' [R].

        Those of tokens outside of paragraphs mean nothing.

        Args:
          pairs: [CLS] question [SEP] paragraph [SEP], one text a row.
        """
        encoder_key, key, pooled_key = split(dropout_key, 3)
        rate = self.encoder.config.dropout
        hidden_RLH = self.encoder(pairs, dropout_key=encoder_key).astype(jnp.float32)
        scores = {}
        if hasattr(self, "select"):
            pooled_RH = jnp.tanh(self.pooler(first(hidden_RLH, pairs)))
            scores["select"] = self.select(dropout(pooled_RH, rate, pooled_key))[:, 0]
        hidden_RLH = dropout(hidden_RLH, rate, key)
        if self.widths:
            return scores | {"pairs": self._pairs(hidden_RLH)}
        ends_RL2 = self.ends(hidden_RLH)
        return scores | {"start": ends_RL2[:, :, 0], "end": ends_RL2[:, :, 1]}

    def best(self, pairs: Text, inside_RL: jax.Array, widths: int, count: int) -> jax.Array:
        """The best spans of each paragraph, float32 [R, 1 + 3 * count].

        That is the score of the paragraph (0 where none is selected), then the scores of the spans, best first, then
        their first and then their last tokens. A span that is not inside has a score below -1e29.

        Args:
          inside_RL: 1 for the tokens of the paragraph.
          widths: tokens of the longest span.
        """
        scores = self(pairs, None)
        R, L = inside_RL.shape
        pairs_RLW = scores["pairs"] if self.widths else _of_ends(scores["start"], scores["end"], widths)
        W = pairs_RLW.shape[2]
        behind_RL = jnp.pad(inside_RL, ((0, 0), (0, W - 1)))
        is_inside_RLW = jnp.stack([(inside_RL * behind_RL[:, w : w + L]) > 0 for w in range(W)], axis=2)
        flat_RT = reshape_rows(jnp.where(is_inside_RLW, pairs_RLW, _NEVER), R, L * W)
        best_RM, places_RM = jax.lax.top_k(flat_RT, min(count, L * W))
        more = ((0, 0), (0, count - best_RM.shape[1]))  # a short row has fewer
        best_RM, places_RM = jnp.pad(best_RM, more, constant_values=_NEVER), jnp.pad(places_RM, more)
        select_R = scores.get("select", jnp.zeros_like(best_RM[:, 0]))
        firsts_RM, lasts_RM = places_RM // W, places_RM // W + places_RM % W
        return jnp.concatenate([select_R[:, None], best_RM, firsts_RM * 1.0, lasts_RM * 1.0], axis=1)

    def _pairs(self, hidden_RLH: jax.Array) -> jax.Array:
        """The score of the span of w + 1 tokens from each token on, [R, L, W]; of one beyond the row, of zeros."""
        L, W = hidden_RLH.shape[1], self.widths
        first_RLD, last_RLD = self.first(hidden_RLH), self.last(hidden_RLH)
        last_RLD = jnp.pad(last_RLD, ((0, 0), (0, W - 1), (0, 0)))
        # One width after the other: together they would be W times as large as the hidden states.
        return jnp.stack([self._score(first_RLD + last_RLD[:, width : width + L]) for width in range(W)], axis=2)

    def _score(self, span_RLD: jax.Array) -> jax.Array:
        return self.span(self.norm(jax.nn.relu(span_RLD)))[:, :, 0]


def _of_ends(start_RL: jax.Array, end_RL: jax.Array, widths: int) -> jax.Array:
    """The sum of the scores of both ends of every span, [R, L, W]."""
    L = start_RL.shape[1]
    end_RL = jnp.pad(end_RL, ((0, 0), (0, widths - 1)))
    return jnp.stack([start_RL + end_RL[:, width : width + L] for width in range(widths)], axis=2)

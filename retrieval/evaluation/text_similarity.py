"""How alike an encoder finds texts that have nothing to do with each other, by their length (Lu et al. 2021, figure 5).

Where long texts all have much the same vector, little is left to tell a relevant one from the others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from retrieval.errors import UserError

# Texts that are embedded at a time; few, for their tokens may be many.
_BATCH = 32


def similarity_by_length(
    embed: Callable[[np.ndarray], np.ndarray],
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    pairs: int,
    seed: int,
) -> dict[int, float]:
    """The mean cosine of random pairs of different texts, for each length.

    Args:
      embed: token ids [B, L] without padding to embeddings [B, E]; B is the same in all calls.
      texts: token ids, from [CLS] to [SEP]. Those that are at least as long as a length are cut to it.
      pairs: how many are drawn, with the same seed for every encoder.

    Raises:
      UserError: fewer than two texts are as long as a length.
    """
    similarities = {}
    for length in lengths:
        long_enough = [ids for ids in texts if len(ids) >= length]
        if len(long_enough) < 2:
            raise UserError(
                f"similarity: {len(long_enough)} texts have {length} tokens, and pairs need two: take shorter lengths"
            )
        left, right = _draw(len(long_enough), pairs, np.random.default_rng(seed))
        rows, places = np.unique(np.concatenate([left, right]), return_inverse=True)
        cut_NL = np.array([[*long_enough[row][: length - 1], long_enough[row][-1]] for row in rows], np.int32)
        embedding_NE = np.concatenate(list(_embedded(embed, cut_NL)))[: len(rows)].astype(np.float64)
        embedding_NE /= np.linalg.norm(embedding_NE, axis=1, keepdims=True)
        left_PE, right_PE = np.split(embedding_NE[places], 2)
        similarities[length] = float((left_PE * right_PE).sum(axis=1).mean())
    return similarities


def _draw(count: int, pairs: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    left = random.integers(count, size=pairs)
    return left, (left + random.integers(1, count, size=pairs)) % count


def _embedded(embed: Callable[[np.ndarray], np.ndarray], rows_NL: np.ndarray):
    for start in range(0, len(rows_NL), _BATCH):
        yield embed(np.resize(rows_NL[start : start + _BATCH], (_BATCH, rows_NL.shape[1])))[: len(rows_NL) - start]

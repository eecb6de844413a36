"""Embeddings as answers have them: cut, brought to length 1, and written as numbers or as base64."""

import base64
import functools
from collections.abc import Callable

import numpy as np

from retrieval.api.text_rows import Card
from retrieval.serving.answers import written
from retrieval.serving.errors import FieldError


def writer(
    card: Card, dimensions: int | None, is_base64: bool = False, normalize: bool = False
) -> Callable[[np.ndarray], list[bytes]]:
    """What makes JSON of embeddings [N, E].

    Args:
      dimensions: that are kept, where a request says so; embeddings that are cut are brought to length 1 again.
      is_base64: of little-endian float32; otherwise as lists.
      normalize: whether to bring all to length 1.

    Raises:
      FieldError: the model was not trained for so many.
    """
    *others, size = card.sizes
    if dimensions not in (None, *card.sizes):
        known = f"of {', '.join(map(str, card.sizes))}" if others else f"of {size} alone, and was trained for no others"
        raise FieldError(f"'dimensions' is {dimensions}: the model gives embeddings {known}", field="dimensions")
    is_cut = dimensions not in (None, size)
    return functools.partial(_written, size=dimensions or size, is_base64=is_base64, normalize=normalize or is_cut)


def _written(embeddings_NE: np.ndarray, size: int, is_base64: bool, normalize: bool) -> list[bytes]:
    embeddings_NE = embeddings_NE[:, :size]
    if normalize:
        lengths_N1 = np.linalg.norm(embeddings_NE, axis=1, keepdims=True)
        embeddings_NE = embeddings_NE / np.maximum(lengths_N1, np.finfo(np.float32).tiny)
    if is_base64:
        return [b'"%b"' % base64.b64encode(row.astype("<f4").tobytes()) for row in embeddings_NE]
    return [written(row.tolist()) for row in embeddings_NE]

"""Vectors as decimal numbers with commas between them, from which the very same vectors can be read."""

import re
from collections.abc import Iterator

import numpy as np

_WHOLE_ZERO = re.compile("(?<![^,])-0(?![^,])")


def numbers(vectors_NS: np.ndarray) -> Iterator[str]:
    """Each vector; nine digits tell every float32 from all others, and JSON takes them."""
    form = ",".join(["%d" if vectors_NS.dtype.kind in "iu" else "%.9g"] * vectors_NS.shape[1])
    for vector_S in vectors_NS:
        text = form % tuple(vector_S.tolist())
        # Read as a whole number, -0 has no sign any more.
        yield _WHOLE_ZERO.sub("-0.0", text) if "-0" in text else text

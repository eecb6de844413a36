"""The kind of index 'exact': embeddings are compared one by one, and nothing is saved."""

import numpy as np

from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import EXACT, IndexKind, Options, register


@register
class Exact(IndexKind):
    """Exact search."""

    name, title, system = EXACT, "exact search", "dense"
    is_saved = False

    def build(self, contents: np.ndarray, options: Options) -> ExactIndex:
        return ExactIndex(contents)

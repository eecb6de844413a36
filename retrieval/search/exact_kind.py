"""The kind of index 'exact': embeddings are compared one by one, as they are stored, and nothing is saved."""

from typing import Any

import jax
import numpy as np

from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import EXACT, IndexKind, Options, register
from retrieval.search.row_views import StoredCodes


@register
class Exact(IndexKind):
    """Exact search."""

    name, title, system = EXACT, "exact search", "dense"
    is_saved, spreads = False, True

    def build(self, contents: Any, options: Options, mesh: jax.sharding.Mesh | None = None) -> ExactIndex:
        if isinstance(contents, np.ndarray) or not contents.form:
            return ExactIndex(contents, mesh=mesh)
        return ExactIndex(StoredCodes(contents, contents.form), mesh=mesh, form=contents.form)

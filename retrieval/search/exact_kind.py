"""The kind of index 'exact': embeddings are compared one by one, and nothing is saved."""

from collections.abc import Mapping
from typing import Any

from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import EXACT, Contents, IndexKind, register


@register
class Exact(IndexKind):
    """Exact search."""

    name, title, system = EXACT, "exact search", "dense"
    is_saved = False

    def build(self, contents: Contents, options: Mapping[str, Any]) -> ExactIndex:
        return ExactIndex(contents.embeddings_WE)

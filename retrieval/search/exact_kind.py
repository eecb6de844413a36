"""The kind of index 'exact': embeddings are compared one by one, and nothing is saved."""

from retrieval.search.exact import ExactIndex
from retrieval.search.index_kind import EXACT, Cost, Embeddings, IndexKind, Options, Planned, register

_HELD = 2.2  # times the bytes of the embeddings, as docs/scale.md measured it: a device of a CPU has a copy


@register
class Exact(IndexKind):
    """Exact search."""

    name, title, system = EXACT, "exact search", "dense"
    is_saved = False

    def build(self, contents: Embeddings, options: Options) -> ExactIndex:
        return ExactIndex(contents.embeddings_WE)

    def cost(self, planned: Planned, options: Options) -> Cost:
        held = _HELD * 4 * planned.embeddings * planned.dimensions
        return Cost(0.0, held, held)

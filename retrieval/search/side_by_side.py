"""Several systems over the same texts, side by side: indexes of words, one of embeddings, and both merged."""

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from retrieval.common.errors import unknown_name
from retrieval.search import fusion
from retrieval.search.fusion import Run

DENSE, HYBRID = "dense", "hybrid"

Search = Callable[[Sequence[str], int], Run]
"""Texts of queries to scores and rows [Q, k], best first; -inf and -1 where fewer were found."""


class SideBySide:
    """Each query is embedded once, and each index asked once, however many systems read the list.

    Attributes:
      systems: their names: `dense`, those of the indexes of words, and `hybrid`, as far as they are there.
      in_tables: what tables call a system, where that is not its name here.
      first_words: the name of the index of words that is merged; '' where there is none.
    """

    def __init__(
        self,
        words: Mapping[str, Search],
        dense: Callable[..., Run] | None = None,
        weight: float = fusion.DENSE_WEIGHT,
        depth: int = 100,
        in_tables: Mapping[str, str] | None = None,
    ):
        """Args:
        words: by the name of their kind; the first is merged with the dense one.
        dense: by embeddings; takes the name of a prompt, too, where one is asked for.
        weight: of the dense list in the hybrid.
        depth: results of each list that the hybrid merges, at least.
        """
        self._searches: dict[str, Callable[..., Run]] = ({DENSE: dense} if dense else {}) | dict(words)
        self.first_words = next(iter(words), "")
        self.in_tables = dict(in_tables or {})
        self._weight, self._depth = weight, depth
        self.systems = (*self._searches, *([HYBRID] if dense and words else []))

    def search(
        self, queries: Sequence[str], k: int, systems: Collection[str] = (), prompt_name: str | None = None
    ) -> dict[str, Run]:
        """The lists [Q, k] of some systems, by default of all.

        Args:
          prompt_name: of the prompt that queries are embedded with; by default their usual one.

        Raises:
          UserError: there is no such system.
        """
        for system in systems:
            if system not in self.systems:
                raise unknown_name("system", system, self.systems)
        wanted = [system for system in self.systems if not systems or system in systems]
        merged = {self.first_words, DENSE} if HYBRID in wanted else set()
        prompt = {DENSE: (prompt_name,)} if prompt_name is not None else {}
        lists = {
            name: search(queries, max(k, self._depth) if name in merged else k, *prompt.get(name, ()))
            for name, search in self._searches.items()
            if name in wanted or name in merged
        }
        if merged:
            lists[HYBRID] = fusion.hybrid(lists[self.first_words], lists[DENSE], self._weight, k)
        runs = {system: map(np.asarray, lists[system]) for system in wanted}
        return {system: (scores_QX[:, :k], rows_QX[:, :k]) for system, (scores_QX, rows_QX) in runs.items()}

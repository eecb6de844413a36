"""The passages of a run, searched by all of its indexes side by side: what `--stage=search` and `serve` do."""

import copy
import functools
from collections.abc import Collection, Mapping, Sequence

from retrieval.api import changing_documents
from retrieval.api.document_index import Hit, hits_of
from retrieval.api.document_texts import own_passages
from retrieval.api.loading import of_run
from retrieval.data.sets.row_texts import RowTexts
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.recipes.trained_model import TRAINED
from retrieval.search import exact
from retrieval.search.index_kind import INDEXES, OF_WORDS
from retrieval.search.side_by_side import Search, SideBySide
from retrieval.segments.live_rows import LiveRows
from retrieval.stages import indexes
from retrieval.stages.collection import CORPUS, open_collection

_WORD = "warm"


class OwnSearch:
    """Threads may search together.

    Attributes:
      documents: where they are changed.
      texts: the passages, in the order of the rows of the indexes.
      generation: the number of what is searched; 0 before the first change of the documents.
      model: the towers; None where the run has embedded nothing.
      words: what BM25 takes for words.
      titles: of each system, in the order in which they are shown.
    """

    def __init__(self, run: Run, depth: int):
        """Args:
          depth: results of each list that the hybrid merges, and most that are asked for.

        Raises:
          UserError: the run has no passages, no index of them, or a damaged one.
        """
        if not (run.prepares or run.passages):
            raise UserError(
                f"a search looks among the passages of a prepared corpus or of labelled examples, and {run.place} has "
                "none: add 'prepare' to config.stages with a dump in config.corpus, set config.pairs.files, or set "
                "config.base to a run that has one; in an evaluation set --stage=evaluate searches for its own queries"
            )
        collection = open_collection(run, CORPUS)
        self._run, self._depth = run, depth
        self.texts: RowTexts | LiveRows
        self.model = of_run(run) if collection.has_embeddings() else None
        if self.model:
            self.model.towers.check_embeddings(collection)
        self.documents = changing_documents.of_run(run, self.model.towers if self.model else None)
        self.words = changing_documents.words_of(run)
        self._open()

    def _open(self) -> None:
        """Opens what there is: the documents as they have been changed, or what the run has indexed."""
        run, opened, weight = self._run, self.documents.opened(), self._run.config.fuse.dense_weight
        if opened:
            words = {name: search for name, search in opened.searchers.items() if INDEXES[name].of_words}
            dense = next((search for name, search in opened.searchers.items() if name not in words), None)
            self._systems = SideBySide(words, dense, weight, self._depth)
            assert isinstance(opened.documents, LiveRows)
            self.texts, self.generation = opened.documents, opened.generation
        else:
            collection, config = open_collection(run, CORPUS), run.holder("index").config
            self.texts, self.generation = own_passages(run, collection), 0
            embed = self.model.encode_queries if self.model else None
            options_of = functools.partial(indexes.options_of, config=config)
            sizes = self._depth, len(self.texts)
            self._systems = indexes.open_all(
                collection, config.index.words, options_of, embed, *sizes, weight, functools.partial(_others, run)
            )
        self.titles = {name: INDEXES[name].title if name in INDEXES else name for name in self._systems.systems}

    def reopened(self) -> "OwnSearch":
        """The same with the documents as they are now; towers, and segments that both have, are shared.

        Raises:
          UserError: a file is damaged.
        """
        newer = copy.copy(self)
        newer._open()
        return newer

    def search(
        self, queries: Sequence[str], k: int, systems: Collection[str] = (), prompt_name: str | None = None
    ) -> list[dict[str, list[Hit]]]:
        """For each query the hits of some systems, by default of all; `prompt_name` as in `Model.encode_queries`.

        Raises:
          UserError: there is no such system, or no such prompt.
        """
        if not len(self.texts):  # all have been deleted
            return [{name: [] for name in systems or self.titles} for _ in queries]
        # Always as many: exact search compiles a program for each number of results.
        results = self._systems.search(queries, min(max(k, self._depth), len(self.texts)), systems, prompt_name)

        def lists(query: int) -> dict[str, list[Hit]]:
            firsts = {name: (scores[query, :k], rows[query, :k]) for name, (scores, rows) in results.items()}
            return {name: hits_of(self.texts, *first) for name, first in firsts.items()}

        return [lists(query) for query in range(len(queries))]

    def compile(self, most: int) -> None:
        """Compiles what searches of up to so many queries need, short and long ones: otherwise the first ones wait."""
        if self.model:
            self.model.towers.compile_queries(most)
        compiles = self.model or set(self._systems.systems) - set(OF_WORDS)
        for count in exact.sizes_up_to(most) if compiles else (1,):
            self.search([_WORD] * count, 1)


def _others(run: Run, words: Mapping[str, Search]) -> dict[str, Search]:
    """Systems of models that make no embeddings."""
    return dict(found for kind in TRAINED.values() if (found := kind.over_passages(run, words)))

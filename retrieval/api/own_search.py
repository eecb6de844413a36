"""The passages of a run, searched by all of its indexes side by side: what `--stage=search` and `serve` do."""

import functools
from collections.abc import Collection, Iterator, Sequence

from retrieval.api.document_index import Hit, hits_of
from retrieval.api.document_texts import own_passages
from retrieval.api.loading import of_run
from retrieval.common.errors import UserError
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import fused, indexes
from retrieval.runs.ranking.collection import CORPUS, open_collection
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.search import exact
from retrieval.search.bm25 import Bm25, words_of
from retrieval.search.index_kind import INDEXES, OF_WORDS, Texts

_WORD = "warm"


class OwnSearch:
    """Threads may search together.

    Attributes:
      run: whose they are.
      texts: the passages, in the order of the rows of the indexes.
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
            way = "prepare a config.corpus, set config.pairs.files, or config.base to a run with one"
            raise UserError(f"{run.display_path} has no passages to search, and evaluation sets are none: {way}")
        collection = open_collection(run, CORPUS)
        self.run, self._depth, self.texts = run, depth, own_passages(run, collection)
        self.model = of_run(run) if collection.has_embeddings() else None
        if self.model:
            self.model.towers.check_embeddings(collection)
        config = run.owner("index").config
        folds = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
        of_words = indexes.options_of(INDEXES[Bm25.name], config)
        self.words = words_of(Texts(CORPUS, collection.candidates, folds), of_words)
        weight = fused.weight_of(run, run.chain)
        self._systems = indexes.open_all(
            collection,
            config.index.words,
            functools.partial(indexes.options_of, config=config),
            self.model.encode_query if self.model else None,
            depth,
            len(self.texts),
            weight.dense,
            lambda words: dict(filter(None, (kind.over_passages(run, words) for kind in TRAINED.values()))),
        )
        best = fused.best_system(weight, self._systems.first_words)
        self._systems.systems = tuple(sorted(self._systems.systems, key=lambda system: system != best))
        self.titles = {name: INDEXES[name].title if name in INDEXES else name for name in self._systems.systems}

    def search(
        self, queries: Sequence[str], k: int, systems: Collection[str] = (), prompt_name: str | None = None
    ) -> list[dict[str, list[Hit]]]:
        """For each query the hits of some systems, by default of all; `prompt_name` as in `Model.encode_query`.

        Raises:
          UserError: there is no such system, or no such prompt.
        """
        # Always as many: exact search compiles a program for each number of results.
        results = self._systems.search(queries, min(max(k, self._depth), len(self.texts)), systems, prompt_name)
        return [
            {name: hits_of(self.texts, scores[query, :k], rows[query, :k]) for name, (scores, rows) in results.items()}
            for query in range(len(queries))
        ]

    def compile(self, most: int) -> Iterator[None]:
        """Compiles what searches of up to so many queries need, a part at each turn: otherwise the first ones wait.

        The first part is what a short query needs.
        """
        compiles = self.model or set(self._systems.systems) - set(OF_WORDS)
        for count in exact.sizes_up_to(most) if compiles else (1,):
            self.search([_WORD] * count, 1)
            yield
        if self.model:
            yield from self.model.towers.compile_queries(most)

"""A trained model to encode and to search with: what `retrieval.load` returns."""

import functools
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.api.document_index import DocumentIndex
from retrieval.api.document_texts import Document, candidates, read_passages
from retrieval.config import experiment
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.errors import UserError, unknown_name
from retrieval.pipeline import preflight
from retrieval.recipes import initial_parameters, towers
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder
from retrieval.runtime import mirror
from retrieval.runtime.store import is_url
from retrieval.search import encoding, fusion, windows
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, OF_WORDS, Embeddings, IndexKind, Texts
from retrieval.search.side_by_side import HYBRID, Search
from retrieval.stage_outputs import Run
from retrieval.stages import indexes
from retrieval.stages.collection import CORPUS, open_collection

_DEPTH = 100  # results that an approximate index is built for
_FEW = 32  # texts that are embedded as one batch


def load(path: str | Path) -> "Model":
    """The towers of a finished run.

    Args:
      path: its work directory, which may be on an object store.

    Raises:
      UserError: there is no run, or its training has not ended.
    """
    folder = mirror.local(str(path)) if is_url(str(path)) else Path(path)
    if not (folder / preflight.CONFIG).exists():
        raise UserError(f"{path}: no work directory of a run (it has no {preflight.CONFIG}); name the --workdir of one")
    config = preflight.read_config(folder)
    experiment.load_plugins(config.plugins)
    return Model(Run(config, folder, Path()))


class Model:
    """Two trained towers. They encode alike in any thread, and keep the order of what they are given."""

    def __init__(self, run: Run):
        """Raises:
        UserError: the run has no trained towers.
        """
        self._run = run
        self._config = initial_parameters.of_towers(run).copy_and_resolve_references()
        self._vocabulary = run.load_vocabulary()
        embedder = Embedder(self._config, self._vocabulary, mesh := local_mesh(self._config))
        params = parameters_of(initial_parameters.load_towers(run, len(self._vocabulary)))
        self._queries, self._documents = embedder.queries(params), embedder.documents(params)
        self._devices = mesh.size

    def __repr__(self) -> str:
        return f"Model({self._run.place})"

    def compile_queries(self, most: int) -> None:
        """Compiles what embeds up to so many queries at once: otherwise the first of every shape wait for it."""
        rows = [1 << power for power in range(min(most, _FEW).bit_length() + 1)]
        for length in encoding.lengths_up_to(self._config.data.query_length):
            for count in (row for row in rows if row < 2 * min(most, _FEW)):
                encoding.encode_few([[self._vocabulary.cls_id] * length] * count, self._queries, length, self._devices)

    def encode_queries(self, queries: Sequence[str]) -> np.ndarray:
        """Embeddings of queries, float32 [Q, E]."""
        if isinstance(queries, str):
            raise UserError("encode_queries takes a list of texts; write [query]")
        return self._embed(self._queries, towers.query_tokens(self._config, self._vocabulary, list(queries)))

    def encode_documents(self, documents: Sequence[Document]) -> np.ndarray:
        """Embeddings of documents, float32 [N, E]; of long ones that of the beginning.

        Args:
          documents: texts, or records with a 'text' and a 'title'.
        """
        return self._embed(self._documents, [each[0] for each in self._windows(candidates(documents))])

    def index(
        self,
        documents: Sequence[Document] | str | Path | None = None,
        kind: str = EXACT,
        weight: float = fusion.DENSE_WEIGHT,
    ) -> DocumentIndex:
        """An index of documents that can be searched.

        Args:
          documents: texts or records; or a file or a folder, whose documents are cut into passages. By default the
            passages that the run itself has indexed.
          kind: of index: 'exact' and 'scann' are of embeddings, 'bm25' is of words. 'hybrid' merges the run's first
            index of words with exact search.
          weight: of the embeddings in a hybrid.

        Raises:
          UserError: there is no document, or no such kind.
        """
        if kind != HYBRID and kind not in INDEXES:
            raise unknown_name("kind of index", kind, [*INDEXES, HYBRID])
        kinds = [INDEXES[name] for name in ((self._config.index.words[0], EXACT) if kind == HYBRID else (kind,))]
        if documents is None:
            return self._of_run(kinds, weight)
        if isinstance(documents, str | Path):
            texts = list(read_passages(Path(documents), self._vocabulary, self._limits()))
        else:
            texts = candidates(documents)
        if not texts:
            raise UserError("there is no document to index")
        return DocumentIndex(texts, {each.name: self._built(each, texts) for each in kinds}, weight)

    def _of_run(self, kinds: Sequence[IndexKind], weight: float) -> DocumentIndex:
        collection = open_collection(self._run, CORPUS)
        for each in kinds:
            there = each.name in DENSE and not each.is_saved and collection.has_embeddings()
            if not (there or collection.index(each.name).exists()):
                raise UserError(
                    f"{self._run.place}: the run has no index '{each.name}' of its corpus: run the stages encode and "
                    "index with config.encode.corpus=True, or give documents to index"
                )
        opened: dict[str, Search] = {}
        for each in kinds:
            if each.of_words:
                opened[each.name] = indexes.open_words(each, collection).search
            else:
                options = indexes.options_of(each, self._config)
                opened[each.name] = self._of_texts(indexes.open_dense(each, collection, options, _DEPTH).search)
        return DocumentIndex(RowTexts(collection.files), opened, weight)

    def _built(self, kind: IndexKind, texts: Sequence[Candidate]) -> Search:
        options = indexes.options_of(kind, self._config)
        if kind.name in OF_WORDS:
            folds_accents = functools.partial(getattr, self._vocabulary, "folds_accents")
            return kind.build(Texts("documents", lambda: iter(texts), folds_accents), options).search
        if not kind.available():
            raise UserError(f"the index '{kind.name}' cannot be used on this machine; take 'exact'")
        rows = self._windows(texts)
        owners_W = np.repeat(np.arange(len(rows), dtype=np.int32), list(map(len, rows)))
        embeddings_WE = self._embed(self._documents, list(itertools.chain.from_iterable(rows)))
        contents = Embeddings(embeddings_WE, owners_W, lambda: embeddings_WE[:0], _DEPTH)
        return self._of_texts(windows.over_candidates(kind.build(contents, options), owners_W).search)

    def _of_texts(self, search: Callable[[np.ndarray, int], Any]) -> Search:
        return lambda queries, k: search(self.encode_queries(queries), k)

    def _windows(self, texts: Sequence[Candidate]) -> list[list[list[int]]]:
        return towers.candidate_windows(self._config, self._vocabulary, texts)

    def _embed(self, tower: Callable[[np.ndarray], np.ndarray], tokens: Sequence[Sequence[int]]) -> np.ndarray:
        if not tokens:
            return np.zeros((0, self._embed(tower, [[self._vocabulary.cls_id]]).shape[1]), np.float32)
        longest = longest_text(self._config)
        if len(tokens) <= _FEW:
            return encoding.encode_few(tokens, tower, longest, self._devices)
        return encoding.encode_rows(tokens, tower, self._config.encode.batch_tokens, longest, self._devices)

    def _limits(self) -> Limits:
        prepare = self._run.holder("prepare").config.prepare
        names = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
        return Limits(*(prepare[name] for name in names))

"""Documents that are added, replaced and deleted while they are searched: those of a run, and those in memory."""

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import files
from retrieval.api.document_index import Opened
from retrieval.api.document_texts import (
    Cut,
    Document,
    address_of,
    document_of,
    documents_with_ids,
    limits_of,
    read_documents,
)
from retrieval.api.tower_encoder import TowerEncoder
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.errors import UserError
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.recipes import initial_parameters
from retrieval.recipes.initial_parameters import TEXT_FIELDS
from retrieval.recipes.trained_model import TRAINED
from retrieval.search import bm25_kind, encoding, windows
from retrieval.search.bm25_kind import Bm25, Bm25Kind
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import Rows
from retrieval.search.index_kind import INDEXES, IndexKind, Options, Texts
from retrieval.search.side_by_side import Search
from retrieval.segments import generations, segment
from retrieval.segments.changing import Documents, Place
from retrieval.segments.generations import Generations
from retrieval.segments.live_rows import LiveRows
from retrieval.segments.segment import Recipe, Segment
from retrieval.segments.state import Changes, State
from retrieval.stages import indexes
from retrieval.stages.collection import CORPUS, Collection, open_collection

_log = logging.getLogger(__name__)

Kinds = Mapping[str, Options]
"""The names of kinds of index, with their options."""


class ChangingDocuments:
    """Threads may change and open them together."""

    def __init__(
        self,
        place: Place,
        recipe: Recipe,
        kinds: Kinds,
        towers: TowerEncoder | None,
        first: Callable[[], Segment],
        cut: Callable[[Sequence[Document]], dict[str, list[Candidate]]],
        url_of: Callable[[Candidate], str] | None = None,
        refusal: str = "",
    ):
        """Args:
        recipe: what is made of passages.
        kinds: what is opened of them.
        first: what there is before the first change.
        cut: records to documents by their ids, with their passages.
        refusal: why they cannot change; '' where they can.
        """
        self._documents = Documents(place, recipe, first)
        self._recipe, self._kinds, self._towers, self._cut, self._refusal = recipe, kinds, towers, cut, refusal
        self._url_of = {"url_of": url_of} if url_of else {}

    def add(self, documents: Sequence[Document]) -> Changes:
        """Adds records, or replaces those of their ids.

        Raises:
          UserError: one has no id or no text, two have one id, or these documents cannot change.
        """
        self._check()
        return self._documents.put(self._cut(documents))[1]

    def delete(self, ids: Sequence[str]) -> Changes:
        """Deletes documents by their ids.

        Raises:
          NoDocumentError: one is not there; then none is deleted.
          UserError: one is no text, or these documents cannot change.
        """
        self._check()
        if isinstance(ids, str) or not all(isinstance(id, str) for id in ids):
            raise UserError(f"delete takes a list of ids, which are texts, not {ids!r}; write ['ID']"[:300])
        return self._documents.delete(list(dict.fromkeys(ids)))[1]

    def replace_all(self, documents: Mapping[str, Sequence[Candidate]]) -> Changes:
        """Makes these documents, by their ids, all that there are.

        Raises:
          UserError: these documents cannot change.
        """
        self._check()
        return self._documents.replace_all(documents)[1]

    def merge(self) -> bool:
        """Makes one of segments that are many, or have many dead rows; says whether it did."""
        return self._documents.merge()

    def merge_behind(self, then: Callable[[], Any]) -> None:
        """As `merge`, in a thread; where it did, it calls `then`."""

        def merge() -> None:
            try:
                if self.merge():
                    then()
            except Exception as error:  # what is not merged is searched as it is
                _log.warning("segments could not be merged, and will be after the next change: %s", error)

        threading.Thread(target=merge, daemon=True).start()

    def opened(self) -> Opened | None:
        """What is searched now; None before the first change.

        Raises:
          UserError: a file is damaged, or it was made with another model.
        """
        state = self._documents.read()
        if not state:
            return None
        rows, searchers = LiveRows(state, **self._url_of), {}
        for name, options in self._kinds.items():
            kind = INDEXES[name]
            searchers[name] = (
                rows.words(kind, options, self._recipe.of)
                if isinstance(kind, Bm25Kind)
                else self._dense(rows, kind, options)
            )
        return Opened(rows, searchers, state.generation)

    def _dense(self, rows: LiveRows, kind: IndexKind, options: Options) -> Search:
        if not self._towers:
            raise UserError(self._refusal)
        index = indexes.finished(rows.dense(kind, options), options, lambda: rows.vectors, rows.owner_V)
        return self._towers.over(index)

    def _check(self) -> None:
        if self._refusal:
            raise UserError(self._refusal)


def of_run(
    run: Run, towers: TowerEncoder | None, kinds: Kinds | None = None, writes: bool = False
) -> ChangingDocuments:
    """Those that a run has indexed, and what has been changed of them since, in its work directory.

    Args:
      towers: None where the run has embedded nothing, or nothing is asked of its embeddings.
      kinds: that are opened; by default all that the run has.
      writes: whether this process may change them where the work directory is on a store.
    """
    holder, collection = run.holder("index"), open_collection(run, CORPUS)
    towers, unfit = _fitting(towers, collection)
    of_words = indexes.kinds_of_words_of(collection, holder.config.index.words)
    every = [*of_words, *([indexes.dense_kind_there(collection)] if towers else [])]
    all_kinds = {kind.name: indexes.options_of(kind, holder.config) for kind in every}
    recipe = recipe_of(all_kinds, words_of(run), towers)

    def first() -> Segment:
        passages = RowTexts(collection.files)
        vectors, owner_W = None, np.arange(len(passages), dtype=np.int32)
        if towers:
            folder = collection.embeddings()
            vectors, owner_W = StoredRows(folder, "candidates"), windows.owners(encoding.load_ids(folder, "candidates"))
        return first_segment(passages, document_of, vectors, owner_W, recipe)

    refusal = why_fixed(all_kinds, towers)
    others = [kind for kind in TRAINED.values() if kind.stage and records.is_done(run.holder(kind.stage), kind.stage)]
    if holder.folder != run.folder:
        refusal = f"{run.place}: its index is that of its base, {holder.place}: change the documents there"
    elif not run.prepares:
        refusal = f"{run.place}: its passages are those of labelled examples, and only those of a corpus change"
    elif others:
        refusal = f"{run.place}: the documents cannot change, for the run has them for '{others[0].name}' as well"
    elif unfit:
        refusal = unfit
    elif run.copy and not writes:
        refusal = f"{run.place}: of a work directory on a store --stage=update changes the documents"
    return ChangingDocuments(
        _generations(run, bool(towers), recipe),
        recipe,
        all_kinds if kinds is None else kinds,
        towers,
        first,
        lambda documents: documents_with_ids(documents, cut_of(run)),
        address_of(run),
        refusal,
    )


def fetch(run: Run) -> None:
    """Copies down what has changed of the documents of a run, where it is on a store."""
    holder = run.holder("index")
    if holder.copy:
        holder.copy.get([generations.FOLDER])


def fetch_newer(run: Run) -> None:
    """As `fetch`, where the store has another generation than is here.

    Raises:
      UserError: the store does not answer.
    """
    holder = run.holder("index")
    there = holder.copy.store.read(f"{generations.FOLDER}/{generations.CURRENT}") if holder.copy else None
    if there and there.decode() != generations.current(holder.folder / generations.FOLDER):
        fetch(run)


def state_of(run: Run, generation: int | None = None) -> State | None:
    """What a run with embeddings searches, where its documents have changed; None where they have not.

    Args:
      generation: one that is kept, in place of the newest.

    Raises:
      UserError: it is not kept, a file is damaged, or it was made with another model.
    """
    place = _generations(run, True, Recipe((), words_of(run), None))
    return place.read() if generation is None else place.read_kept(generation)


def words_of(run: Run) -> bm25_kind.Words:
    """What BM25 takes for words in the index of a run."""
    folds = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
    texts = Texts(CORPUS, open_collection(run, CORPUS).candidates, folds)
    return bm25_kind.words(texts, indexes.options_of(INDEXES[Bm25.name], run.holder("index").config))


def cut_of(run: Run) -> Cut:
    """How a run cuts its documents into passages."""
    return Cut(run.load_vocabulary(), limits_of(run.holder("prepare").config))


def read_folder(run: Run, path: Path) -> dict[str, list[Candidate]]:
    """The documents of a file or a folder by their ids, cut into passages as those of the run are.

    Raises:
      UserError: there is no document there, a record is broken, or two have one id.
    """
    documents = dict(read_documents(path, cut_of(run), run.holder("prepare").config.documents))
    if not documents:
        raise UserError(f"{path}: no document of which a passage could be made, so nothing was changed")
    return documents


def model_of(run: Run) -> str:
    """What differs where embeddings do: what was trained, and how it takes texts."""
    config = initial_parameters.of_towers(run)
    of_texts = {name: config.data[name] for name in TEXT_FIELDS}
    of_encode = {name: config.encode[name] for name in ("truncate", "windows")}
    trained = records.identity(records.record_of(run, "train"))
    return f"sha256:{files.fingerprint([trained, config.model.to_dict(), of_texts, of_encode])}"


def recipe_of(kinds: Kinds, of: bm25_kind.Words, towers: TowerEncoder | None) -> Recipe:
    """What kinds of index need of passages."""
    of_words = [kind for kind in map(INDEXES.__getitem__, kinds) if isinstance(kind, Bm25Kind)]
    dense = [(INDEXES[name], options) for name, options in kinds.items() if not INDEXES[name].of_words]
    saved = next((pair for pair in dense if pair[0].is_saved), None)
    return Recipe(of_words, of, towers.embed_windows if towers and dense else None, saved)


def why_fixed(kinds: Kinds, towers: TowerEncoder | None) -> str:
    """Why an index of some kinds cannot change; '' where it can."""
    for kind in map(INDEXES.__getitem__, kinds):
        if kind.of_words and not (isinstance(kind, Bm25Kind) and type(kind).build is Bm25Kind.build):
            return (
                f"the documents cannot change, for the index '{kind.name}' is built from more than their texts: make a "
                "run of the new documents in another --workdir"
            )
        if not (kind.of_words or towers):
            return "the documents cannot change, for the model does not embed them as one vector: index them anew"
    return ""


def first_segment(
    passages: Sequence[Candidate],
    document: Callable[[str], str],
    vectors: Rows | None,
    owner_W: np.ndarray,
    recipe: Recipe,
) -> Segment:
    """The segment of all passages that there are before the first change."""
    documents = [document(each.id) for each in passages]
    places = {id: place for place, id in enumerate(dict.fromkeys(documents))}
    document_N = np.fromiter(map(places.__getitem__, documents), np.int32, len(documents))
    return segment.of_passages(list(places), document_N, passages, vectors, owner_W, recipe)


def _fitting(towers: TowerEncoder | None, collection: Collection) -> tuple[TowerEncoder | None, str]:
    """The towers where they are those of a collection's embeddings; else why they are not, '' without embeddings."""
    if not collection.has_embeddings():
        return None, ""
    if not towers:
        return None, f"{collection.embedded}: there are embeddings, and this model makes none: load that of the run"
    try:
        towers.check_embeddings(collection)
    except UserError as error:
        return None, str(error)
    return towers, ""


def _generations(run: Run, has_towers: bool, recipe: Recipe) -> Generations:
    def made_with() -> dict[str, Any]:
        return {"words": dataclasses.asdict(recipe.of)} | ({"model": model_of(run)} if has_towers else {})

    return Generations(run.holder("index").folder / generations.FOLDER, made_with, recipe)

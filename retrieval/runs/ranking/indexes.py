"""The indexes over a collection: which of them there are, and how they are opened."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.fields import values_of
from retrieval.runs.ranking.collection import CORPUS, TRAINED, Collection
from retrieval.search import encoding, fusion, index_shards, side_by_side, windows
from retrieval.search.encoding import StoredRows
from retrieval.search.index_kind import (
    DENSE,
    EXACT,
    INDEXES,
    NO_OPTIONS,
    OF_WORDS,
    IndexKind,
    Options,
    SavedIndex,
    kinds_of_words,
)
from retrieval.search.index_shards import IndexShards
from retrieval.search.side_by_side import Search, SideBySide
from retrieval.search.windows import Index, Rescored


class Built(NamedTuple):
    """A kind of index that is to be built, with the values of its options."""

    kind: IndexKind
    options: Options


class Together(Protocol):
    """Opens an index over the embeddings by one system that all hosts search; None where this one searches alone."""

    def __call__(
        self, kind: IndexKind, collection: Collection, system: str, options: Options = NO_OPTIONS, /
    ) -> Index | None: ...


def options_of(kind: IndexKind, config: ConfigDict) -> Options:
    """The values of the fields that a kind has as its options."""
    return values_of(config, kind.options)


def built_by(config: ConfigDict) -> list[Built]:
    """The kinds of index that a config names: those of words, and the dense one at the end.

    Raises:
      UserError: one is no such kind, or is named twice.
    """
    words = kinds_of_words(config.index.words, lambda kind: options_of(kind, config))
    return [Built(kind, options_of(kind, config)) for kind in (*words, INDEXES[config.index.dense])]


def kinds_of_words_of(collection: Collection, first: Iterable[str]) -> list[IndexKind]:
    """The kinds of index of words that a collection has; those that `first` names come first."""
    names = dict.fromkeys((*first, *sorted(OF_WORDS)))
    return [INDEXES[name] for name in names if name in OF_WORDS and collection.index(name).exists()]


def dense_kinds_of(collection: Collection) -> list[IndexKind]:
    """The kinds of index of embeddings that a collection has and that can be used here, without exact search."""
    kinds = (INDEXES[name] for name in sorted(DENSE) if name != EXACT)
    return [kind for kind in kinds if collection.index(kind.name).exists() and kind.available()]


def open_words(kind: IndexKind, collection: Collection, candidates: int | None = None) -> SavedIndex:
    """An index of words.

    Args:
      candidates: how many the collection has, where that is known.

    Raises:
      UserError: there is none, it is damaged, or it is over another number of texts.
    """
    folder = collection.index(kind.name)
    if not folder.exists():
        raise UserError(f"{folder}: no such index: add '{kind.name}' to config.index.words, and run --stage=index")
    index = kind.load(folder)
    if candidates is not None:
        check_count(folder, len(index), candidates)
    return index


def open_dense(kind: IndexKind, collection: Collection, options: Options, system: str = TRAINED) -> Index:
    """An index of the embeddings by one system, whose rows are candidates.

    Args:
      options: as `options_of` gives them; they count where the index is not saved, but built now.

    Raises:
      UserError: it is damaged, or over another number of texts.
    """
    if not kind.is_saved:
        return build_dense(kind, collection, options, system)
    ids = encoding.load_ids(collection.embeddings(), "candidates")
    index = open_shards(kind, collection, len(ids))
    return finished(index, options, lambda: StoredRows(collection.embeddings(), "candidates"), windows.owners(ids))


def open_shards(kind: IndexKind, collection: Collection, rows: int, part: slice = slice(None)) -> IndexShards:
    """A saved index of embeddings, or the shards of it that are a part.

    Args:
      rows: how many embeddings the collection has.

    Raises:
      UserError: a shard is missing or damaged, or it is over another number of texts.
    """
    folder = collection.index(kind.name)
    check_count(folder, sum(index_shards.counts(folder)), rows)
    return IndexShards.load(folder, kind.load, part)


def build_dense(kind: IndexKind, collection: Collection, options: Options, system: str = TRAINED) -> Index:
    """As `open_dense`, built now and not saved."""
    folder = collection.embeddings(system)
    owners_W = windows.owners(encoding.load_ids(folder, "candidates"))  # the ids are gone before the index is there
    rows = StoredRows(folder, "candidates")
    return finished(kind.build(rows if kind.spreads else rows[:], options), options, lambda: rows, owners_W)


def finished(index: Index, options: Options, rows: Callable[[], Any], owners_W: np.ndarray) -> Index:
    """An index over rows as one over candidates; its results are scored again where its options say so.

    Args:
      options: of the kind of index.
      rows: gives the rows, as an array or as `StoredRows`.
      owners_W: the candidate of each row.
    """
    if multiplier := options.get("index.rescore"):
        index = Rescored(index, rows().__getitem__, multiplier)
    return windows.over_candidates(index, owners_W)


def dense_kind_there(collection: Collection) -> IndexKind:
    """The kind of the dense index that a collection has and that can be used here, or exact search without one."""
    return next(iter(dense_kinds_of(collection)), INDEXES[EXACT])


def open_all(
    collection: Collection,
    first: Iterable[str],
    options_of: Callable[[IndexKind], Options],
    embed: Callable[..., np.ndarray] | None,
    depth: int,
    candidates: int | None = None,
    weight: float = fusion.DENSE_WEIGHT,
    others: Callable[[Mapping[str, Search]], Mapping[str, Search]] = lambda words: {},
) -> SideBySide:
    """All indexes of a collection side by side; the first one of words is merged with the dense one.

    Args:
      first: the kinds of words that come first, such as `config.index.words`.
      options_of: the options of a kind, by the config of the run that has made the indexes.
      embed: queries, and perhaps the name of their prompt, to embeddings [Q, E]; without it these are not searched.
      depth: results that a query will ask for.
      candidates: how many the collection has, where that is known.
      weight: of the dense list in the hybrid.
      others: gives further systems, which are not merged, by those of words.

    Raises:
      UserError: there is no index of words, or one is damaged or over another number of texts.
    """
    kinds = kinds_of_words_of(collection, first)
    if not kinds:
        more = " with config.encode.corpus=True" if collection.name == CORPUS else ""
        raise UserError(f"{collection.indexed}: there is no index of words: run the stages encode and index{more}")
    opened = {kind.name: open_words(kind, collection, candidates) for kind in kinds}
    words: dict[str, Search] = {name: index.search for name, index in opened.items()}
    words |= others(words)
    in_tables = {kind.name: kind.system_of(opened[kind.name]) for kind in kinds}
    if embed is None or not collection.has_embeddings():
        return SideBySide(words, depth=depth, in_tables=in_tables)
    kind = dense_kind_there(collection)
    index = open_dense(kind, collection, options_of(kind))
    in_tables[side_by_side.DENSE] = kind.system_of(index)

    def dense(queries: Sequence[str], k: int, *prompt: str) -> fusion.Run:
        return index.search(embed(queries, *prompt), k)

    return SideBySide(words, dense, weight, depth, in_tables)


def check_count(folder: Path, indexed: int, texts: int) -> None:
    """Checks that an index is over as many texts as there are."""
    if indexed != texts:
        what = f"older than what it was made from, over {indexed} texts where there are {texts} now"
        raise UserError(f"{folder}: {what}; --stage=index makes it again")

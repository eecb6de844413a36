"""The indexes over a collection: which of them there are, and how they are opened."""

import operator
from collections.abc import Iterable
from pathlib import Path

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.search import encoding, windows
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, OF_WORDS, IndexKind, Options, SavedIndex, kinds_of_words
from retrieval.search.windows import Index
from retrieval.stages.collection import TRAINED, Collection


def options_of(kind: IndexKind, config: ConfigDict) -> Options:
    """The values of the fields that a kind has as its options."""
    return {option: operator.attrgetter(option)(config) for option in kind.options}


def of_words(config: ConfigDict) -> list[IndexKind]:
    """The kinds of index of words that a config names.

    Raises:
      UserError: one is no such kind, or is named twice.
    """
    return kinds_of_words(config.index.words, lambda kind: options_of(kind, config))


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
        raise UserError(
            f"{folder}: there is no such index; add '{kind.name}' to config.index.words, and --stage=index builds it"
        )
    index = kind.load(folder)
    if candidates is not None:
        _check_count(folder, len(index), candidates)
    return index


def open_dense(kind: IndexKind, collection: Collection, options: Options, depth: int, system: str = TRAINED) -> Index:
    """An index of the embeddings by one system, whose rows are candidates.

    Args:
      options: as `options_of` gives them; they count where the index is not saved, but built now.
      depth: results that a query will ask for.

    Raises:
      UserError: it is damaged, or over another number of texts.
    """
    if not kind.is_saved:
        contents = collection.contents(depth, system)
        return windows.over_candidates(kind.build(contents, options), contents.owners_W)
    folder, ids = collection.index(kind.name), encoding.load_ids(collection.embeddings(), "candidates")
    saved = kind.load(folder)
    _check_count(folder, len(saved), len(ids))
    return windows.over_candidates(saved, windows.owners(ids))


def _check_count(folder: Path, indexed: int, texts: int) -> None:
    if indexed != texts:
        raise UserError(
            f"{folder}: older than what it was made from, over {indexed} texts where there are {texts} now; "
            "--stage=index makes it again"
        )

"""The kinds of index 'bm25' and 'bm25_also': BM25 over a passage's title and text.

A kind of one's own that indexes other words of a passage inherits from `Bm25Kind`.
"""

import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from retrieval.errors import UserError
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import Cost, IndexKind, Options, Passage, Planned, Texts, register
from retrieval.search.words import Words

# Of an entry, a distinct word of a passage: of the process that builds, at its peak (docs/scale.md), and of the index.
_BYTES_BUILDING, _BYTES_HELD = 27, 8
_WIDER_BUILDING, _WIDER_HELD = 12, 4  # the same, more, where SciPy counts entries with 64 bits

WORDS = ("index.bm25_stop_words", "index.bm25_stemmer", "index.bm25_accents", "index.bm25_identifiers")


class Bm25Kind(IndexKind):
    """A kind whose indexes are `Bm25Index`.

    Attributes:
      document: what is indexed of a passage, in words for a report.
    """

    of_words = True
    options = ("index.bm25_k1", "index.bm25_b", *WORDS)
    document = "title + text"

    def text(self, passage: Passage) -> str:
        """What is indexed (of ReQA: sentence and passage; the sentence alone flatters the rest)."""
        return f"{passage.title} {passage.text}".strip()

    def parameters(self, options: Options) -> tuple[float, float]:
        """k1 and b."""
        return options["index.bm25_k1"], options["index.bm25_b"]

    def texts(self, contents: Texts, options: Options) -> Iterable[str]:
        """What is indexed, of every passage."""
        return map(self.text, contents.passages())

    def build(self, contents: Texts, options: Options) -> Bm25Index:
        k1, b = self.parameters(options)
        texts = self.texts(contents, options)
        try:
            return Bm25Index.build(texts, self.document, k1, b, words(contents, options))
        except UserError as error:
            raise UserError(f"the collection '{contents.name}': {error}") from error

    def cost(self, planned: Planned, options: Options) -> Cost | None:
        if planned.sample is None:
            return None
        began = time.perf_counter()
        index = self.build(planned.sample, options)
        times = planned.passages / len(index)
        entries = times * index.entries
        building, held = _BYTES_BUILDING, _BYTES_HELD
        if entries >= np.iinfo(np.int32).max:
            building, held = building + _WIDER_BUILDING, held + _WIDER_HELD
        return Cost(times * (time.perf_counter() - began), building * entries, held * entries)

    def load(self, folder: Path) -> Bm25Index:
        return Bm25Index.load(folder)


def words(contents: Texts, options: Options) -> Words:
    """What counts as a word. With a vocabulary accents are folded as the towers do, or BM25 would be the weaker."""
    accents = options["index.bm25_accents"]
    folds = contents.folds_accents() if accents == "vocabulary" else accents == "fold"
    identifiers = options["index.bm25_identifiers"]
    return Words(options["index.bm25_stop_words"], options["index.bm25_stemmer"], folds, identifiers)


@register
class Bm25(Bm25Kind):
    """The usual baseline."""

    name, title, system = "bm25", "BM25", "bm25"
    options = (*Bm25Kind.options, "index.bm25_also")

    def beside(self, options: Options) -> tuple[str, ...]:
        return (Bm25Also.name,) if options["index.bm25_also"] else ()


@register
class Bm25Also(Bm25Kind):
    """BM25 with a k1 and b of its own."""

    name, title, system = "bm25_also", "second BM25", "bm25 (k1, b)"
    options = ("index.bm25_also", *WORDS)

    def check(self, options: Options) -> None:
        if not options["index.bm25_also"]:
            raise UserError("config.index.bm25_also=(): give the index bm25_also its k1 and b, such as 0.9,0.4")

    def parameters(self, options: Options) -> tuple[float, float]:
        k1, b = options["index.bm25_also"]
        return k1, b

    def system_of(self, index: Bm25Index) -> str:
        return f"bm25 ({index.k1:g}, {index.b:g})"

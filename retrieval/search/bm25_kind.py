"""The kinds of index 'bm25' and 'bm25_also': BM25 over a passage's title and text.

A kind of one's own that indexes other words of a passage inherits from `Bm25Kind`.
"""

from pathlib import Path

from retrieval.errors import UserError
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import IndexKind, Options, Passage, Texts, register
from retrieval.search.words import Words

WORDS = ("index.bm25_stop_words", "index.bm25_stemmer", "index.bm25_accents")


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

    def build(self, contents: Texts, options: Options) -> Bm25Index:
        of = words(contents, options)
        try:
            texts = map(self.text, contents.passages())
            return Bm25Index.build(texts, self.document, *self.parameters(options), of)
        except UserError as error:
            raise UserError(f"the collection '{contents.name}': {error}") from error

    def load(self, folder: Path) -> Bm25Index:
        return Bm25Index.load(folder)


def words(contents: Texts, options: Options) -> Words:
    """What counts as a word. With a vocabulary accents are folded as the towers do, or BM25 would be the weaker."""
    accents = options["index.bm25_accents"]
    folds = contents.folds_accents() if accents == "vocabulary" else accents == "fold"
    return Words(options["index.bm25_stop_words"], options["index.bm25_stemmer"], folds)


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

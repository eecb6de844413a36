"""The kinds of index 'bm25' and 'bm25_also': BM25 over a passage's title and text.

A kind of one's own that indexes other words of a passage inherits from `Bm25Kind`.
"""

from collections.abc import Iterable
from pathlib import Path

from retrieval.config.fields import NOT_NEGATIVE, SHARE, SWITCH, Field, Kind, declare, one_of
from retrieval.errors import UserError
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import IndexKind, Options, Passage, Texts, register
from retrieval.search.words import STEMMERS, STOP_WORDS, Words

ACCENTS = ("vocabulary", "fold", "keep")

_K1_B = Kind(
    "k1 from 0 on and b from 0 to 1, such as 0.9,0.4, or ()",
    lambda value: (
        isinstance(value, tuple | list)
        and (not value or (len(value) == 2 and NOT_NEGATIVE.fits(value[0]) and SHARE.fits(value[1])))
    ),
)
declare(
    "index",
    bm25_k1=Field(1.5, NOT_NEGATIVE, "k1 of BM25; the field's settings are k1 1.5, b 0.75 and k1 0.9, b 0.4"),
    bm25_b=Field(0.75, SHARE, "b of BM25"),
    bm25_also=Field((), _K1_B, "k1 and b of a second BM25 in the tables, such as 0.9,0.4, or ()"),
    bm25_stop_words=Field("english", one_of("list of stop words", STOP_WORDS), "words left out; english: Lucene's 33"),
    bm25_stemmer=Field("none", one_of("stemmer", STEMMERS), "Snowball's stemmer of a language, or none"),
    bm25_accents=Field(
        "vocabulary", one_of("way with accents", ACCENTS), "whether 'café' is 'cafe': fold, keep or vocabulary"
    ),
    bm25_identifiers=Field(
        False, SWITCH, "whether a name such as zipfile.ZipFile is a word as a whole too, and in parts", was=False
    ),
)

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

"""The words that BM25 finds in a text.

A word is a run of two or more letters, digits and underscores in lower case. Wide and half-width letters count as
ordinary ones (Unicode's NFKC). Chinese, Japanese, Korean, Thai, Lao, Khmer and Burmese put no spaces between words, or
join them with particles. There each pair of neighbouring letters is a word, and so is a letter that stands alone.
"""

import dataclasses
import functools
import importlib.machinery
import importlib.util
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, pairwise
from types import ModuleType

import Stemmer

from retrieval.common.errors import unknown_name
from retrieval.common.parsing import accents

NONE = "none"

# Our names for the lists in bm25s. It has some for Chinese and Korean too, which pairs of letters do not match.
_LANGUAGES = "danish dutch french german italian norwegian portuguese russian spanish swedish turkish".split()
_LISTS = {name: f"STOPWORDS_{name.upper()}" for name in _LANGUAGES}
_LISTS |= {"english": "STOPWORDS_EN", "english_plus": "STOPWORDS_EN_PLUS"}  # the former are the 33 of Lucene
STOP_WORDS = (NONE, *_LISTS)
STEMMERS = (NONE, *Stemmer.algorithms())

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
# Scripts without spaces: Han, Kana, Bopomofo, Hangul, Thai, Lao, Burmese and Khmer.
_UNSPACED = (
    f"{_HAN}\u3005-\u3007\u3041-\u31ff\u1100-\u11ff\ua960-\ua97f"
    "\uac00-\ud7ff\u0e00-\u0eff\u1000-\u109f\ua9e0-\ua9ff\uaa60-\uaa7f\u1780-\u17ff"
)
# Accents and vowel signs, which Python's \w leaves out. Those of rare scripts behind U+FFFF would make the search slow.
_MARKS = "".join(c for c in map(chr, range(0x300, 0x10000)) if unicodedata.category(c) in ("Mn", "Mc"))

_ASCII_RUN = re.compile(r"\w\w+")
_RUN = re.compile(rf"[\w{_MARKS}]+")
_PART = re.compile(rf"[{_UNSPACED}][{_UNSPACED}{_MARKS}]*|[^{_UNSPACED}]+")
_STARTS_UNSPACED = re.compile(f"[{_UNSPACED}]")
_ENDS_UNSPACED = re.compile(f"[{_UNSPACED}][{_MARKS}]*$")
_HAN_LETTER = re.compile(f"[{_HAN}]")
_LETTER = re.compile(rf".[{_MARKS}]*")

# The time of a normal form is quadratic in neighbouring marks. No letter has 30 (https://unicode.org/reports/tr15).
_MANY_MARKS = re.compile(rf"([{_MARKS}]{{30}})[{_MARKS}]+")


@dataclasses.dataclass(frozen=True)
class Words:
    """What counts as a word, and as the same word.

    Attributes:
      stop_words: the list of words that are left out, one of STOP_WORDS.
      stemmer: Snowball's algorithm that takes endings off, one of STEMMERS.
      fold_accents: whether 'café' and 'cafe' are one word.

    Raises:
      UserError: a name is unknown.
    """

    stop_words: str = "english"
    stemmer: str = NONE
    fold_accents: bool = True

    def __post_init__(self) -> None:
        if self.stop_words not in STOP_WORDS:
            raise unknown_name("list of stop words", self.stop_words, STOP_WORDS)
        if self.stemmer not in STEMMERS:
            raise unknown_name("stemmer", self.stemmer, STEMMERS)

    @property
    def description(self) -> str:
        """In words for a report."""
        name = self.stop_words.replace("_", " ").capitalize()
        left_out = "no stop words" if self.stop_words == NONE else f"{name} stop words left out"
        stemming = "no stemming" if self.stemmer == NONE else f"stemmed by Snowball's '{self.stemmer}'"
        return f"{left_out}, {stemming}, accents {'folded' if self.fold_accents else 'kept'}"

    def of(self, texts: Iterable[str]) -> Iterator[Iterator[str]]:
        """The words of each text, in order."""
        known = _Runs(self)
        for text in texts:
            yield chain.from_iterable(map(known.__getitem__, _runs(text)))


ENGLISH = Words()


class _Runs(dict[str, tuple[str, ...]]):
    """A run of letters -> its words. Runs that are one word come again, and are looked at once."""

    def __init__(self, words: Words):
        self._fold: Callable[[str], str] = accents.fold if words.fold_accents else str
        left_out = () if words.stop_words == NONE else getattr(_lists(), _LISTS[words.stop_words])
        self._stop_words = set(map(self._fold, left_out))
        self._stem = str if words.stemmer == NONE else Stemmer.Stemmer(words.stemmer).stemWord

    def __missing__(self, run: str) -> tuple[str, ...]:
        run_folded = self._fold(run)
        parts = [run_folded] if run_folded.isascii() else _PART.findall(run_folded)
        words = tuple(chain.from_iterable(map(self._words, parts)))
        if len(words) < 2:
            self[run] = words
        return words

    def _words(self, part: str) -> Iterable[str]:
        if _STARTS_UNSPACED.match(part):
            letters = _LETTER.findall(part)
            return map("".join, pairwise(letters)) if len(letters) > 1 else letters
        # Accents go before endings do: so words that differ in accents alone never get two stems.
        return () if len(part) < 2 or part in self._stop_words else (self._stem(part),)


def spans(text: str) -> Iterator[tuple[int, int]]:
    """Where in a text its words can be: runs of letters; in scripts without spaces, pairs of neighbouring letters."""
    if text.isascii():
        yield from (run.span() for run in _ASCII_RUN.finditer(text))
        return
    for run in _RUN.finditer(text):
        for part in _PART.finditer(text, *run.span()):
            is_unspaced = _STARTS_UNSPACED.match(part[0])
            letters = [letter.span() for letter in _LETTER.finditer(text, *part.span())] if is_unspaced else []
            if len(letters) > 1:
                yield from ((first[0], last[1]) for first, last in pairwise(letters))
            else:
                yield part.span()


def paired(words: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """Weighed words of WordPiece as words of BM25: it makes each Han letter one, and here neighbours are pairs.

    A pair has the larger of its weights. Only where one of two words is a Han letter need no space be between them.
    """
    run: list[tuple[str, float]] = []
    for word, weight in words:
        if run and not _are_neighbours(run[-1][0], word):
            yield from _pairs(run)
            run = []
        run.append((word, weight))
    yield from _pairs(run)


def _are_neighbours(left: str, right: str) -> bool:
    is_parted = _HAN_LETTER.fullmatch(left) or _HAN_LETTER.fullmatch(right)
    return bool(is_parted and _ENDS_UNSPACED.search(left) and _STARTS_UNSPACED.match(right))


def _pairs(run: Sequence[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    if len(run) < 2:
        yield from run
        return
    text = "".join(word for word, _ in run)
    weights = [weight for word, weight in run for _ in word]
    for start, end in spans(text):
        yield text[start:end], max(weights[start:end])


def _runs(text: str) -> list[str]:
    """What stands between spaces and punctuation, in lower case."""
    if text.isascii():
        return _ASCII_RUN.findall(text.lower())
    return _RUN.findall(unicodedata.normalize("NFKC", _MANY_MARKS.sub(r"\1", text)).lower())


@functools.cache
def _lists() -> ModuleType:
    """The module of bm25s with the lists, alone: importing the package starts JAX's devices, and BM25 needs none."""
    package = importlib.util.find_spec("bm25s")
    spec = importlib.machinery.PathFinder.find_spec("stopwords", package and package.submodule_search_locations)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

"""Whether a passage holds an answer, as DPR (Karpukhin et al. 2020) and those after it count it.

Passage and answer are brought into one Unicode form (NFD), cut into tokens and lower-cased. An answer is in a passage
that has its tokens in a row. A token is a run of letters, digits and marks. Any other single character is a token too,
but for separators and control characters. CuratedTREC's answers are regular expressions instead, which are searched for
in the passage, in NFD too. Titles are not looked at.
"""

import functools
import itertools
import logging
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.common.parsing import foreign_text
from retrieval.common.parsing.foreign_text import time_limit

_log = logging.getLogger(__name__)

_HELD = 100_000  # passages whose tokens are held at a time: those of 100 words take about 100 MB
_SECONDS = 10.0  # for the regular expressions of a question, which take milliseconds if they are not of the bad kind
# What CuratedTREC's have and texts have not: \s, \. and the like (but no \beta), .*, (...)? and a|b.
_OF_PATTERNS = re.compile(r"\\(?:[bdswBDSW](?![a-z])|[.?*+])|\.[*+]|\)\?|[^\s|]\|[^\s|]")


class Answers(NamedTuple):
    """The answers of a question, texts or regular expressions; made by `of_texts` or `of_patterns`."""

    values: tuple[str, ...]
    are_patterns: bool = False


def of_texts(texts: Iterable[str]) -> Answers:
    """Each text once, without those that have no token: every passage would hold them."""
    return Answers(tuple(text for text in dict.fromkeys(texts) if words(text).strip()))


def of_patterns(patterns: Iterable[str], at: str) -> Answers:
    """Each regular expression once, without those that fit the empty text: they fit in every passage.

    Raises:
      UserError: one of them, read at `at`, is none, or takes too long on the empty text.
    """
    patterns = tuple(dict.fromkeys(patterns))
    with time_limit(_SECONDS, f"{at}: {_too_slow(patterns)}"):
        compiled = [foreign_text.compiled(pattern, at) for pattern in patterns]
        return Answers(tuple(pattern for pattern, one in zip(patterns, compiled) if not one.search("")), True)


def warn_of_patterns(path: Path, answers: Mapping[str, Answers], way_out: str) -> None:
    """Warns in the log of answers that are read as texts and look like CuratedTREC's regular expressions.

    Args:
      way_out: what to do if they are some.
    """
    values = [value for own in answers.values() if not own.are_patterns for value in own.values]
    if like := [value for value in values if _OF_PATTERNS.search(value)]:
        what = "%s: %d answers look like regular expressions and are read as texts, such as '%s': if they are, %s"
        _log.warning(what, path, len(like), foreign_text.shown(like[0]), way_out)


def words(text: str) -> str:
    """The tokens of a text, with one blank before, between and behind them."""
    return f" {' '.join(match.group() for match in _tokens_of(unicodedata.normalize('NFD', text)))} ".lower()


def _tokens_of(plain: str) -> Iterator[re.Match]:
    """The tokens of a text in NFD."""
    return _token().finditer(plain)


def holding(answers_Q: Sequence[Answers | None], rows_QK: np.ndarray, text: Callable[[int], str]) -> np.ndarray:
    """Which results hold an answer of their query: bool [Q, K].

    3,610 questions with 100 passages of 100 words each take about 15 s. To be called in the main thread.

    Args:
      answers_Q: of each query; where there are none, no result holds one.
      rows_QK: the results; -1 where there is none.
      text: gives the passage of a row. It may read it from the disk: of the most recent ones the tokens are held.

    Raises:
      UserError: a regular expression takes too long.
    """
    holds, holds_QK = finder(text), np.zeros(rows_QK.shape, bool)
    for answers, rows_K, holds_K in zip(answers_Q, rows_QK, holds_QK, strict=True):
        if answers:
            holds_K[:] = np.isin(rows_K, holds(answers, [row for row in np.unique(rows_K).tolist() if row >= 0]))
    return holds_QK


def finder(text: Callable[[int], str]) -> Callable[[Answers, Collection[int]], list[int]]:
    """A function that says which of some rows hold an answer of a question, one question after the other.

    Args:
      text: as in `holding`.
    """
    words_of = functools.lru_cache(_HELD)(lambda row: words(text(row)))
    plain_of = functools.lru_cache(_HELD)(lambda row: unicodedata.normalize("NFD", text(row)))

    def holds(answers: Answers, rows: Collection[int]) -> list[int]:
        if not answers.are_patterns:
            wanted = [tokens for value in answers.values if (tokens := words(value)).strip()]
            return [row for row in rows if any(value in words_of(row) for value in wanted)]
        compiled = [foreign_text.compiled(pattern, "") for pattern in answers.values]
        texts = {row: plain_of(row) for row in rows}  # before the clock runs: a disk may be slow
        with time_limit(_SECONDS, f"in the passages of a question {_too_slow(answers.values)}"):
            return [row for row in rows if any(pattern.search(texts[row]) for pattern in compiled)]

    return holds


def places(answers: Answers, text: str) -> list[tuple[int, int]]:
    """Where the answers of a question stand in a text: first character and the one behind the last, each place once.

    Texts match as `holding` has it, and patterns wherever they fit (all of `finditer`).

    Raises:
      TooSlowError: a regular expression takes too long.
    """
    plain, origins = _decomposed(text)
    if answers.are_patterns:
        compiled = [foreign_text.compiled(pattern, "") for pattern in answers.values]
        with time_limit(_SECONDS, f"in a paragraph {_too_slow(answers.values)}"):
            spans = [match.span() for pattern in compiled for match in pattern.finditer(plain) if match.group().strip()]
    else:
        held = words(text)
        if not (wanted_by := [tokens.split() for value in answers.values if (tokens := words(value)) in held]):
            return []  # most paragraphs
        matches = list(_tokens_of(plain))
        tokens = [match.group().lower() for match in matches]
        spans = [
            (matches[place].start(), matches[place + len(wanted) - 1].end())
            for wanted in wanted_by
            for place, token in enumerate(tokens)
            if token == wanted[0] and tokens[place : place + len(wanted)] == wanted
        ]
    return sorted({(origins[start][0], origins[end - 1][1]) for start, end in spans})


def _decomposed(text: str) -> tuple[str, Sequence[tuple[int, int]]]:
    """A text in NFD, and for each of its characters where that comes from: first character, and the one behind."""
    if text.isascii():
        return text, [(place, place + 1) for place in range(len(text))]
    parts, origins = [], []
    starts = [place for place, character in enumerate(text) if not place or not unicodedata.combining(character)]
    for start, end in zip(starts, [*starts[1:], len(text)]):
        parts.append(unicodedata.normalize("NFD", text[start:end]))  # a letter with all its marks
        origins += [(start, end)] * len(parts[-1])
    return "".join(parts), origins


def _too_slow(patterns: Collection[str]) -> str:
    return (
        f"the regular expression '{foreign_text.shown('|'.join(patterns))}' takes more than {_SECONDS:.0f} s: write "
        "it without repetitions of what is itself repeated, such as (a+)+, in the file of questions"
    )


@functools.cache
def _token() -> re.Pattern:
    """Fits one token. Python's `re` has no classes of Unicode: these are their ranges."""
    ranges = {"word": "", "other": "", "none": ""}
    for kind, codes in itertools.groupby(range(sys.maxunicode + 1), key=_kind):
        first, *rest = codes
        ranges[kind] += f"\\U{first:08x}-\\U{rest[-1] if rest else first:08x}"
    return re.compile(f"[{ranges['word']}]+|[{ranges['other']}]")


def _kind(code: int) -> str:
    category = unicodedata.category(chr(code))[0]
    return "word" if category in "LNM" else "none" if category in "ZC" else "other"

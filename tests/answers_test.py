"""Whether a passage holds an answer: cases by hand, a brute force written from DPR's definition, and real files."""

import random
import re
import signal
import sys
import time

import numpy as np
import pytest
from support.answers_reference import brute_force, tokens

from retrieval.common.errors import UserError
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers, of_patterns, of_texts, words


def holds(passage, answer, are_patterns=False):
    """Of one passage and one answer."""
    return bool(answers.holding([Answers((answer,), are_patterns)], np.zeros((1, 1), int), [passage].__getitem__)[0, 0])


@pytest.mark.parametrize(
    ("passage", "answer", "expected"),
    [
        ("He lived in Paris.", "paris", True),
        ("A comparison", "paris", False),  # whole tokens
        ("New York City", "New City", False),  # in a row
        ("the U.S. Army", "U.S.", True),
        ("the Saint-Lawrence River", "Saint Lawrence", False),  # the hyphen is a token
        ("covid19", "19", False),  # letters and digits are one run
        ("Beyonc\u00e9", "Beyonce\u0301", True),  # composed or not
        ("Beyonc\u00e9", "Beyonce", False),  # the mark is part of the word
        ("a 𠀋 b", "𠀋", True),
        ("x_y", "x", True),  # connectors are tokens
        ("soft\u00adware", "soft ware", True),  # a format character parts tokens and is none
    ],
)
def test_cases(passage, answer, expected):
    assert holds(passage, answer) == expected


def test_as_a_brute_force_on_drawn_texts():
    rng = random.Random(0)
    alphabet = [*"aAbB1 .-'", "\u00e9", "e\u0301", "\u0130", "ẞ", "Σ", "東", "🚁", "𠀋", "\u00ad", "\u2028", "_", "½"]
    hits = 0
    for _ in range(2000):
        passage, answer = ("".join(rng.choices(alphabet, k=rng.randint(0, size))) for size in (40, 4))
        assert holds(passage, answer) == brute_force(passage, answer), (passage, answer)
        hits += brute_force(passage, answer)
    assert 100 < hits < 1900


def test_every_character_is_of_its_kind():
    """But for surrogates, which no file holds, and thirty of 31: side by side they are of the same kinds."""
    text = " x ".join(map(chr, [*range(0, 0xD800), *range(0xE000, sys.maxunicode + 1, 31)]))
    assert words(text).split(" ")[1:-1] == tokens(text)


def test_repeated_and_missing_rows():
    asked = [of_texts(["x"]), None, of_texts(["y"])]
    rows_QK = np.array([[0, 1, -1], [0, 1, 2], [2, 1, 2]])
    read = []

    def text(row):
        read.append(row)
        return ["an x", "x and y", "neither"][row]

    assert answers.holding(asked, rows_QK, text).tolist() == [[True, True, False], [False] * 3, [False, True, False]]
    assert sorted(read) == [0, 1, 2]  # each once


@pytest.mark.parametrize(
    ("passage", "pattern", "expected"),
    [
        ("It is 20,320 feet", r"20\s?,?\s?(32|40)0\s?-?\s?f(ee|oo)t", True),
        ("it is 20 fathoms", r"20\s?,?\s?(32|40)0\s?-?\s?f(ee|oo)t", False),
        ("SEPT", "Sept?(ember)?", True),
        ("one\ntwo", "^two$", True),  # of a line
        ("Sn\u011b\u017eka", r"Sn\ě\žka", True),  # an escape of a letter with a mark, as CuratedTREC has it
        ("Sne\u030cz\u030cka", "Sněžka", True),
        ("a\\e", r"a\\é|a\\e", True),
        ("words", "word", True),
    ],
)
def test_patterns(passage, pattern, expected):
    assert holds(passage, pattern, are_patterns=True) == expected


@pytest.mark.parametrize(
    "pattern", ["(", "a{99999999999}", f"a{{{5000 * '1'}}}", "*", "(?P<a>x)(?P<a>y)", "(" * 2000 + ")" * 2000, "a\\"]
)
def test_what_is_no_pattern(pattern):
    with pytest.raises(UserError, match=r"f\.tsv, line 3: '.*' is no regular expression"):
        of_patterns([pattern], "f.tsv, line 3")


@pytest.mark.parametrize(
    ("pattern", "search"),
    [
        ("(a+)+$", lambda pattern: holds("a" * 60 + "!", pattern, are_patterns=True)),
        ("(?:(?:(?:){300}){300}){300}", lambda pattern: of_patterns([pattern], "f.tsv, line 3")),
    ],
)
def test_a_pattern_that_would_take_for_ever_ends(monkeypatch, pattern, search):
    monkeypatch.setattr(answers, "_SECONDS", 0.2)
    before, began = signal.getsignal(signal.SIGALRM), time.perf_counter()
    with pytest.raises(UserError, match=rf"expression '{re.escape(pattern)}' takes more than .* file of questions"):
        search(pattern)
    assert time.perf_counter() - began < 5
    assert signal.getsignal(signal.SIGALRM) is before and signal.getitimer(signal.ITIMER_REAL) == (0, 0)

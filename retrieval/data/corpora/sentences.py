"""Sentence breaks, by rules.

In scripts with capitals, a break begins with a full stop, ellipsis, question or exclamation mark. Closing quotes,
brackets and citation marks may follow, then white space, then a capital letter or a digit. A full stop after a title,
an abbreviation or an initial is none, unless the next word is one that begins sentences ("left the U.S. They never
..."). In a text without capitals, or of capitals alone, a small letter may follow too. The words are those of English
and of other large Wikipedias; nothing asks which language a text has.

The full stops of other scripts (`。`, `।`, `۔`, `؟` ...) need no white space behind them.

A text without such marks, such as transcribed speech, is cut at line breaks, then into windows of words. So no text is
one endless sentence.
"""

import itertools
import math
import operator
import re
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

# Every repetition is bounded or cannot give back what it took, so that the time is linear whatever the text is.
_BREAK = re.compile(
    r"""(?:[.?!…]|(?<=[\u0370-\u03ff\u1f00-\u1fff]);)(?<!\?(?=\]))  # `;` asks in Greek; not the mark of [who?]
        [.?!…)\]}"'’”»]{0,6}                        # what closes with the sentence
        (?:\[[^\[\]\n]{1,30}\]){0,6}                # [1], [citation needed]
        (?=(\s++)["'(\[{‘“«]{0,3}([^\W_][\w.-]{0,15}))""",
    re.VERBOSE,
)
# The full stops of other scripts. The group is as in _BREAK: the white space behind.
_STOPS = "。｡！？؟۔।॥።፧։။៕‼⁇⁈⁉"
_CLOSERS = "」』）】〉》〕］｣”’\"'»)\\]"
_CJK = "\u3041-\u30ff\u3400-\u9fff"
_STOP = re.compile(
    rf"""(?:(?<![(（「『〈《])[{_STOPS}]                   # not the mark of (？)
            |．(?!\d)                                   # not the point of １．５
            |(?<=[{_CJK}])[?!](?=[{_CJK}」』]))
        [{_STOPS}．.?!…]{{0,6}}[{_CLOSERS}]{{0,6}}
        (?:\[[^\[\]\n]{{1,30}}\]){{0,6}}
        (?=(\s*+))""",
    re.VERBOSE,
)
# What goes on behind a quotation, or behind a name that ends in a mark: Japanese particles and commas.
_GOES_ON = tuple("とのをがに、，,")
_FULL_STOPS = frozenset("。｡۔।॥።։။៕．")

# In words: of a window; of the longest sentence with a mark at its end; of the longest without.
_WINDOW, _LONGEST, _LONGEST_UNMARKED = 24, 400, 48
# Where no spaces stand between words (Thai to Burmese, Khmer, CJK) two characters count as one.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3001-\u31ff\u3400-\u9fff\uf900-\ufaff\uff61-\uff9f\U00020000-\U0003ffff"
)
# Vowel signs and tones stay with their letter.
_SIGNS = "".join(c for c in map(chr, range(0x0E00, 0x3100)) if unicodedata.category(c) in ("Mn", "Mc"))
_ONE_WORD = re.compile(f"(?:[{_UNSPACED}][{_SIGNS}]*+){{1,2}}+|[^\\s{_UNSPACED}]++")
_LINE = re.compile(r"\S.*")
_LAST_MARK = re.compile(f"[{_STOPS}．.?!…][{_CLOSERS}]{{0,6}}(?:\\[[^\\[\\]]{{1,30}}\\]){{0,6}}\\Z")
_ANY_MARK = re.compile(f"[{_STOPS}．.?!…]")
# Characters of a text that is too short to tell that it has no capitals: a note or an item of a list may have none.
_SHORT = 240
_ENDS = re.compile(r"[^\W\d_]{3,}[.?!…]{1,3}\s+\S")
_PRONOUN = re.compile(r"\bI\b")

_WORD_BEFORE = re.compile(r"""([(\[](?=[A-Za-z.]*\Z))?([^\s"'(\[{‘“«–—-]*)\Z""")
_ARABIC_INITIALS = re.compile(r"(?:[\u0621-\u064a]\.)*[\u0621-\u064a]")  # أ.د
_SPACED = re.compile(r"(?<!\w)(?!н\.\sе)[^\W\d_]\.\s[^\W\d_]\Z")  # 'h. c.', 'u. a.', 'т. е.', but not 'пр. н. е.'
_NUMBER = re.compile(r"\d|[IVXLC]{2,}\b|[VX]\b")


_LANGUAGES = tomllib.loads(Path(__file__).with_name("languages.toml").read_text(encoding="utf-8"))
_NEVER_LAST, _SELDOM_LAST, _BEFORE_NUMBER, _PLACES, _COUNTED, _STARTERS = (
    frozenset(_LANGUAGES["sentences"][name].split())
    for name in ("never_last", "seldom_last", "before_number", "places", "counted", "starters")
)
_AFTER_MONTH = re.compile(r"(?:uary|March|April|May|June|July|August|ber)\s\d+\Z")  # 'on August 11. August is'
# In a text without capitals they seldom begin a sentence behind an abbreviation.
_JOINING = ("and", "or", "but")
_ABBREVIATIONS = _NEVER_LAST | _SELDOM_LAST | _BEFORE_NUMBER


def split(text: str, one_case: bool | None = None) -> list[tuple[int, int]]:
    """The (start, end) of each sentence, in order, without the white space around it.

    The spans cover every character that is not white space. A line break is white space like any other, but in a text
    that has no sentences.

    Args:
      one_case: `is_of_one_case` of the document that the text is from; None asks it of the text itself.
    """
    one_case = is_of_one_case(text) if one_case is None else one_case
    spans: list[tuple[int, int]] = []
    start = len(text) - len(text.lstrip())
    for match in _marks(text, start):
        if match.start() >= start and _ends_sentence(text, start, match, one_case):
            spans.append((start, match.end()))
            start = match.end(1)
    end = len(text.rstrip())
    spans += [(start, end)] if start < end else []
    if all(end - start < 2 * _LONGEST_UNMARKED for start, end in spans):
        return spans
    return [piece for start, end in spans for piece in _pieces(text, start, end, one_case)]


def has_mark(text: str) -> bool:
    """Whether there is a mark in a text that may end a sentence."""
    return _ANY_MARK.search(text) is not None


def is_of_one_case(text: str) -> bool:
    """Whether a text has no capital but the pronoun 'I', or nothing but capitals, or a script without.

    A short one has to have two marks that look like ends of sentences, too.
    """
    if len(text) < _SHORT and len(_ENDS.findall(text)) < 2:
        return False
    without = _PRONOUN.sub("i", text)
    return text.isupper() or without == without.lower()


def _marks(text: str, start: int) -> Iterable[re.Match[str]]:
    """Where a sentence may end, in order."""
    breaks, stops = _BREAK.finditer(text, start), () if text.isascii() else _STOP.finditer(text, start)
    return sorted((*breaks, *stops), key=operator.methodcaller("start")) if stops else breaks


def _ends_sentence(text: str, start: int, match: re.Match[str], one_case: bool) -> bool:
    if match.start() - start <= 3 and text[start : match.start()].strip().isdigit():  # the number of a list's item
        return False
    if match.re is _STOP:
        goes_on = match[0][-1] not in _FULL_STOPS and text.startswith(_GOES_ON, match.end())
        return not goes_on and not _is_in_brackets(text[max(start, match.end() - 100) : match.end()])
    next_word = match[2]
    if next_word[0].islower() and not one_case:
        return False
    if match[0] != ".":
        return True
    # The abbreviations are short; the bound keeps a text of one endless word cheap.
    up_to = text[max(0, match.start() - 16) : match.start()]
    before = _WORD_BEFORE.search(up_to)
    assert before, "the last word may be empty"
    bracket, word = before.groups()
    if one_case and next_word in _JOINING and (word == "etc" or word in _SELDOM_LAST):
        return False
    if one_case:
        word, next_word = word if word in _ABBREVIATIONS else word.title(), next_word.title()
    if bracket or word in _NEVER_LAST:
        return False
    if word.isdigit() and len(word) <= 2 and next_word in _COUNTED:
        return _AFTER_MONTH.search(up_to) is not None
    if len(word) == 1 and word.islower() and next_word[0].isalpha() and next_word[1:] == ".":
        return False  # 'z. B.'
    if word in _PLACES and not up_to[: -len(word)].rstrip()[-1:].isdigit():
        return False
    spaced = _SPACED.search(up_to)
    is_spaced = spaced is not None and spaced[0].islower()
    if word in _BEFORE_NUMBER and not is_spaced:
        return not _NUMBER.match(next_word)
    if is_spaced or word in _SELDOM_LAST or _is_initials(word):
        return next_word in _STARTERS
    return True


def _is_initials(word: str) -> bool:
    """Whether a word is an initial or more of them, of any script that has some: J, U.S, Ph.D, А, أ.د."""
    if (len(word) == 1 and word.isupper()) or _ARABIC_INITIALS.fullmatch(word):
        return True
    parts = word.split(".")
    initial = [part[:1].isupper() and (len(part) == 1 or (len(part) == 2 and part[1].islower())) for part in parts]
    return len(parts) > 1 and all(initial)


def _is_in_brackets(before: str) -> bool:
    return max(map(before.rfind, "(（")) > max(map(before.rfind, ")）"))


def _pieces(text: str, start: int, end: int, one_case: bool) -> Iterator[tuple[int, int]]:
    """A sentence as it is, or its lines, or windows of these: what is too long was no sentence."""
    is_marked = not one_case or _LAST_MARK.search(text, max(start, end - 200), end)
    longest = _LONGEST if is_marked else _LONGEST_UNMARKED
    if end - start < 2 * longest or len(_words_in(text, start, end)) <= longest:
        yield start, end
        return
    for line in _LINE.finditer(text, start, end):
        words = _words_in(text, line.start(), line.end())
        count = math.ceil(len(words) / _WINDOW) if len(words) > longest else 1
        bounds = [words[len(words) * i // count] for i in range(count)] + [line.end()]
        for first, last in itertools.pairwise(bounds):
            yield first, first + len(text[first:last].rstrip())


def _words_in(text: str, start: int, end: int) -> list[int]:
    """Where words begin."""
    return [word.start() for word in _ONE_WORD.finditer(text, start, end)]

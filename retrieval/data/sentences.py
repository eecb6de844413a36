"""English sentence breaks, by rules.

A break is a full stop, ellipsis, question or exclamation mark, with the closing quotes, brackets and citation marks
that follow it, then white space, then a capital letter or a digit. A full stop after a title, an abbreviation or an
initial is none, unless the next word is one that begins sentences ("left the U.S. They never ...").
"""

import re

# Every repetition is bounded or cannot give back what it took, so that the time is linear whatever the text is.
_BREAK = re.compile(
    r"""[.?!…](?<!\?(?=\]))                       # not the mark of [who?]
        [.?!…)\]}"'’”»]{0,6}                        # what closes with the sentence
        (?:\[[^\[\]\n]{1,30}\]){0,6}                # [1], [citation needed]
        (?=(\s++)["'(\[{‘“«]{0,3}([^\W_][\w.-]{0,15}))""",
    re.VERBOSE,
)
_WORD_BEFORE = re.compile(r"""([(\[](?=[A-Za-z.]*\Z))?([^\s"'(\[{‘“«–—-]*)\Z""")
_INITIALS = re.compile(r"[A-Z]|(?:[A-Z][a-z]?\.)+[A-Z][a-z]?")  # J, U.S, Ph.D
_NUMBER = re.compile(r"\d|[IVXLC]{2,}\b|[VX]\b")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Abbreviations, without their last full stop: those that no sentence ends with; those that end one only before a
# word of _STARTERS; those that do not where a number follows.
_NEVER_LAST = _words(
    """Mr Mrs Ms Messrs Dr Prof Rev Fr Hon Pres Gov Sen Rep Amb Gen Adm Col Lt Maj Capt Cmdr Cpl Sgt Pvt Msgr
    e.g i.e a.k.a v vs cf viz esp lit"""
)
_SELDOM_LAST = _words("St Ste Sta Mt Ft Jr Sr Bros Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec a.m p.m")
_BEFORE_NUMBER = _words(
    """No no Nos nos Vol vol Vols vols Sec sec Ch ch Fig fig Figs figs Art Op Opp Rs p pp b d c ca r fl al est
    approx app"""
)
# Words that, with a capital, begin sentences far more often than names.
_STARTERS = _words(
    """The This That These Those It Its He She They We You His Her Their Our My There Here However Although Though While
    When Where After Before Since Because If As At In On By For From To With Until During Among Between Through Despite
    Following According Both Some Many Most Several All Each Another Other Such Thus Then Later Today Yet And But Or
    Also An A What Who Which How Why"""
)


def split(text: str) -> list[tuple[int, int]]:
    """The (start, end) of each sentence, in order, without the white space around it.

    The spans cover every character that is not white space. A line break is white space like any other.
    """
    spans: list[tuple[int, int]] = []
    start = len(text) - len(text.lstrip())
    for match in _BREAK.finditer(text, start):
        if _ends_sentence(text, start, match):
            spans.append((start, match.end()))
            start = match.end(1)
    end = len(text.rstrip())
    return [*spans, (start, end)] if start < end else spans


def _ends_sentence(text: str, start: int, match: re.Match[str]) -> bool:
    next_word = match[2]
    if next_word[0].islower() or _is_list_number(text, start, match.start()):
        return False
    if match[0] != ".":
        return True
    # The abbreviations are short; the bound keeps a text of one endless word cheap.
    bracket, word = _WORD_BEFORE.search(text[max(0, match.start() - 16) : match.start()]).groups()
    if bracket or word in _NEVER_LAST:
        return False
    if word in _BEFORE_NUMBER:
        return not _NUMBER.match(next_word)
    if word in _SELDOM_LAST or _INITIALS.fullmatch(word):
        return next_word in _STARTERS
    return True


def _is_list_number(text: str, start: int, end: int) -> bool:
    return end - start <= 3 and text[start:end].isdigit()

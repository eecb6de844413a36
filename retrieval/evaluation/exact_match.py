"""Whether an answer is the right one: exact match and F1 by SQuAD's rule, and regular expressions.

SQuAD's rule (Rajpurkar et al. 2016): lower case, no ASCII punctuation, no a, an or the, single blanks. ORQA, DPR and
ProQA bring both texts into NFD before. CuratedTREC's answers are regular expressions. ORQA and ProQA ask that one fits
from the first character of the answer on; the data's README, that it fits anywhere in it.
"""

import collections
import re
import string
import unicodedata
from collections.abc import Sequence

from retrieval.common.parsing.foreign_text import compiled, time_limit

EM, F1, REGEX, REGEX_ANYWHERE = "EM", "F1", "RegexEM", "RegexAnywhere"

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)
_SECONDS = 5.0  # for the expressions of a question on a few words, which take microseconds


def normalised(text: str) -> str:
    """What two texts have in common that are one answer."""
    text = unicodedata.normalize("NFD", text).lower().translate(_NO_PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", text).split())


def scores(answer: str, right: Sequence[str], are_patterns: bool, question: str) -> dict[str, float]:
    """The best that an answer gets against the right ones, by metric; an empty answer gets 0.

    Args:
      question: for errors.

    Raises:
      UserError: a regular expression is none, or takes too long.
    """
    names = (REGEX, REGEX_ANYWHERE) if are_patterns else (EM, F1)
    if not answer or not right:
        return dict.fromkeys(names, 0.0)
    if are_patterns:
        return dict(zip(names, _by_patterns(answer, right, question)))
    is_same = normalised(answer) in map(normalised, right)
    return dict(zip(names, (float(is_same), max(f1(answer, text) for text in right))))


def f1(answer: str, right: str) -> float:
    """The harmonic mean of precision and recall of the words of an answer; each word counts as often as it is there."""
    words, wanted = normalised(answer).split(), normalised(right).split()
    common = (collections.Counter(words) & collections.Counter(wanted)).total()
    return 2 * common / (len(words) + len(wanted)) if common else 0.0


def _by_patterns(answer: str, patterns: Sequence[str], question: str) -> tuple[float, float]:
    """Whether a pattern fits at the beginning, and whether one fits anywhere."""
    message = (
        f"a regular expression of the question '{question}' takes more than {_SECONDS:.0f} s on the answer "
        f"'{answer[:80]}': write it without repetitions of what is itself repeated, such as (a+)+"
    )
    at = f"the question '{question}'"
    forms = {False: answer, True: unicodedata.normalize("NFD", answer)}  # the latter as training looks for it
    with time_limit(_SECONDS, message):
        tried = [(compiled(each, at, decomposed), text) for decomposed, text in forms.items() for each in patterns]
        fits = any(pattern.match(text) for pattern, text in tried)
        return float(fits), float(fits or any(pattern.search(text) for pattern, text in tried))

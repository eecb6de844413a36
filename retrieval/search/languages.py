"""A guess at the language of a text: by its script, and in Latin script by the stop words that it has.

It is for an overview of many texts. Of a single short text it says little.
"""

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping

from retrieval.search.words import stop_words_by_language

OTHER = "other, or too short to say"
_LETTER = re.compile(r"[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_SAMPLE = 200  # letters whose script is looked at
_LATIN, _LEAST = "latin", 2  # stop words that a text has to have
# Scripts whose letters stand in texts beside those of another one.
_JAPANESE = {"hiragana", "katakana"}


def language(text: str) -> str:
    """The name of a language in Latin script, of a script otherwise, or OTHER."""
    scripts = Counter(unicodedata.name(letter, "?").partition(" ")[0].lower() for letter in _letters(text))
    if not scripts:
        return OTHER
    if scripts.keys() & _JAPANESE:
        return "japanese"
    script = scripts.most_common(1)[0][0]
    if script != _LATIN:
        return "chinese" if script == "cjk" else script
    names, languages_of = _stop_words()
    counts = dict.fromkeys(names, 0)
    for word in _WORD.findall(text.lower()):
        for name in languages_of.get(word, ()):
            counts[name] += 1
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] >= _LEAST else OTHER


@functools.cache
def _stop_words() -> tuple[list[str], Mapping[str, list[str]]]:
    """The languages whose stop words BM25 knows, and of each such word the languages that have it."""
    lists = stop_words_by_language()
    words = sorted(set().union(*lists.values()))
    return list(lists), {word: [name for name, stop in lists.items() if word in stop] for word in words}


def _letters(text: str) -> list[str]:
    return _LETTER.findall(text[: 4 * _SAMPLE])[:_SAMPLE]

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
# A word of two letters or more between blanks, with the marks of a sentence around it: no part of a name or of code.
_WORD = re.compile(
    r"""(?<!\S)["“‘«(]?(?:(?:[cdjlmnst]|qu)['’])?([^\W\d_]{2,})(?:['’][^\W\d_]{1,2})?[.,:;!?"”’»)]*(?!\S)"""
)
_SAMPLE = 200  # letters whose script is looked at
# Stop words that a text has to have, each counted once, and their share of its words: of prose some 40 %, of code few.
_LATIN, _LEAST, _SHARE = "latin", 2, 0.1
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
    words = Counter(match[1] for match in _WORD.finditer(text.lower()))
    found = {name: [word for word in words if name in languages_of.get(word, ())] for name in names}
    counts = Counter({name: sum(words[word] for word in found[name]) for name in names})
    (best, count), (_, next_count) = counts.most_common(2)
    is_sure = len(found[best]) >= _LEAST and count >= _SHARE * words.total() and count > next_count
    return best if is_sure else OTHER


@functools.cache
def _stop_words() -> tuple[list[str], Mapping[str, list[str]]]:
    """The languages whose stop words BM25 knows, and of each such word the languages that have it."""
    lists = stop_words_by_language()
    words = sorted(set().union(*lists.values()))
    return list(lists), {word: [name for name, stop in lists.items() if word in stop] for word in words}


def _letters(text: str) -> list[str]:
    return _LETTER.findall(text[: 4 * _SAMPLE])[:_SAMPLE]

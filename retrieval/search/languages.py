"""A guess at the language of a text: by its script, and in Latin script by the stop words that it has.

It is for an overview of many texts. Of a single short text it says little.
"""

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


def language(text: str, lists: Mapping[str, frozenset[str]] | None = None) -> str:
    """The name of a language in Latin script, of a script otherwise, or OTHER.

    Args:
      lists: stop words by language; by default those that BM25 knows.
    """
    scripts = Counter(unicodedata.name(letter, "?").partition(" ")[0].lower() for letter in _letters(text))
    if not scripts:
        return OTHER
    if scripts.keys() & _JAPANESE:
        return "japanese"
    script = scripts.most_common(1)[0][0]
    if script != _LATIN:
        return "chinese" if script == "cjk" else script
    words = Counter(_WORD.findall(text.lower()))
    counts = {name: sum(words[word] for word in stop) for name, stop in (lists or stop_words_by_language()).items()}
    best = max(counts, key=counts.__getitem__, default=OTHER)
    return best if best != OTHER and counts[best] >= _LEAST else OTHER


def _letters(text: str) -> list[str]:
    return _LETTER.findall(text[: 4 * _SAMPLE])[:_SAMPLE]

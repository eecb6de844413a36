"""Accents: the marks on letters that people leave out when they type."""

import functools
import re
import unicodedata
from collections.abc import Mapping

# Marks that any letter can have, and the points of Cyrillic, Hebrew, Arabic and Syriac. Marks outside of these blocks
# are letters themselves: the voicing marks of Kana and the vowel signs of India and of South-East Asia. So is the short
# sign of й, which no one leaves out.
_ACCENTS = re.compile(
    "(?<![Ии])\u0306|"
    "[\u0300-\u0305\u0307-\u036f\u0483-\u0487\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a"
    "\u064b-\u065f\u0670\u06d6-\u06dc\u06df-\u06e4\u06e7\u06e8\u06ea-\u06ed\u0711\u0730-\u074a\u1ab0-\u1aff"
    "\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]"
)


def fold(text: str) -> str:
    """`text` without its accents, in Unicode's composed form (NFC): 'Ọdún café' becomes 'Odun cafe'.

    Marks that are letters stay: those of ベ, of हिन्दी and of й.
    """
    if text.isascii():
        return text
    return unicodedata.normalize("NFC", _ACCENTS.sub("", unicodedata.normalize("NFD", text)))


# Of the letters: so many may be of names and words in other scripts.
_SHARE = 0.005


def can_be_stripped(characters: Mapping[str, int]) -> bool:
    """Whether a text stays itself when every mark is dropped, as uncased BERT does: 0.5 % of its letters may differ.

    Args:
      characters: how often the text has each.
    """
    letters = {letter: n for letter, n in characters.items() if unicodedata.category(letter)[0] in "LM"}
    harmed = sum(count for character, count in letters.items() if _is_harmed(character))
    return harmed <= _SHARE * sum(letters.values())


@functools.cache
def _is_harmed(character: str) -> bool:
    """Whether BERT drops more of it than `fold` does, or takes it apart: ベ, the vowels of Devanagari, Hangul."""
    parts = unicodedata.normalize("NFD", character)
    return "".join(part for part in parts if unicodedata.category(part) != "Mn") != fold(character)

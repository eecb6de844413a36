"""Accents: the marks on letters that people leave out when they type."""

import re
import unicodedata

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

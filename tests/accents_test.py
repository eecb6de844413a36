"""Accents that people leave out when they type, and marks that are letters."""

import itertools
import unicodedata

import pytest
from tokenizers.normalizers import StripAccents

from retrieval.common.parsing import accents


@pytest.mark.parametrize(
    ("text", "folded"),
    [
        ("Ọdún ẹ̀kọ́ café naïve Zürich", "Odun eko cafe naive Zurich"),
        ("cafe\u0301", "cafe"),  # a letter and its mark as two characters
        ("ἄνθρωπος Ёлка", "ανθρωπος Елка"),
        ("مُحَمَّد שָׁלוֹם", "محمد שלום"),
        ("plain ASCII", "plain ASCII"),
        ("Straße Łódź", "Straße Łodz"),  # these are no letters with a mark
    ],
)
def test_accents_go(text, folded):
    assert accents.fold(text) == folded == accents.fold(folded)


def test_marks_that_are_letters_stay():
    scripts = ["ベルリンの壁", "ハ\u3099 ハ\u309a", "हिन्दी में", "ภาษาไทย", "தமிழ்", "မြန်မာ", "ភាសាខ្មែរ", "한국어"]
    for text in (*scripts, "Новый йод", "Ǝ"):
        assert accents.fold(text) == unicodedata.normalize("NFC", text)


def test_latin_and_greek_letters_fold_as_in_bert():
    strip = StripAccents()
    letters = [c for c in map(chr, itertools.chain(range(0x80, 0x400), range(0x1E00, 0x2000))) if c.isalpha()]
    assert len(letters) > 1000
    for letter in letters:
        stripped = strip.normalize_str(unicodedata.normalize("NFD", letter))
        assert accents.fold(letter) == unicodedata.normalize("NFC", stripped)

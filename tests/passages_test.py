"""Passages: whole sentences, never across a heading, within their limits."""

import pytest

from retrieval.data.corpora import passages
from retrieval.data.corpora.articles import Article, Link, Paragraph, Section
from retrieval.data.corpora.passages import Limits
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece

# One token per word, so that sizes can be counted by eye ('.' is a token too).
VOCABULARY = WordPiece([*SPECIAL_TOKENS, ".", *"abcdefgh"])


def article(*sections):
    built = (Section(heading, 1 + bool(heading), tuple(map(Paragraph, texts))) for heading, texts in sections)
    return Article("9", "Letters", tuple(built))


def cut(value, *limits):
    lead, found = passages.cut(value, VOCABULARY, Limits(*limits))
    return lead, [passage.text for passage in found], found


def test_a_long_paragraph_is_cut_between_sentences():
    _, texts, found = cut(article(("", ["A b c. D e f. G h a. B c d."])), 8, 4, 1)
    assert texts == ["A b c. D e f.", "G h a. B c d."]
    assert [p.id for p in found] == ["9:0", "9:1"] and found[0].tokens.lengths == (4, 4)
    assert found[0].tokens.ids == tuple(VOCABULARY.encode("A b c. D e f."))


def test_only_short_paragraphs_are_joined():
    _, texts, _ = cut(article(("", ["A b.", "C d.", "E f g h a.", "B c."])), 20, 6, 1)
    assert texts == ["A b. C d.", "E f g h a.", "B c."]


def test_code_keeps_its_lines():
    """Between what is written, as a passage of its own, and where one begins within it."""
    code = "\n    a b(c):\n        d. E\n\n    f"
    for limits, expected in (
        ((20, 20, 1), [f"G h:{code}\nA b. C d."]),
        ((20, 1, 1), ["G h:", code[1:], "A b. C d."]),
        ((6, 6, 1), ["G h:", "    a b(c):\n        d.", "E\n\n    f\nA b.", "C d."]),
    ):
        assert cut(article(("", ["G h:", code, "A b. C d."])), *limits)[1] == expected


def test_no_passage_crosses_a_heading():
    lead, texts, found = cut(article(("", ["A b."]), ("Two", ["C d."])), 20, 10, 1)
    assert texts == ["A b.", "C d."] and [p.in_lead for p in found] == [True, False]
    assert lead.lengths == (3,) and lead.ids == tuple(VOCABULARY.encode("A b."))


def test_texts_across_sections_fill_their_length():
    value = article(("", ["A b."]), ("Two", ["C d.", "E f."]), ("Three", ["G h a.", "B c."]))
    lead, texts, found = cut(value, 10, 10, 1, True)
    assert texts == ["A b. C d. E f.", "G h a. B c."] and [p.in_lead for p in found] == [True, False]
    assert lead.lengths == (3,)


def test_short_texts_are_dropped_and_long_sentences_cut():
    _, texts, found = cut(article(("", ["A."]), ("Two", ["A b c d e f g h a b c."])), 6, 4, 3)
    assert texts == ["A b c d e f g h a b c."] and found[0].tokens.lengths == (6,)


def test_links_belong_to_the_passage_of_their_sentence():
    text = "A b c. D e f. G h a."
    links = (Link("X", 2, 3), Link("Y", 9, 10), Link("Y", 11, 12), Link("Z", 16, 17))
    value = Article("9", "T", (Section("", 1, (Paragraph(text, links),)),))
    _, found = passages.cut(value, VOCABULARY, Limits(8, 8, 1))
    assert [p.targets for p in found] == [("X", "Y"), ("Z",)]


@pytest.mark.parametrize("longest", [5, 9, 17, 40])
def test_every_limit_holds_and_no_sentence_is_lost(longest):
    text = " ".join("A b c." if i % 3 else "D e f g." for i in range(50))
    _, _, found = cut(article(("", [text])), longest, 3, 1)
    assert max(len(p.tokens.ids) for p in found) <= longest
    assert " ".join(p.text for p in found) == text

"""HTML entities: as the standard library reads them, and numbers that it refuses to read."""

import html

import pytest

from retrieval.common.parsing.foreign_text import unescape


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("&#" + "1" * 5000 + ";", "\ufffd"),
        ("a &#" + "0" * 9999 + "65 b", "a \ufffd b"),
        ("&#" + "9" * 5000 + "&amp;", "\ufffd&"),
        ("&#x" + "f" * 100_000 + ";", "\ufffd"),
    ],
)
def test_endless_numbers(text, expected):
    assert unescape(text) == expected


@pytest.mark.parametrize("text", ["", "a", "&amp;&lt", "&#233;&#xe9;", "&#00065;", "&#2;&#55296;&#1114112;", "&x;&#;"])
def test_the_rest_is_that_of_the_standard_library(text):
    assert unescape(text) == html.unescape(text)

"""What may be left of wikitext in an article."""

import re

from retrieval.data.corpora.articles import Article, Dropped
from retrieval.data.corpora.wikipedia import Site, normalize_title

SITE = Site(frozenset({"файл", "шаблон"}), True, frozenset({"файл"}))
MARKUP = re.compile(r"\{\{|\}\}|\[\[|\]\]|<ref|'''|&nbsp;|[\x00-\x1f]")


def check(result: Article | Dropped, source: str, literal: bool) -> None:
    """Whatever the page: single-spaced text without markup, links in order, in bounds, and to titles."""
    if isinstance(result, Dropped):
        return
    assert (result.sections[0].heading, result.sections[0].level) == ("", 1)
    assert all(s.paragraphs for s in result.sections[1:])
    for paragraph in [p for s in result.sections for p in s.paragraphs]:
        assert paragraph.text and paragraph.text == " ".join(paragraph.text.split()), source
        assert literal or not MARKUP.search(paragraph.text), source
        assert not re.search("[\x00-\x1f\ud800-\udfff]", paragraph.text), source
        end = 0
        for link in paragraph.links:
            assert end <= link.start < link.end <= len(paragraph.text), source
            anchor, end = paragraph.text[link.start : link.end], link.end
            assert anchor == anchor.strip(), source
            assert link.target and link.target == normalize_title(link.target, SITE), source
            assert not re.search(r"[\[\]{}|<>#\n]", link.target), source

"""The XML half: every container and encoding gives the same pages, and nothing bad passes in silence."""

import bz2
import gzip

import pytest
from conftest import write
from support.wiki_export import SITE_INFO, export, page

from retrieval.common.errors import UserError
from retrieval.data.corpora import wikitext
from retrieval.data.corpora.articles import Broken, Redirect
from retrieval.data.corpora.wikipedia import Page, Site, normalize_title, read_pages

SITE = Site(frozenset({"talk", "project page", "файл", "category"}), True, frozenset({"файл", "category"}))


MANY = [page(f"Title {i}", f"Text {i} & <b>é</b> " * 100, i) for i in range(200)]


def multistream(module, texts: list[str]) -> bytes:
    return b"".join(module.compress(text.encode()) for text in texts)


def test_a_page_has_its_own_id_and_decoded_text(tmp_path):
    path = write(tmp_path / "d.xml", export(page("foo_bar", "a < b & \n&amp;", 7)))
    assert list(read_pages(path)) == [Page("7", "Foo bar", "a < b & \n&amp;", SITE)]


@pytest.mark.parametrize(
    ("base", "url"),
    [
        ("https://en.wikipedia.org/wiki/Main_Page", "https://en.wikipedia.org/wiki/Foo_bar/%C3%A9%3F"),
        ("http://w.example/index.php?title=Main_Page", "http://w.example/index.php?title=Foo_bar/%C3%A9%3F"),
        ("javascript:run()/Main_Page", ""),
        ("", ""),
    ],
)
def test_a_page_is_where_its_wiki_says(tmp_path, base, url):
    info = SITE_INFO.replace("<case>", f"<base>{base}</base><case>")
    (read,) = read_pages(write(tmp_path / "d.xml", export(page("foo_bar/é?", "Words of a page."), info=info)))
    (article,) = wikitext.parse(read)
    assert article.url == url


@pytest.mark.parametrize(
    "encode",
    [
        lambda text: text.encode(),
        lambda text: ('<?xml version="1.0" encoding="utf-16"?>' + text).encode("utf-16"),
        lambda text: ('<?xml version="1.0" encoding="iso-8859-1"?>' + text).encode("latin-1", "xmlcharrefreplace"),
        lambda text: multistream(bz2, [text[:70], text[70:90000], text[90000:]]),
        lambda text: multistream(gzip, [text[:70], text[70:90000], text[90000:]]),
    ],
    ids=["utf8", "utf16", "latin1", "multistream bz2", "multi-member gz"],
)
def test_every_container_and_encoding_gives_the_same_pages(tmp_path, encode):
    path = write(tmp_path / "dump", encode(export(*MANY)))
    expected = [Page(str(i), f"Title {i}", f"Text {i} & <b>é</b> " * 100, SITE) for i in range(200)]
    assert list(read_pages(path)) == expected


def test_redirects_by_element_and_by_text(tmp_path):
    pages = [
        page("A", "#REDIRECT [[wrong]]", more="<redirect title='right_Title' />"),
        page("B", "#redirect [[some page#Part|label]]\n{{R}}"),
        page("C", "#AUTRE_MOT [[:é#Toit|x]]", more="<redirect />"),
        *(page("D", "#REDIRECT nothing"), page("E", "# [[not]] one")),
    ]
    records = list(read_pages(write(tmp_path / "d.xml", export(*pages))))
    assert records[:3] == [Redirect("A", "Right Title"), Redirect("B", "Some page"), Redirect("C", "É")]
    assert [type(r) for r in records[3:]] == [Page, Page]


def test_what_is_dropped_and_why(tmp_path):
    pages = [
        page("Talk:A", "x", ns="<ns>1</ns>"),
        page("Talk:A", "x", ns=""),
        page("project page : A", "x", ns=""),
        page("Star Wars: A", "x", ns=""),
        page("A", "{}").replace("<text", "<model>json</model><text"),
        page("Big", "ж" * (1 << 20) + "x"),
        page("Fits", "ж" * (1 << 20)),
        "<page><ns>0</ns><revision><text>x</text></revision></page>",
        page("Two", "x", 12345).replace("12345", "1 2"),
        page("Talk:R", "#REDIRECT [[x]]", ns="<ns>1</ns>"),
    ]
    expected = ["Star Wars: A", "not wikitext", "too large", "Fits", "no title", "no id", "other namespace"]
    records = read_pages(write(tmp_path / "d.xml", export(*pages)))
    assert [getattr(r, "reason", r.title) for r in records] == ["other namespace"] * 3 + expected


def test_the_newest_revision_counts(tmp_path):
    old = "<revision><id>5</id><text>old</text></revision>"
    slot = "<content><role>meta</role><text>slot</text></content>"
    first, second = page("A", "new"), page("B", "main").replace("<sha1>", slot + "<sha1>")
    third = "<page><title>C</title><ns>0</ns><id>3</id><revision><text deleted='deleted' /></revision></page>"
    path = write(tmp_path / "d.xml", export(first.replace("<revision>", old + "<revision>"), second, third))
    assert [r.text for r in read_pages(path)] == ["new", "main", ""]


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("foo_bar", "Foo bar"),
        ("  __foo__  bar ", "Foo bar"),
        ("éa", "Éa"),
        ("e\u0301", "É"),
        ("AT&amp;T", "AT&T"),
        ("ßa", "ßa"),
        ("a\u00a0b\u200e", "A b"),
        ("", ""),
    ],
)
def test_titles_have_one_spelling(title, expected):
    assert normalize_title(title, SITE) == expected
    assert normalize_title(expected, SITE) == expected


# Cuts and what is no XML: `hostile_test`.
DAMAGED = {
    "bz2 garbage stream": multistream(bz2, [export()[:-12], *MANY[:120]]) + b"BZh9 not a stream",
    "gz checksum": gzip.compress(export(*MANY).encode())[:-8] + bytes(8),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_pages_before_a_damage_come_out(tmp_path, name):
    path = write(tmp_path / "dump.file", DAMAGED[name])
    *pages, broken = read_pages(path)
    assert len(pages) > 90
    assert pages == [Page(str(i), f"Title {i}", f"Text {i} & <b>é</b> " * 100, SITE) for i in range(len(pages))]
    assert isinstance(broken, Broken)
    for part in ("dump.file", "line ", "byte ", f"'Title {len(pages) - 1}'"):
        assert part in broken.message


REFUSED = {
    "empty": (b"", "no element found"),
    "html": (b"<html><body>x</body></html>", "<html>"),
    "no page": (export().encode(), "without a page"),
    "cut in the first page": (export(*MANY).encode()[:900], "expected a MediaWiki export"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_no_export_is_refused_at_once(tmp_path, name):
    content, message = REFUSED[name]
    path = write(tmp_path / "some.file", content)
    with pytest.raises(UserError, match=message) as error:
        read_pages(path)
    assert "some.file" in str(error.value)


def test_a_case_sensitive_wiki_keeps_small_letters(tmp_path):
    info = SITE_INFO.replace("first-letter", "case-sensitive")
    path = write(tmp_path / "d.xml", export(page("iPod_x", "t"), info=info))
    (only,) = read_pages(path)
    assert (only.title, only.site.first_letter) == ("iPod x", False)

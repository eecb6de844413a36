"""Hostile pages and dumps: no crash, a bound on time and memory, and every page comes out or is counted."""

import bz2
import collections
import gzip
import random
import time
import tracemalloc

import pytest
from support.hostile_pages import generated, nasty_pages
from support.wiki_export import export, page
from support.wiki_markup import SITE, check

from retrieval.common.errors import UserError
from retrieval.data.corpora import articles, wikitext
from retrieval.data.corpora.articles import Article, Broken, Dropped, Redirect
from retrieval.data.corpora.passages import Limits
from retrieval.data.corpora.wikipedia import Page, read_pages
from retrieval.data.shards import shard_steps
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece

SECONDS = 5
REASONS = {"disambiguation", "list", "no text", "too deep", "too complex", "too large", "no title", "no id"}
REASONS |= {"other namespace", "not wikitext"}

VOCABULARY = WordPiece([*SPECIAL_TOKENS, *map(chr, range(33, 127)), *(f"##{chr(i)}" for i in range(97, 123))])


def process(hostile: Page) -> tuple[Article | Dropped, float]:
    """All that `prepare` does to one page, and the seconds of the processor that it took."""
    start = time.process_time()
    (result,) = wikitext.parse(hostile)
    if isinstance(result, Article):
        assert articles.from_json(articles.to_json(result).encode(), "here") == result
        list(shard_steps.cut_article(result, VOCABULARY, Limits(), 4))
    else:
        assert result.title == hostile.title and result.reason in REASONS
    return result, time.process_time() - start


@pytest.mark.parametrize("pages", [1000, pytest.param(200_000, marks=pytest.mark.long)])
def test_generated_pages(pages):
    """Each gives an article or a reason, soon."""
    rng, results = random.Random(pages), collections.Counter()
    for number in range(pages):
        text = generated(rng)
        result, seconds = process(Page(str(number), f"Page {number}", text, SITE))
        assert seconds < SECONDS, text
        check(result, text, literal="&" in text or "<" in text)
        results["article" if isinstance(result, Article) else result.reason] += 1
    assert results["article"] > 0.7 * pages and results["no text"] > 0.01 * pages


def test_nasty_pages():
    pages = nasty_pages(10_000)
    assert len(pages) > 190
    results = collections.Counter()
    for name, text in pages.items():
        result, seconds = process(Page("1", "Page", text, SITE))
        assert seconds < SECONDS / 2, name
        results["article" if isinstance(result, Article) else result.reason] += 1
    assert {"article", "no text", "too deep", "too complex"} <= set(results)


SOUND = [page(f"Title {i}", f"This is the text of page {i}, & it is short. " * 3, i) for i in range(12)]
STREAMS = [export()[:-12], *("".join(SOUND[i : i + 3]) for i in range(0, 12, 3)), "</mediawiki>"]
CONTAINERS = {
    "xml": export(*SOUND).encode(),
    "utf-16": export(*SOUND).encode("utf-16"),
    "bz2 of many streams": b"".join(bz2.compress(stream.encode()) for stream in STREAMS),
    "gz of many members": b"".join(gzip.compress(stream.encode()) for stream in STREAMS),
}


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_cut_at_any_byte_is_noticed(tmp_path, name):
    """Either the file is refused, or its first pages come and a `Broken` is last."""
    path, content = tmp_path / "cut.dump", CONTAINERS[name]
    path.write_bytes(content)
    whole = list(read_pages(path))
    assert len(whole) == 12 and not any(isinstance(record, Broken) for record in whole)
    most, every = 0, max(1, len(content) // 300)
    for end in sorted({*range(0, len(content), every), *range(60), *range(len(content) - 60, len(content))}):
        path.write_bytes(content[:end])
        try:
            *pages, last = read_pages(path)
        except UserError as error:
            assert "cut.dump" in str(error)
            continue
        assert isinstance(last, Broken) and "cut.dump" in last.message, end
        assert pages == whole[: len(pages)] and len(pages) >= most, end
        most = len(pages)
    assert most == 12


NO_XML = [b"\xff", b"\xed\xa0\x80", b"\x00", b"&#xD800;", b"&undeclared;", b"]]>", b"<b></a>", b"<!-- -- -->"]


@pytest.mark.parametrize("bad", NO_XML)
def test_what_is_no_xml_breaks_a_dump_there(tmp_path, bad):
    content = export(*SOUND[:5], page("Bad", "BAD"), *SOUND[5:]).encode().replace(b"BAD", bad)
    (tmp_path / "bad.dump").write_bytes(content)
    *pages, last = read_pages(tmp_path / "bad.dump")
    assert [p.title for p in pages] == [f"Title {i}" for i in range(5)]
    assert isinstance(last, Broken) and "bad.dump" in last.message and "'Title 4'" in last.message


SECRET = "the content of a local file"
LAUGHS = "".join(f'<!ENTITY l{i} "{f"&l{i - 1};" * 10}">' for i in range(1, 12))
DECLARATIONS = {
    "a billion laughs": f'<!DOCTYPE mediawiki [<!ENTITY l0 "ha">{LAUGHS}<!ENTITY x "&l11;">]>',
    "a local file": '<!DOCTYPE mediawiki [<!ENTITY x SYSTEM "SECRET">]>',
    "a parameter entity": '<!DOCTYPE mediawiki [<!ENTITY % p SYSTEM "SECRET"> %p; <!ENTITY x "y">]>',
    "an outside document type": '<!DOCTYPE mediawiki SYSTEM "SECRET">',
}


@pytest.mark.parametrize("name", DECLARATIONS)
@pytest.mark.parametrize("encode", [str.encode, lambda s: s.encode("utf-16")])
def test_entities_are_refused(tmp_path, name, encode):
    (tmp_path / "secret").write_text(SECRET)
    body = export(*SOUND, page("Bad", "BAD").replace("BAD", "&x;" * 5))
    (tmp_path / "bad.dump").write_bytes(encode(DECLARATIONS[name].replace("SECRET", str(tmp_path / "secret")) + body))
    start = time.process_time()
    with pytest.raises(UserError, match=r"bad\.dump: declares a document type or entities") as error:
        list(read_pages(tmp_path / "bad.dump"))
    assert SECRET not in str(error.value) and time.process_time() - start < 1


@pytest.mark.parametrize(
    ("bulk", "kinds"),
    [
        ("<!--" + "a" * (40 << 20) + "-->", [Page, Broken]),
        (f"<page a='{'a' * (40 << 20)}'></page>", [Page, Broken]),
        ("<a>" * 500_000, [Page, Broken]),
        (page("A", "b").replace(">b<", ">" + "c</text><text>" * 20_000 + "<"), [Page, Page, Page]),
        (page("A", "b").replace(">b<", " a='1'>" + "&amp;" * 3_000_000 + "<"), [Page, Dropped, Page]),
        (f"<page><title>{'t' * (30 << 20)}</title></page>", [Page, Dropped, Page]),
        (page("A", "#redirect [[" + "\u0315\u0300" * 80_000 + "]]"), [Page, Redirect, Page]),
    ],
)
def test_bulky_xml_costs_little(tmp_path, bulk, kinds):
    (tmp_path / "dump").write_text(export(SOUND[0], bulk, SOUND[1]))
    tracemalloc.start()
    start = time.process_time()
    records = list(read_pages(tmp_path / "dump"))
    seconds, peak = time.process_time() - start, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(map(type, records)) == kinds
    assert seconds < SECONDS and peak < 100 << 20

"""One's own documents as a corpus: files, folders and patterns of six formats."""

import collections
import contextlib
import json
import os
import pickle
import time

import pyarrow
import pytest
from conftest import write
from pyarrow import parquet

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.corpora import addresses, articles, corpus_kind, document_records
from retrieval.data.corpora.articles import Article, Redirect
from retrieval.data.corpora.document_format import Block, Context, Document, DocumentFormat, Outline

OPTIONS = {f"documents.{name}": "" for name in ("id", "title", "text", "url")}

GUIDE = """---
title: "My project"
---
Read [the guide](guide/start.md#first) or [the web](https://example.org).

## Install

Run `pip install x`.

| a | b |
|---|---|
| 1 | 2 |
"""
PAGE = """<html><head><title>Window</title><style>p {}</style></head><body><nav>Home</nav>
<h1>The guide</h1><p>All <b>pages</b> are here&nbsp;&amp; <a href="start.md">linked</a>.</p><script>x()</script>
<h2>Old</h2><ul><li>one</li><li>two</li></ul></body></html>"""


@pytest.fixture
def folder(tmp_path):
    """A folder of documents, with a picture and hidden files beside them."""
    texts = {
        "README.md": GUIDE,
        "guide/start.md": "# Start\n\nBegin here. Go [back](../README.md).\n",
        "guide/index.html": PAGE,
        "notes/my-note.txt": "so um we  went down\nto the store\n\nA line\nand another.\n",
        ".git/x.md": "hidden",
        "logo.png": "no text",
    }
    for name, text in texts.items():
        (tmp_path / "docs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "docs" / name).write_text(text, encoding="utf-8")
    return tmp_path / "docs"


def read(corpus, lock="no.lock", **fields):
    """The articles of a corpus by id, its redirects, and the counts."""
    options = OPTIONS | {f"documents.{name}": value for name, value in fields.items()}
    source = corpus_kind.open_source(str(corpus), options, lock)
    items, counts = [], collections.Counter()
    for tag, name, value in corpus_kind.parse_pages(source.read(), source.parse):
        if tag == "article":
            items.append(articles.from_json(value, "here"))
        elif tag == "count":
            counts[name] += value
    read_articles = {item.id: item for item in items if isinstance(item, Article)}
    return read_articles, {item.title: item.target for item in items if isinstance(item, Redirect)}, counts


def outline(article):
    return [(section.heading, [paragraph.text for paragraph in section.paragraphs]) for section in article.sections]


def test_a_folder_gives_an_article_for_each_document(folder):
    found, addresses, counts = read(folder)
    ids, titles = sorted(found), [found[id].title for id in sorted(found)]
    assert ids == ["README.md", "guide/index.html", "guide/start.md", "notes/my-note.txt"]
    assert titles == ["My project", "The guide", "Start", "my note"]
    assert counts["pages dropped: files of other kinds: .png"] == 1
    assert addresses["guide"] == addresses["guide/index"] == "guide/index.html"
    assert addresses["guide/start.html"] == "guide/start.md"
    # Headings become sections, lists and tables text.
    installing = ("Install", ["Run pip install x.", "a b", "1 2"])
    assert outline(found["README.md"]) == [("", ["Read the guide or the web."]), installing]
    assert outline(found["guide/index.html"]) == [("", ["All pages are here & linked."]), ("Old", ["one", "two"])]
    # Speech keeps its lines, and prose does not.
    assert outline(found["notes/my-note.txt"]) == [("", ["so um we went down\nto the store", "A line and another."])]
    # Links are at their words.
    start = "guide/start.md"
    for id, target, words in (("README.md", start, "the guide"), ("guide/index.html", start, "linked")):
        (paragraph,) = found[id].sections[0].paragraphs
        (link,) = paragraph.links
        assert (link.target, paragraph.text[link.start : link.end]) == (target, words)


RECORDS = [{"_id": "d1", "title": "T", "text": "First.\n\nSecond."}, {"_id": "d2", "text": "Alone."}]
EXPECTED = {"d1": ("T", [("", ["First.", "Second."])]), "d2": ("", [("", ["Alone."])])}


def test_records_of_json_lines_csv_and_parquet_are_documents(tmp_path):
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    write(tmp_path / "b.jsonl.gz", lines)
    (tmp_path / "c.csv").write_text('_id,title,text\nd1,T,"First.\n\nSecond."\nd2,,Alone.\n')
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "d.parquet")
    (tmp_path / "g.csv").write_text('\ufeff_id;title;text\nd1;T;"First.\n\nSecond."\nd2;;Alone.\n', encoding="utf-8")
    for path in sorted(tmp_path.iterdir()):
        found, _, _ = read(path)
        assert {id: (article.title, outline(article)) for id, article in found.items()} == EXPECTED, path


def test_named_fields_and_a_collection_without_names(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"key": 7, "name": "T", "body_text": "Words.", "text": "other"}\n')
    found, _, _ = read(tmp_path / "a.jsonl", id="key", title="name", text="body_text")
    assert outline(found["7"]) == [("", ["Words."])] and found["7"].title == "T"
    (tmp_path / "collection.tsv").write_text('12\tHe said "yes".\n13\tNo.\n')
    found, _, _ = read(tmp_path / "collection.tsv")
    assert outline(found["12"]) == [("", ['He said "yes".'])] and list(found) == ["12", "13"]


def test_records_say_where_they_are(tmp_path):
    """BEIR's in their metadata; what runs a script, or is no address, is none."""
    told = ("https://a.example/x", "/docs/x", "javascript:x()", "http://[a", "java\nscript:x()", "FTP:a", None, [1])
    records = [{"id": str(number), "text": "Words.", "url": url} for number, url in enumerate(told)]
    records += [{"id": "m", "text": "Words.", "metadata": {"url": "http://b.example", "link": "c"}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found, _, _ = read(tmp_path / "a.jsonl")
    urls = {"0": "https://a.example/x", "1": "/docs/x", "m": "http://b.example"}
    assert {id: article.url for id, article in found.items() if article.url} == urls
    (tmp_path / "b.csv").write_text("id,text,link\n1,Words.,https://a.example/x\n")
    found, _, _ = read(tmp_path / "b.csv", url="link")
    assert found["1"].url == told[0] and articles.from_json(articles.to_json(found["1"]), "") == found["1"]


@pytest.fixture
def most(monkeypatch):
    """As many bytes as a document or a record may have, here few."""
    monkeypatch.setattr(text_files, "MOST_BYTES", 2000)
    return 2000


class Diary(DocumentFormat):
    name, what, suffixes, example = "diary", "diaries", (".diary",), "Monday"

    def outline(self, text, id):
        return Outline("", [Block(line) for line in text.splitlines()])


class Endless(Diary):
    def outline(self, text, id):
        with contextlib.suppress(Exception):  # as a library may
            time.sleep(60 * text.count("never"))
        time.sleep(60 * text.count("never"))
        return super().outline(text, id)


def test_a_document_that_is_not_parsed_in_time_is_left_out_and_named(monkeypatch):
    monkeypatch.setattr(corpus_kind, "_SECONDS", 0.05)
    pages = [Document(id, "July", text, Endless()) for id, text in (("a", "On Monday."), ("b", "never"), ("c", "On."))]
    items = list(corpus_kind.parse_pages(pages, lambda page: list(page.format.parse(page))))
    assert [json.loads(value)["id"] for tag, _, value in items if tag == "article"] == ["a", "c"]
    counts = [name for tag, name, _ in items if tag != "article"]
    assert "pages dropped: too slow" in counts
    assert "broken: b: left out, for it is not parsed after 0 seconds" in counts


def test_columns_of_parquet_may_be_numbers_bytes_and_dotted(tmp_path):
    text = ["Bread is in the town.", "A river is in the north."]
    for columns, named in (
        ({"id": [1.0, 2.0], "text": text}, {}),
        ({"id": ["1", "2"], "text": [value.encode() for value in text]}, {}),
        ({"id": [1, 2], "a.text": text}, {"text": "a.text"}),
    ):
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
        found = list(document_records.ParquetRows().read(tmp_path / "a.parquet", Context("a", named)))
        assert [(each.id, each.text) for each in found] == list(zip(["1", "2"], text))
    parquet.write_table(pyarrow.table({"text": [b"\xff"]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: a text is not UTF-8"):
        list(document_records.ParquetRows().read(tmp_path / "a.parquet", Context("a", {})))


@pytest.mark.parametrize(
    ("base", "own", "address"),
    [
        ("", "guide", "guide"),
        ("https://a.example/x/", "", "https://a.example/x/my%20docs/a%26b.md"),
        ("https://a.example/{stem}.html", "", "https://a.example/my%20docs/a%26b.html"),
        ("https://a.example/wiki/{title}", "", "https://a.example/wiki/A%3F%20%C3%A9"),
        ("https://a.example/x", "y/z", "https://a.example/x/y/z"),
        ("https://a.example", "http://b.example", "http://b.example"),
    ],
)
def test_a_base_address_and_the_path_make_an_address(base, own, address):
    assert addresses.of_document(base, own, "my docs/a&b.md", "A? é") == address


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("../b.md#part", "b.md"),
        ("/c/d.html?q=1", "c/d.html"),
        ("with%20blank.md", "a/with blank.md"),
        ("../../out.md", None),
        ("http://[bad", None),
    ],
)
def test_a_relative_address_counts_from_its_document(address, target):
    assert addresses.resolved(address, "a/x.md") == target


def test_files_that_cannot_be_read_or_named_are_left_out(tmp_path, caplog):
    texts = {
        "bad.txt": b"caf\xe9",
        "old.html": b'<meta charset="latin-1"><p>caf\xe9</p>',
        "marked.txt": "Größe. Zwei.".encode("utf-16"),
        "unmarked.txt": "Größe. Zwei.".encode("utf-16-le").replace(b"\xf6", b"o"),
        "nul.txt": b"Much text has one zero\0 byte by accident.",
        "a.csv": b"id,text\n",
        "no gzip.txt.gz": b"No gzip.",
        "b\tc.txt": b"Lost.",
        os.fsdecode(b"caf\xe9.txt"): b"Lost.",
    }
    for name, data in texts.items():
        (tmp_path / name).write_bytes(data)
    found, _, counts = read(tmp_path)
    assert sorted(found) == ["marked.txt", "no gzip.txt.gz", "nul.txt", "old.html"]
    assert outline(found["old.html"]) == [("", ["café"])] and outline(found["marked.txt"]) == [("", ["Größe. Zwei."])]
    assert counts["pages dropped: not UTF-8"] == 2 and "bad.txt: left out" in caplog.text
    assert counts["pages dropped: files without a record"] == 1
    assert counts["pages dropped: files whose name cannot be an id"] == 2


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    real = os.scandir

    def scandir(path):
        if str(path).endswith("guide"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"guide: cannot be read \(Permission denied\), and is in config\.corpus"):
        read(folder)


@pytest.mark.parametrize("name", ["a.txt.gz", "a.md"])
def test_a_file_of_more_than_one_document_may_have_is_left_out_and_named(tmp_path, caplog, most, name):
    write(tmp_path / name, "word " * 100_000)
    (tmp_path / "b.txt").write_text("word " * (most // 5))
    found, _, counts = read(tmp_path)
    assert list(found) == ["b.txt"] and counts["pages dropped: documents of more than 64 MiB"] == 1
    assert f"{name}: left out, for it is longer than 64 MiB" in caplog.text


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"txt": "x"}\n', r"jsonl, line 2: no field text, contents or body, but txt: name"),
        ("a.jsonl", '{"text": ["x"]}\n', r"a\.jsonl, line 1: the field 'text' is missing or not a string"),
        ("a.jsonl", '{"id": "a\\tb", "text": "x"}', r"a\.jsonl, line 1: the id 'a\\tb' has \{'\\t'\}, which files of"),
        ("a.jsonl", '{"text": "\\ud83d"}', r"a\.jsonl, line 1: the field 'text' has half of a surrogate pair"),
        ("a.jsonl", b'\xff\xfe{\0"', r"a\.jsonl: this is utf-16; UTF-8 is read"),
        ("a.csv", "id,text\n1,x,y\n", r"a\.csv, line 2: 3 columns, and the first row has 2"),
        ("a.csv", 'id,text\n1,"x\n2,y\n', r"a\.csv, line 2: unexpected end of data; mend the row"),
        ("a.csv", "text,id,text\na,b,c\n", r"a\.csv, line 1: two fields have the name 'text'"),
        ("a.csv", 'id,text\n1,"%s"\n' % ("word\n" * 1000), r"a\.csv, line \d+: the record is longer than 64 MiB"),
        ("a.tsv", "faq_id\tanswer text\n1\tIt is so.\n", r"line 1: no field text, .*, but faq_id, answer text: name"),
        ("a.parquet", "no parquet", r"a\.parquet: no whole Parquet file"),
    ],
)
def test_broken_records_end_with_file_and_line(tmp_path, most, name, text, message):
    write(tmp_path / name, text)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


@pytest.fixture
def linked(tmp_path, monkeypatch):
    """A folder with links to its parent, to its own files, and to a file and a folder beside it."""
    for name in ("docs/a/one.md", "docs/a/five.md", "docs/.kept/six.md", "outside/two.md", "three.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("# Title\n\nA text.\n")
    docs = tmp_path / "docs"
    (docs / "a" / "loop").symlink_to("..")
    (docs / "link.md").symlink_to("a/one.md")
    (docs / "out").symlink_to(tmp_path / "outside")
    (docs / "b.md").symlink_to(tmp_path / "three.md")
    (docs / "gone.md").symlink_to("nowhere.md")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("corpus", "expected", "leaving"),
    [
        ("docs", ["five.md", "one.md"], 2),
        ("docs,docs/a,./docs/**/*.md", ["five.md", "one.md"], 2),
        ("docs/**/*.md", ["five.md", "one.md"], 1),
        ("docs/.kept/*", ["six.md"], 0),
        ("docs,outside/*.md", ["docs/a/five.md", "docs/a/one.md", "outside/two.md"], 1),
        ("docs/b.md,docs/out", ["outside/two.md", "three.md"], 0),  # who names a link means what it leads to
    ],
)
def test_files_are_read_once_and_links_never_leave_the_corpus(linked, corpus, expected, leaving):
    found, _, counts = read(corpus)
    assert sorted(found) == expected
    assert counts["pages dropped: links that leave the corpus"] == leaving
    assert counts["pages dropped: links that lead nowhere"] == ("gone.md" in os.listdir("docs") and leaving > 0)


def test_a_worker_parses_a_format_that_its_tables_lack():
    """A document brings its format along, as the workers of `prepare` import no plugin."""
    document = pickle.loads(pickle.dumps(Document("a", "July", "On Monday.\nOn Tuesday.", Diary())))
    (article,) = corpus_kind.CORPORA["documents"].parse(document, {})
    assert [part.text for part in article.sections[0].paragraphs] == ["On Monday.", "On Tuesday."]

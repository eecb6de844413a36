"""One's own documents as a corpus: files, folders and patterns of six formats."""

import collections
import concurrent.futures
import contextlib
import gzip
import json
import os
import pickle
import time
import tracemalloc
import unicodedata

import pytest

from retrieval import text_files
from retrieval.config import fields
from retrieval.data.corpora import articles, corpus_kind, links, sources, urls
from retrieval.data.corpora.articles import Article, Redirect
from retrieval.data.corpora.document_format import DOCUMENTS, Block, Document, DocumentFormat, Outline
from retrieval.data.corpora.documents import parquet_rows
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets import beir
from retrieval.data.shards import prepared_corpus
from retrieval.data.shards.shard_steps import Settings
from retrieval.errors import UserError

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
        "notes/my-note.txt": "One line\nand another.\n\nA paragraph.\n",
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
    source = sources.open_source(str(corpus), options, lock)
    items, counts = [], collections.Counter()
    for tag, name, value in sources.parse_pages(source.read(), source.parse):
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
    assert {id: article.title for id, article in found.items()} == {
        "README.md": "My project",
        "guide/index.html": "The guide",
        "guide/start.md": "Start",
        "notes/my-note.txt": "my note",
    }
    assert counts["pages dropped: files of other kinds: .png"] == 1
    assert addresses["guide"] == addresses["guide/index"] == "guide/index.html"
    assert addresses["guide/start.html"] == "guide/start.md"


def test_headings_become_sections_and_lists_and_tables_text(folder):
    found, _, _ = read(folder)
    assert outline(found["README.md"]) == [
        ("", ["Read the guide or the web."]),
        ("Install", ["Run pip install x.", "a b", "1 2"]),
    ]
    assert outline(found["guide/index.html"]) == [("", ["All pages are here & linked."]), ("Old", ["one", "two"])]
    assert outline(found["notes/my-note.txt"]) == [("", ["One line and another.", "A paragraph."])]


def test_links_are_at_their_words_and_lead_to_documents(folder):
    found, _, _ = read(folder)
    for id, target, words in (
        ("README.md", "guide/start.md", "the guide"),
        ("guide/index.html", "guide/start.md", "linked"),
    ):
        (paragraph,) = found[id].sections[0].paragraphs
        (link,) = paragraph.links
        assert (link.target, paragraph.text[link.start : link.end]) == (target, words)


NOTES = {
    "Home.md": "See [[plan]], [[Red Fox|the fox]] and [[deep/Idea#Why]]. Also [[Idea]], [[nothing here]], [[Home]].",
    "animals/Red Fox.md": "To [[HOME.md|start]][[Plan#Now|, now]]; `[[Plan]]` is code, [[of](../plan.md)] is none.",
    "plan.md": """A | B
--|--
[[Red Fox\\|fox]] | ![[picture.png]]x

[[x]](Home.md), [[ref]] and \\[[Home]].

[ref]: Home.md""",
    "deep/idea.md": "Nested [[1,2],[3]] stays. [[#Why]] is here.",
    "other/Idea.md": "No link.",
}


def test_names_in_brackets_are_links_to_notes_anywhere(tmp_path):
    for name, text in NOTES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found, _, _ = read(tmp_path)
    texts, links_of = {}, {}
    for id, article in found.items():
        paragraphs = [paragraph for section in article.sections for paragraph in section.paragraphs]
        texts[id] = [paragraph.text for paragraph in paragraphs]
        links_of[id] = [(each.text[link.start : link.end], link.target) for each in paragraphs for link in each.links]
    assert texts == {
        "Home.md": ["See plan, the fox and deep/Idea > Why. Also Idea, nothing here, Home."],
        "animals/Red Fox.md": ["To start, now; [[Plan]] is code, [of] is none."],
        "plan.md": ["A B", "fox x", "[x], [ref] and [[Home]]."],
        "deep/idea.md": ["Nested [[1,2],[3]] stays. Why is here."],
        "other/Idea.md": ["No link."],
    }
    assert links_of == {
        "Home.md": [
            ("plan", "plan.md"),
            ("the fox", "animals/Red Fox.md"),
            ("deep/Idea > Why", "deep/idea.md"),
            ("Idea", "[[Idea]]"),
            ("nothing here", "[[nothing here]]"),
        ],
        "animals/Red Fox.md": [("start", "Home.md"), (", now", "plan.md"), ("of", "plan.md")],
        "plan.md": [("fox", "animals/Red Fox.md"), ("[x]", "Home.md"), ("ref", "Home.md")],
        "deep/idea.md": [],
        "other/Idea.md": [],
    }


@pytest.mark.parametrize(
    ("address", "base", "target"),
    [
        ("b.md", "a/x.md", "a/b.md"),
        ("../b.md#part", "a/x.md", "b.md"),
        ("/c/d.html?q=1", "a/x.md", "c/d.html"),
        ("with%20blank.md", "x.md", "with blank.md"),
        ("../../out.md", "a/x.md", None),
        ("http://[bad", "a/x.md", None),
    ],
)
def test_a_relative_address_counts_from_its_document(address, base, target):
    assert links.resolved(address, base) == target


@pytest.fixture
def shards(folder, tmp_path):
    """The folder above as a prepared corpus, with longer texts."""
    words = " ".join(f"word{i} and more." for i in range(20))
    for path in (folder / "README.md", folder / "guide" / "start.md"):
        path.write_text(f"{path.read_text()}\n\n## More\n\nSee [it](guide/start.md). {words}\n")
    source = sources.open_source(str(folder), OPTIONS, tmp_path / "no.lock")
    limits = Limits(longest=64, shortest=8, least=2)
    return prepared_corpus.prepare(source, tmp_path / "corpus", Settings(None, 200, 1, limits)), tmp_path / "corpus"


def test_sections_and_links_of_documents_become_pairs(shards):
    statistics, corpus = shards
    pairs = {task: told["pairs"] for task, told in statistics["tasks"].items()}
    assert min(pairs.values()) > 0
    ids = [json.loads(line)["_id"] for path in corpus.glob("passages-*.jsonl") for line in path.open()]
    assert "guide/start.md:0" in ids and "notes/my-note.txt:0" in ids


RECORDS = [{"_id": "d1", "title": "T", "text": "First.\n\nSecond."}, {"_id": "d2", "text": "Alone."}]
EXPECTED = {"d1": ("T", [("", ["First.", "Second."])]), "d2": ("", [("", ["Alone."])])}


def test_columns_of_parquet_may_be_numbers_bytes_and_dotted(tmp_path):
    import pyarrow
    from pyarrow import parquet

    text = ["Bread is in the town.", "A river is in the north."]
    for name, columns, named in (
        ("float", {"id": [1.0, 2.0], "text": text}, {}),
        ("binary", {"id": ["1", "2"], "text": [value.encode() for value in text]}, {}),
        ("dotted", {"id": [1, 2], "a.text": text}, {"text": "a.text"}),
    ):
        parquet.write_table(pyarrow.table(columns), tmp_path / f"{name}.parquet")
        found = list(parquet_rows.ParquetRows().read(tmp_path / f"{name}.parquet", name, named))
        assert [(each.id, each.text) for each in found] == list(zip(["1", "2"], text)), name
    parquet.write_table(pyarrow.table({"text": [b"\xff"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r"x\.parquet: a text is not UTF-8"):
        list(parquet_rows.ParquetRows().read(tmp_path / "x.parquet", "x", {}))


def test_records_of_json_lines_csv_and_parquet_are_documents(tmp_path):
    import pyarrow
    from pyarrow import parquet

    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    (tmp_path / "a.jsonl").write_text("\ufeff" + lines, encoding="utf-8")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "c.csv").write_text('_id,title,text\nd1,T,"First.\n\nSecond."\nd2,,Alone.\n')
    parquet.write_table(pyarrow.Table.from_pylist(RECORDS), tmp_path / "d.parquet")
    (tmp_path / "e.jsonl").write_bytes(lines.encode("utf-16"))
    (tmp_path / "f.csv.gz").write_bytes(gzip.compress((tmp_path / "c.csv").read_text().encode("utf-16")))
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
    import pyarrow
    from pyarrow import parquet

    told = ("https://a.example/x", "/docs/x", "javascript:run()", "java\nscript:run()", " FTP://a.example", None, ["a"])
    records = [{"id": str(number), "text": "Words.", "url": url} for number, url in enumerate(told)]
    records += [{"id": "m", "text": "Words.", "metadata": {"url": "http://b.example", "link": "c"}}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    found, _, _ = read(tmp_path / "a.jsonl")
    assert {id: article.url for id, article in found.items() if article.url} == {
        "0": "https://a.example/x",
        "1": "/docs/x",
        "m": "http://b.example",
    }
    (tmp_path / "b.csv").write_text("id,text,link\n1,Words.,https://a.example/x\n")
    found, _, _ = read(tmp_path / "b.csv", url="link")
    assert (
        found["1"].url == "https://a.example/x" and articles.from_json(articles.to_json(found["1"]), "") == found["1"]
    )
    parquet.write_table(pyarrow.Table.from_pylist(records[:2]), tmp_path / "c.parquet")
    assert [article.url for article in read(tmp_path / "c.parquet")[0].values()] == list(told[:2])


def test_passages_keep_the_address_of_their_document(tmp_path):
    words = " ".join(f"word{i} and more." for i in range(20))
    records = [{"id": "a", "text": words, "url": "https://a.example"}, {"id": "b", "text": words.upper()}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    source = sources.open_source(str(tmp_path / "a.jsonl"), OPTIONS, tmp_path / "no.lock")
    limits = Limits(longest=64, shortest=8, least=2)
    told = prepared_corpus.prepare(source, tmp_path / "corpus", Settings(None, 200, 1, limits))
    passages = [each for path in (tmp_path / "corpus").glob("passages-*.jsonl") for each in beir.read_candidates(path)]
    assert told["counts"]["articles with a web address"] == 1 and len(passages) > 2
    assert all(each.url == ("https://a.example" if each.id.startswith("a:") else "") for each in passages)


@pytest.mark.parametrize(
    ("base", "own", "address"),
    [
        ("", "", ""),
        ("", "guide", "guide"),
        ("https://a.example", "", "https://a.example/my%20docs/a%26b.md"),
        ("https://a.example/x/", "", "https://a.example/x/my%20docs/a%26b.md"),
        ("https://a.example/{stem}.html", "", "https://a.example/my%20docs/a%26b.html"),
        ("https://a.example/wiki/{title}", "", "https://a.example/wiki/A%3F%20%C3%A9"),
        ("/docs/", "", "/docs/my%20docs/a%26b.md"),
        ("https://a.example/x", "y/z", "https://a.example/x/y/z"),
        ("https://a.example/x/{id}", "/y", "https://a.example/y"),
        ("https://a.example", "http://b.example", "http://b.example"),
    ],
)
def test_a_base_address_and_the_path_make_an_address(base, own, address):
    assert urls.of_document(base, own, "my docs/a&b.md", "A? é") == address


def test_a_base_address_is_one():
    fits = fields.declared()["documents.base_url"].kind.fits
    assert fits("") and fits("https://a.example/{id}") and fits("docs/")
    assert not any(map(fits, ("javascript:{id}", "ftp://a.example", "https://a.example/{path}", "https://a b\n", 3)))


def test_a_record_without_id_has_its_file_and_place(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "One."}\n{"text": ""}\n{"text": "Three."}\n')
    found, _, counts = read(tmp_path / "a.jsonl")
    assert list(found) == ["a.jsonl#1", "a.jsonl#3"] and counts["pages dropped: documents without a text"] == 1


def test_files_without_utf_8_are_left_out(tmp_path, caplog):
    (tmp_path / "good.txt").write_text("Good.")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9")
    (tmp_path / "old.html").write_bytes(b'<meta charset="latin-1"><p>caf\xe9</p>')
    found, _, counts = read(tmp_path)
    assert sorted(found) == ["good.txt", "old.html"] and counts["pages dropped: not UTF-8"] == 1
    assert outline(found["old.html"]) == [("", ["café"])]
    assert "bad.txt: left out" in caplog.text


def test_files_that_hold_no_record_are_counted(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n")
    (tmp_path / "b.jsonl").write_text("\n\n")
    (tmp_path / "c.txt").write_text("Words.")
    _, _, counts = read(tmp_path)
    assert counts["pages dropped: files without a record"] == 2


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path, monkeypatch):
    (tmp_path / "closed").mkdir()
    (tmp_path / "a.txt").write_text("Words.")
    real = os.scandir

    def scandir(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(UserError, match=r"closed: cannot be read \(Permission denied\), and is in config\.corpus"):
        read(tmp_path)


def test_the_first_text_keeps_its_heading(tmp_path):
    (tmp_path / "a.md").write_text("# A\n\n# On Windows\n\nRun it.\n\n# On a Mac\n\nDrag it.")
    found, _, _ = read(tmp_path)
    assert outline(found["a.md"]) == [("On Windows", ["Run it."]), ("On a Mac", ["Drag it."])]


def test_names_that_no_record_can_hold_are_left_out(tmp_path, caplog):
    (tmp_path / "a.txt").write_text("Good.")
    (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("Lost.")
    (tmp_path / "b\tc.txt").write_text("Lost.")
    found, _, counts = read(tmp_path)
    assert list(found) == ["a.txt"] and counts["pages dropped: files whose name cannot be an id"] == 2
    assert "caf\ufffd.txt: left out, for its name is not UTF-8" in caplog.text


def test_names_are_alike_however_their_letters_are_written(tmp_path):
    (tmp_path / unicodedata.normalize("NFD", "café.md")).write_text("# Café\n\nWords.")
    (tmp_path / "b.md.gz").write_bytes(gzip.compress("[it](café.md), [self](b.md)".encode()))
    found, addresses, _ = read(tmp_path)
    assert set(found) == {"café.md", "b.md.gz"} and addresses["b.md"] == addresses["b"] == "b.md.gz"
    assert found["b.md.gz"].sections[0].paragraphs[0].links[0].target == "café.md"


@pytest.fixture
def most(monkeypatch):
    """As many bytes as a document or a record may have, here few."""
    monkeypatch.setattr(text_files, "MOST_BYTES", 2000)
    return 2000


LONG = "word " * 100_000


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.txt.gz", gzip.compress(LONG.encode())),
        ("a.md", LONG.encode()),
        ("a.html", LONG.encode()),
        ("a.txt", LONG.encode("utf-16")),
    ],
)
def test_a_file_of_more_than_one_document_may_have_is_left_out_and_named(tmp_path, caplog, most, name, data):
    (tmp_path / name).write_bytes(data)
    (tmp_path / "b.txt").write_text("word " * (most // 5))
    found, _, counts = read(tmp_path)
    assert list(found) == ["b.txt"] and counts["pages dropped: documents of more than 64 MiB"] == 1
    assert f"{name}: left out, for it is longer than 64 MiB" in caplog.text


@pytest.mark.parametrize(
    ("name", "data", "place"),
    [
        ("a.jsonl", '{"id": "1", "text": "One."}\n{"text": "%s"}\n{"id": "2", "text": "Two."}\n', "line 2"),
        ("a.jsonl", '{"id": "1", "text": "One."}\n{"id": "2", "text": "Two."}\n{"text": "%s"}', "line 3"),
        ("a.tsv", "id\ttext\n1\tOne.\n3\t%s\n2\tTwo.\n", "line 3"),
    ],
)
@pytest.mark.parametrize(
    "encode", [str.encode, lambda text: gzip.compress(text.encode()), lambda t: t.encode("utf-16")]
)
def test_a_record_of_more_is_left_out_and_named(tmp_path, caplog, most, name, data, place, encode):
    (tmp_path / name).write_bytes(encode(data % LONG))
    found, _, counts = read(tmp_path / name)
    assert list(found) == ["1", "2"] and counts["pages dropped: documents of more than 64 MiB"] == 1
    assert f"{name}, {place}: left out, for it is longer than 64 MiB" in caplog.text


@pytest.mark.parametrize("text", [LONG, "word\n" * 1000, '","\n' * 1000])
def test_an_endless_row_of_csv_is_an_error(tmp_path, most, text):
    (tmp_path / "a.csv").write_text(f'id,text\n1,"{text}"\n')
    with pytest.raises(UserError, match=r"a\.csv, line \d+: (the record is )?longer than 64 MiB"):
        read(tmp_path / "a.csv")


def test_a_text_that_many_rows_of_parquet_share_is_unpacked_once(tmp_path, caplog):
    import pyarrow
    from pyarrow import parquet

    texts = pyarrow.DictionaryArray.from_arrays([0] * 1000 + [1], ["word " * 40_000, "Fine."])
    ids = [*map(str, range(1001))]
    parquet.write_table(pyarrow.table({"id": ids, "text": texts, "title": [None] * 1001}), tmp_path / "a.parquet")
    (form,) = [form for form in DOCUMENTS.values() if form.name == "parquet"]
    before = pyarrow.total_allocated_bytes()
    documents = form.read(tmp_path / "a.parquet", "a.parquet", {})
    assert next(documents).id == "0" and pyarrow.total_allocated_bytes() - before < 20 << 20
    assert [document.text for document in documents][-1] == "Fine."


def test_a_row_of_parquet_that_is_too_large_is_left_out_and_a_bomb_refused(tmp_path, caplog, most, monkeypatch):
    import pyarrow
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"id": ["1", "2"], "text": [LONG, "Two."]}), tmp_path / "a.parquet")
    found, _, counts = read(tmp_path / "a.parquet")
    assert list(found) == ["2"] and counts["pages dropped: documents of more than 64 MiB"] == 1
    assert "a.parquet, row 1: left out" in caplog.text
    monkeypatch.setattr(parquet_rows, "_MOST_OF_COLUMN", 1000)
    parquet.write_table(pyarrow.table({"text": ["word " * (1 << 20)]}), tmp_path / "a.parquet", compression="zstd")
    with pytest.raises(UserError, match=r"a\.parquet: the column 'text' unpacks to 5 MiB, over 200 times its size"):
        read(tmp_path / "a.parquet")


def test_what_is_unpacked_is_never_in_memory_as_a_whole(tmp_path, most):
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(bytes(50 << 20), 1))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b" " * (50 << 20) + b'\n{"text": "Word."}', 1))
    tracemalloc.start()
    found, _, _ = read(tmp_path)
    assert len(found) == 1 and tracemalloc.get_traced_memory()[1] < 10 << 20
    tracemalloc.stop()


def test_speech_keeps_its_lines_and_prose_does_not(tmp_path):
    (tmp_path / "a.txt").write_text("so um we  went down\nto the store\n\nA line\nand another.")
    found, _, _ = read(tmp_path)
    assert outline(found["a.txt"]) == [("", ["so um we went down\nto the store", "A line and another."])]


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


@pytest.mark.parametrize(
    "run", [list, lambda items: concurrent.futures.ThreadPoolExecutor().submit(list, items).result()]
)
def test_a_document_that_is_not_parsed_in_time_is_left_out_and_named(monkeypatch, run):
    monkeypatch.setattr(sources, "_SECONDS", 0.05)
    ends = [Document(id, "July", "On Monday.", Endless()) for id in ("a", "c")]
    pages = ends if run is not list else [ends[0], Document("b", "July", "never", Endless()), ends[1]]
    items = run(sources.parse_pages(pages, lambda page: list(page.format.parse(page))))
    assert [json.loads(value)["id"] for tag, _, value in items if tag == "article"] == ["a", "c"]
    if run is list:
        counts = [name for tag, name, _ in items if tag != "article"]
        assert (
            "pages dropped: too slow" in counts
            and "broken: b: left out, for it is not parsed after 0 seconds" in counts
        )


def test_a_worker_parses_a_format_that_its_tables_lack():
    """A document brings its format along, as the workers of `prepare` import no plugin."""
    document = pickle.loads(pickle.dumps(Document("a", "July", "On Monday.\nOn Tuesday.", Diary())))
    (article,) = corpus_kind.CORPORA["documents"].parse(document, {})
    assert [part.text for part in article.sections[0].paragraphs] == ["On Monday.", "On Tuesday."]


def test_a_glob_names_files_and_their_ids(folder):
    found, _, _ = read(f"{folder}/**/*.md")
    assert sorted(found) == ["README.md", "guide/start.md"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.jsonl",
            '{"text": "x"}\n{"txt": "x"}\n',
            r"a\.jsonl, line 2: no field text, contents or body, but txt: name",
        ),
        ("a.jsonl", '{"text": ["x"]}\n', r"a\.jsonl, line 1: 'text' is list, where a text belongs"),
        ("a.csv", "id,text\n1,x,y\n", r"a\.csv, line 2: 3 columns, and the first row has 2"),
        ("a.csv", 'id,text\n1,"x\n2,y\n', r"a\.csv, line 3: unexpected end of data; mend the row"),
        ("a.csv", "text,id,text\na,b,c\n", r"a\.csv, line 1: two columns are called 'text'; give one another name"),
        ("a.jsonl", '{"id": "a\\tb", "text": "x"}', r"a\.jsonl, line 1: the id 'a\\tb' has '\\t', which files of"),
        ("a.parquet", "no parquet", r"a\.parquet: no whole Parquet file"),
        ("a.jsonl", '{"text": "\\ud83d"}', r"a\.jsonl, line 1: the field 'text' has half of a surrogate pair"),
        ("a.tsv", "question\tanswer\nHow?\tso\n", r"line 1: no field text, .*, but question, answer: name"),
        ("a.tsv", "faq_id\tanswer text\n1\tIt is so.\n", r"line 1: no field text, .*, but faq_id, answer text: name"),
        ("a.tsv", "id\tpassage text\n1\tIt is so.\n", r"line 1: no field text, .*, but id, passage text: name"),
        ("a.tsv", f"d1\turl\tT\t{'word ' * 99}\n", r"but d1, url, T, (word ){8}: name"),
    ],
)
def test_broken_records_end_with_file_and_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_half_a_character_of_utf_16_is_an_error(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"text": "x"}\n'.encode("utf-16")[:-1])
    with pytest.raises(
        UserError, match=r"a\.jsonl: not UTF-16, whose mark it begins with .* convert the file to UTF-8"
    ):
        read(tmp_path / "a.jsonl")


def test_an_unknown_field_is_named_with_near_ones(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"body_text": "x"}\n')
    with pytest.raises(
        UserError, match=r"no field 'bodytext', which config\.documents\.text names; did you mean body_text"
    ):
        read(tmp_path / "a.jsonl", text="bodytext")


def test_a_corpus_is_of_one_kind_and_not_empty(folder, tmp_path):
    with pytest.raises(UserError, match="prepare one kind in a run"):
        read(f"{folder},pydocs")
    (tmp_path / "bare").mkdir()
    kind, parts = corpus_kind.kind_of(str(tmp_path / "bare"))
    with pytest.raises(UserError, match=r"bare: no document, in config\.corpus; the names of documents end in \.csv, "):
        kind.check(parts, OPTIONS)


def test_two_records_of_one_id_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        '{"_id": "1", "text": "One two three."}\n{"_id": "1", "text": "Four five six."}\n'
    )
    source = sources.open_source(str(tmp_path / "a.jsonl"), OPTIONS, tmp_path)
    with pytest.raises(UserError, match="two pages of the corpus have the id '1'"):
        prepared_corpus.prepare(source, tmp_path / "corpus", Settings(None, 200, 1, Limits(64, 8, 2)))


@pytest.fixture
def linked(tmp_path):
    """A folder with links to itself, and to a file and a folder beside it."""
    docs, outside = tmp_path / "docs", tmp_path / "outside"
    (docs / "a").mkdir(parents=True)
    outside.mkdir()
    (docs / "a" / "one.md").write_text("# One\n\nFirst text.\n")
    (docs / "a" / "five.md").write_text("# Five\n\nFifth text.\n")
    (outside / "two.md").write_text("# Two\n\nSecond text.\n")
    (docs / "a" / "loop").symlink_to("..")
    (docs / "again").symlink_to("a")
    (docs / "link.md").symlink_to("a/one.md")
    (docs / "out").symlink_to(outside)
    for name in ("b.md", "c.md"):
        (docs / name).symlink_to(tmp_path / "three.md")
    (tmp_path / "three.md").write_text("# Three\n\nThird text.\n")
    (docs / "gone.md").symlink_to("nowhere.md")
    return docs


def test_links_are_followed_once_and_never_out_of_the_corpus(linked, caplog):
    found, _, counts = read(linked)
    assert sorted(found) == ["five.md", "one.md"]
    assert counts["pages dropped: links that lead nowhere"] == 1 and "gone.md: left out" in caplog.text
    assert counts["pages dropped: links that leave the corpus"] == 3
    assert all(f"{linked / name}: left out, for this link leaves the corpus" in caplog.text for name in ("b.md", "out"))


@pytest.mark.parametrize(
    ("corpus", "expected", "leaving"),
    [
        ("docs/**/*.md", ["Five", "One"], 2),
        ("docs/*/*.md", ["Five", "One"], 1),
        ("docs,outside", ["Five", "One", "Two"], 2),
        ("docs,outside/*.md", ["Five", "One", "Two"], 2),
        ("docs/b.md,docs/out", ["Three", "Two"], 0),  # who names a link means what it leads to
        ("docs/a/*/b.md,docs/a", ["Five", "One"], 2),
    ],
)
def test_a_corpus_is_the_folders_that_its_parts_name(linked, monkeypatch, corpus, expected, leaving):
    monkeypatch.chdir(linked.parent)
    found, _, counts = read(corpus)
    assert sorted(article.title for article in found.values()) == expected
    assert counts["pages dropped: links that leave the corpus"] == leaving


def test_a_corpus_of_nothing_but_links_that_leave_it_is_refused(linked):
    kind, parts = corpus_kind.kind_of(f"{linked}/b*.md")
    with pytest.raises(UserError, match=r"b\*\.md: no document but 1 links that leave it, which are not followed, in"):
        kind.check(parts, OPTIONS)


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ("**/*.md", ["a/one.md", "b/two [x].md", "top.md"]),
        ("./**/*.md", ["a/one.md", "b/two [x].md", "top.md"]),
        ("{here}/**/*.md", ["a/one.md", "b/two [x].md", "top.md"]),
        ("**", ["a/one.md", "b/two [x].md", "top.md"]),
        ("**/up/**/t*.md", ["b/two [x].md", "top.md"]),
        ("**/aside/*.md", ["one.md"]),
        ("**/.kept/*", ["kept.md"]),
    ],
)
def test_a_pattern_ends_where_links_lead_to_parents(tmp_path, monkeypatch, corpus, expected):
    monkeypatch.chdir(tmp_path)
    for name in ("a/one.md", "b/two [x].md", "top.md", ".kept/kept.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# One\n\nSome text.\n")
    for folder in "ab":
        (tmp_path / folder / "up").symlink_to("..")
    (tmp_path / "b" / "aside").symlink_to("../a")
    found, _, counts = read(corpus.format(here=tmp_path))
    assert sorted(name.rpartition("up/")[2] for name in found) == expected and counts["pages read"] == len(expected)


@pytest.mark.parametrize(
    "corpus, again",
    [
        ("docs", 0),
        ("docs,docs/sub", 1),
        ("docs/sub,docs", 1),
        ("docs,{here}/docs", 2),
        ("docs/**/*.md,docs", 2),
        ("docs,aside", 2),
        ("aside,docs", 2),
        ("docs,far/link", 1),
    ],
)
def test_a_file_that_is_named_twice_is_read_once(tmp_path, monkeypatch, caplog, corpus, again):
    monkeypatch.chdir(tmp_path)
    for name in ("docs/sub/b.md", "docs/a.md", "far/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n\nSome text.\n")
    (tmp_path / "aside").symlink_to("docs")
    (tmp_path / "far" / "link").symlink_to("../docs/sub")
    found, _, counts = read(corpus.format(here=tmp_path))
    assert sorted(article.title for article in found.values()) == ["docs/a.md", "docs/sub/b.md"]
    assert counts["pages read"] == 2
    told = f"{again} files are named or linked more than once; each is read once"
    assert (told in caplog.text) == bool(again)
    if "far" not in corpus:  # the folder that all ids count from is the one of the documents
        assert set(found) == {"a.md", "sub/b.md"}


def test_windows_files_are_read_or_left_out(tmp_path, caplog):
    (tmp_path / "marked.txt").write_bytes("Größe. Zwei.".encode("utf-16"))
    (tmp_path / "marked.html").write_bytes('<meta charset="utf-16"><p>Größe.</p>'.encode("utf-16"))
    (tmp_path / "unmarked.txt").write_bytes("Größe. Zwei.".encode("utf-16-le").replace(b"\xf6", b"o"))
    (tmp_path / "nul.txt").write_text("Much text has one zero\0 byte by accident.")
    found, _, counts = read(tmp_path)
    assert sorted(found) == ["marked.html", "marked.txt", "nul.txt"]
    assert outline(found["marked.txt"]) == [("", ["Größe. Zwei."])] and outline(found["marked.html"]) == [
        ("", ["Größe."])
    ]
    assert counts["pages dropped: not UTF-8"] == 1 and "unmarked.txt: left out" in caplog.text


def test_a_file_that_is_no_gzip_is_read_as_it_is(tmp_path):
    (tmp_path / "a.txt.gz").write_text("No gzip.")
    (tmp_path / "b.jsonl.gz").write_text('{"id": "b", "text": "None either."}\n')
    found, _, _ = read(tmp_path)
    assert sorted(found) == ["a.txt.gz", "b"]


def test_a_form_around_a_page_keeps_its_text(tmp_path):
    (tmp_path / "a.html").write_text(
        "<form><p>All of the page.</p><label>Name</label><select><option>x</option></select><button>Go</button></form>"
    )
    found, _, _ = read(tmp_path)
    assert outline(found["a.html"]) == [("", ["All of the page.", "Name"])]


def test_a_line_for_spreadsheets_and_an_empty_file_are_passed_over(tmp_path):
    (tmp_path / "a.csv").write_text("sep=;\nid;text\n1;One, two.\n")
    (tmp_path / "empty.csv").write_text("")
    found, _, counts = read(tmp_path)
    assert outline(found["1"]) == [("", ["One, two."])] and counts["pages dropped: files without a record"] == 1
    (tmp_path / "a.csv").write_text("sep=;\nid;text\n1;One;two\n")
    with pytest.raises(UserError, match=r"a\.csv, line 3: 3 columns"):
        read(tmp_path / "a.csv")


def test_spreadsheets_write_semicolons(tmp_path):
    (tmp_path / "a.csv").write_text('\ufeffid;title;text\nä 1;T;"One; two."\n', encoding="utf-8")
    found, _, _ = read(tmp_path / "a.csv")
    assert outline(found["ä 1"]) == [("", ["One; two."])] and found["ä 1"].title == "T"

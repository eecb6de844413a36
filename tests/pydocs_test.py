"""Docstrings to articles: what counts as prose, where names lead, and what is held out."""

import functools
import re
import time
from pathlib import Path

import pytest

from retrieval.data.corpora import pydocs
from retrieval.data.corpora.articles import Article, Dropped, KnownItem, Paragraph, Redirect, Section
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.corpora.passages import Limits
from retrieval.data.corpora.pydocs import Page
from retrieval.data.examples.tasks import corpus_tasks
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.held_out_texts import KnownItems, Occurrences, words
from retrieval.data.sets.set_format import Context
from retrieval.data.shards import prepared_corpus, shard_steps
from retrieval.data.tokenizers.vocab import WordPiece

FILES = {
    "demo/__init__.py": '''
        """The demo package of this test. See :mod:`demo.shapes` for the shapes."""
        from ._impl import *
        from .shapes import (
            Circle,
            area as surface,  # public name
        )
        from json import dumps
        ''',
    "demo/_impl.py": '''
        """Where the functions of the package are written."""
        import os
        from .shapes import Circle

        def grow(size):
            """Grow the thing by a given size, in `os.path.join` style, with `Circle` or `size`.

            See Also
            --------
            shrink : The opposite of this one.
            demo.shapes.area, Circle : What is measured, and of what.
            zipfile.ZipFile
            """

        def shrink(size):
            """Shrink the thing; :func:`grow` and :func:`demo.surface` are the other way (e.g. demo.nothing)."""
        ''',
    "demo/shapes.py": '''
        """Shapes and what can be measured about them."""

        class Circle:
            """A round shape that is drawn with a radius."""

            def move(self):
                """Move the circle to another place in the plane."""

            class Part:
                """One part of the circle, as it is cut by a line."""

        def area(shape):
            """Compute the area of a shape that is closed."""

        if True:
            def volume(shape):
                """Compute the volume of a shape that is closed."""
        ''',
    "demo/surface.py": '"""A module with the name of a function, which is the other title of another page."""',
    "demo/empty.py": "x = 1\n",
    "demo/broken.py": "def f(:\n",
    **dict.fromkeys(
        ("demo/tests/test_shapes.py", "demo/shapes_test.py", "demo/conftest.py", "demo/_vendor/a.py", "demo/a_pb2.py"),
        '"""Tests, copies and generated code are not part of the corpus."""',
    ),
}
PAGES = ["demo", "demo._impl", "demo.broken", "demo.empty", "demo.shapes", "demo.surface"]


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path with the distribution `demo` 1.0 installed in it."""
    folder = tmp_path / "site"
    for name, source in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"(?m)^ {8}", "", source))
    info = folder / "demo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{name},,\n" for name in [*FILES, "demo/gone.py", "../../bin/demo.py"]))
    monkeypatch.syspath_prepend(str(folder))
    return folder


def lock(folder, text):
    path = folder / "requirements.lock"
    path.write_text(text)
    return path


def pages_of(site):
    read = pydocs.read_pages(lock(site, "demo==1.0\n"))
    return {page.title: page for page in read if page.title.startswith("demo")}


def parsed(tmp_path, source, held_out=0.0, name="module"):
    path = tmp_path / f"{name}.py"
    path.write_bytes(source if isinstance(source, bytes) else source.encode())
    return pydocs.parse(pydocs.Page(name, name, str(tmp_path), str(path), path.stat().st_size), held_out)


def prose(tmp_path, docstring):
    """The paragraphs of a module with this docstring."""
    (result,) = (r for r in parsed(tmp_path, f'r"""{docstring}"""') if not isinstance(r, Redirect))
    return [p.text for p in result.sections[0].paragraphs] if isinstance(result, Article) else []


def links(results):
    """Section -> [(anchor, target)] of the article among what `parse` returned."""
    (article,) = (result for result in results if isinstance(result, Article))
    return {
        section.heading: [(p.text[link.start : link.end], link.target) for p in section.paragraphs for link in p.links]
        for section in article.sections
    }


def test_pages_are_modules_of_pinned_packages_and_python(site):
    read = list(pydocs.read_pages(lock(site, "# comment\ndemo==1.0 ; python_version > '3'\nabsent==2\n--hash=x\n")))
    assert read[0] == Dropped("absent", "distribution not installed in its pinned version")
    assert Dropped("demo", read[0].reason) == next(pydocs.read_pages(lock(site, "demo==1.1\n")))
    titles = [page.title for page in read[1:]]
    assert [title for title in titles if title.startswith("demo")] == PAGES
    assert {"zipfile", "json.decoder", "collections"} <= set(titles)
    assert not any(title.split(".")[0] == "test" or ".test_" in title for title in titles)
    assert titles == sorted(set(titles))
    assert all(page.id == page.title and page.size == len(Path(page.path).read_bytes()) for page in read[1:200])


def test_a_module_is_an_article_of_sections(site):
    article, *redirects = pydocs.parse(pages_of(site)["demo.shapes"])
    assert (article.id, article.title) == ("demo.shapes", "demo.shapes")
    assert [(s.heading, s.level, [p.text for p in s.paragraphs]) for s in article.sections] == [
        ("", 1, ["Shapes and what can be measured about them."]),
        ("Circle", 2, ["A round shape that is drawn with a radius."]),
        ("Circle.move", 3, ["Move the circle to another place in the plane."]),
        ("Circle.Part", 3, ["One part of the circle, as it is cut by a line."]),
        ("area", 2, ["Compute the area of a shape that is closed."]),
        ("volume", 2, ["Compute the volume of a shape that is closed."]),
    ]
    assert redirects == [Redirect(f"demo.shapes.{name}", "demo.shapes") for name in ("Circle", "area")]


def test_a_packages_exports_link_to_their_modules(site):
    redirects = {r.title: r.target for r in pydocs.parse(pages_of(site)["demo"]) if isinstance(r, Redirect)}
    # `demo.surface` is an article of its own, `demo.dumps` is another package's.
    assert redirects == {"demo.grow": "demo._impl", "demo.shrink": "demo._impl", "demo.Circle": "demo.shapes"}


def test_links_lead_to_the_module_that_defines_the_name(site):
    pages = pages_of(site)
    assert links(pydocs.parse(pages["demo"])) == {"": [("demo.shapes", "demo.shapes")]}
    found = links(pydocs.parse(pages["demo._impl"]))
    of_shapes = [(name, "demo.shapes") for name in ("Circle", "demo.shapes.area", "Circle")]
    assert found["grow"] == [("os.path.join", "posixpath"), *of_shapes, ("zipfile.ZipFile", "zipfile")]
    assert found["shrink"] == [("demo.surface", "demo.surface")]


@pytest.mark.parametrize(
    ("docstring", "expected"),
    [
        ("One line\n    of a text.\n\nAnd then another one.", ["One line of a text.", "And then another one."]),
        # Code: doctests, fences, literal blocks, directives, and blocks that look like it.
        ("It is called so:\n\n>>> f()\nThis is its output.\n\nIt is the end.", ["It is called so:", "It is the end."]),
        ("Use it:\n```python\nfor a in the: f(a)\n```\nThat is all of it.", ["That is all of it."]),
        ("As in the example::\n\n    the = a(of)\n\nIt is the end.", ["As in the example:", "It is the end."]),
        # Directives whose content is prose.
        (".. note:: It is for you.\n\n.. versionadded:: 1.2\n   It can be new.", ["It is for you.", "It can be new."]),
        # Tables and rules.
        ("=== ===\nthe a\n=== ===\n\n| a | of the |\n|---|---|\n\nIt is the end.", ["It is the end."]),
        # Inline markup.
        (
            "The ``x`` is `y`, **not** *z*; see `title <https://a.b>`_ or [here](https://a.b), https://a.b [1]_. `It.",
            ["The x is y, not z; see title or here,. It."],
        ),
        (":class:`~a.b.C` is a :math:`x`\\s :py:func:`the f <a.f>`.", ["C is a xs the f."]),
        # Parameters, in the four styles: names and descriptions stay, types go.
        (
            "Parameters\n----------\naxis : int, optional\n    The axis of\n    the sum.\nout : ndarray\n\nReturns\n"
            "-------\nndarray\n    The sum of it all.",
            ["axis: The axis of the sum.", "ndarray: The sum of it all."],
        ),
        (
            "Args:\n  axis (int): The axis of\n    the sum.\n  *args: All of the rest\nReturns:\n  The sum of all.",
            ["axis: The axis of the sum.", "*args: All of the rest.", "The sum of all."],
        ),
        (
            ":param int axis: The axis of\n  the sum.\n:type axis: the int of\n:returns: The sum of all.\n:rtype: a",
            ["axis: The axis of the sum.", "The sum of all."],
        ),
        # Lists.
        ("Any:\n- one is the first\n  of them\n- two is not one", ["one is the first of them.", "two is not one."]),
        # Headings, references, licences, words without a sentence.
        ("It is the text.\n\nReferences\n----------\n.. [1] The book of it.\nIn the journal.", ["It is the text."]),
        ("int, float, str, bytes\n\nFirst Second Third Fourth Fifth Sixth", []),
    ],
)
def test_what_is_left_of_a_docstring_is_prose(tmp_path, docstring, expected):
    assert prose(tmp_path, docstring) == expected


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (b"def f(:\n", "not valid Python, or nested too deeply"),
        (b'"""a\0b"""', "not valid Python, or nested too deeply"),
        (b"if a: pass\n" + b"elif a: pass\n" * 1500, "not valid Python, or nested too deeply"),
        (b"x = 1\n", "no text"),
    ],
)
def test_what_cannot_be_read_is_dropped_with_a_reason(tmp_path, source, reason):
    assert [r for r in parsed(tmp_path, source) if not isinstance(r, Redirect)] == [Dropped("module", reason)]


@pytest.mark.parametrize("text", ["`a ", "**a ", "[`a`](", "::\n\n", "- ", ">>> \n", ".. \n", "```\n", "a: ", "<"])
def test_time_is_linear_in_whatever_text(tmp_path, text):
    start = time.process_time()
    prose(tmp_path, "The text of it " + text * (100_000 // len(text)) + " is the end")
    prose(tmp_path, "The text\n" + text * (100_000 // len(text)) + "\n is the end")
    assert time.process_time() - start < 4


BODY = "The body goes on for many words, so that it can be found again. " * 3


def function(name, sentence, body=BODY):
    return f'def {name}():\n    """{sentence}\n\n    {body}\n    """\n\n'


def test_held_out_functions_are_items_and_nowhere_else(tmp_path):
    returned = "Return the number {} of the list."
    source = "".join(function(f"f{i}", returned.format(i), f"Number {i}. {BODY}") for i in range(200))
    source += function("_private", "Return the private thing of all.") + function("short", "Return a short thing.", "")
    everything, nothing, half = (parsed(tmp_path, source, held_out) for held_out in (1.0, 0.0, 0.5))
    items = [r for r in everything if isinstance(r, KnownItem)]
    assert [item.name for item in items] == [f"module.f{i}" for i in range(200)]
    assert items[7].query == "Return the number 7 of the list."
    assert items[7].body == " ".join(f"Number 7. {BODY}".split())
    assert not any(isinstance(r, Article | KnownItem) for r in everything if r not in items)
    assert not any(isinstance(r, KnownItem) for r in nothing)
    held = {r.name for r in half if isinstance(r, KnownItem)}
    (article,) = (r for r in half if isinstance(r, Article))
    kept = {f"module.{section.heading}" for section in article.sections}
    assert 70 < len(held) < 130 and not held & kept
    assert len(held | kept) >= 201  # the lead has no heading
    assert {r.name for r in parsed(tmp_path, source, 0.2) if isinstance(r, KnownItem)} < held


def test_a_sentence_is_held_out_under_every_name(tmp_path):
    sentences = [f"Return the number {i} of the list." for i in range(40)]
    source = "".join(function(f"f{i}", text, f"Number {i}. {BODY}") for i, text in enumerate(sentences))
    held = {r.query for r in parsed(tmp_path, source, 0.5) if isinstance(r, KnownItem)}
    other = "".join(f'class C{i}:\n    """{text} This one is a class."""\n' for i, text in enumerate(sentences))
    other += "".join(function(f"g{i}", text.upper()) for i, text in enumerate(sentences))
    results = parsed(tmp_path, other, 0.5, "other")
    text = " ".join(p.text for r in results if isinstance(r, Article) for s in r.sections for p in s.paragraphs).lower()
    assert 0 < len(held) < 40
    assert {s for s in sentences if s.lower() not in text} == held


def test_every_query_has_exactly_one_right_answer():
    items = [
        KnownItem("b.f", "Return the first one.", "Body one."),
        KnownItem("a.f", "Return the  first one", "body ONE"),  # a copy of the last but for case and spaces
        KnownItem("c.f", "Return the second one.", "Body two."),
        KnownItem("d.f", "Return the second one.", "Body three."),  # the query has two answers
        KnownItem("e.f", "Return the third one.", "Body four."),
        KnownItem("f.f", "Return the fourth one.", "Body four."),  # the answer has two queries
        KnownItem("h.f", "Return the sixth one.", "Body six."),
        KnownItem("h.f", "Return the fifth one.", "Body five."),  # defined twice: the last one counts
        KnownItem("i.f", "Return the seventh one.", "In short: return the seventh one. Body seven."),
        Dropped("g", "no text"),
    ]
    found = pydocs.known_items(items)
    assert found.name == "pydocs"
    assert found.candidates == [Candidate("a.f", "", "body ONE"), Candidate("h.f", "", "Body five.")]
    assert found.queries == {"a.f": "Return the  first one", "h.f": "Return the fifth one."}
    assert found.qrels == {"test": {"a.f": {"a.f": 1}, "h.f": {"h.f": 1}}}


def test_training_reads_nothing_of_known_items(tmp_path):
    """A module's docstring repeats a query in its lead, another a sentence of a body, and a list of names a query."""
    asked = "Compute the fourth root of all numbers."
    rest = "The numbers are taken one after the other. A negative one raises an error here."
    lead = f"This module is about the roots of many numbers. {asked} Have a look at the functions."
    listed = "Pour the water into a large glass."
    sections = [
        ("", [lead]),
        ("g", ["Another function of this module is written here. A negative one raises an error here."]),
        ("h", [f"pour: {listed} And what else there is stands behind it."]),
        ("i", [asked]),
    ]
    built = tuple(Section(name, 1 + bool(name), tuple(map(Paragraph, texts))) for name, texts in sections)
    results = [Article("m", "m", built), KnownItem("m.f", asked, rest), KnownItem("m.pour", listed, "Water runs.")]
    source = Source(lambda: iter([Page("m", "m", "", "", 1)]), functools.partial(_parse_as, results))
    settings = prepared_corpus.Settings(None, 300, 2, Limits(60, 5, 3))
    statistics = prepared_corpus.prepare(source, tmp_path, settings)
    assert statistics["counts"][shard_steps.KEPT_SENTENCES] == 3 and statistics["tasks"]["mlm"]["pairs"] == 3
    (found,) = KnownItems().read(True, Context({}, tmp_path, tmp_path))
    assert found.queries == {} and not found.candidates  # the corpus has both queries
    vocabulary = WordPiece.load(tmp_path / "vocab.txt")
    occurrences = Occurrences(map(words, [asked, *rest.split(". ")]))
    records = list(corpus_tasks.read_training(tmp_path, corpus_tasks.PASSAGES, 0.0))
    texts = [vocabulary.decode(record[name]) for record in records for name in ("title", "ids", "lead_ids")]
    assert not [text for text in texts if list(occurrences.inside(words(text)))]
    assert sum("look at the functions" in text for text in texts) == 1 + 3  # the lead, and as that of the others


def _parse_as(results, page):
    return results

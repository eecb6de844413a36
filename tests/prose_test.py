"""The documents are in short sentences, and name files that are there."""

import ast
import re

import mutations
from conftest import REPOSITORY

PATTERNS = ("*.md", "docs/**/*.md", "benchmarks/*.md", "third_party/*.md")
PAGES = sorted(path for pattern in PATTERNS for path in REPOSITORY.glob(pattern))


def lengths(text):
    """The words of each sentence of a page, without its code, tables, headings and quotations."""
    text = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    lines = ["" if re.match(r"\s*(\||#|>|!\[)", line) else line for line in text.splitlines()]
    text = "\n".join(re.sub(r"^\s*([-*]|\d+\.)\s+", "\n", line) for line in lines)
    for paragraph in re.split(r"\n\s*\n", text):
        plain = re.sub(r"`[^`]*`", "X", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(paragraph.split())))
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"'(])", plain):
            words = len(re.findall(r"[A-Za-z][A-Za-z'-]*", sentence))
            if words > 2:
                yield words


def test_sentences_are_short():
    """17 words in the mean of a page, and not more than one in twenty of over 30."""
    assert [*lengths("# A heading\n\nOne two three. Four `code here` six\nseven!\n\n| a cell of a table |\n")] == [3, 4]
    for path in PAGES:
        words = [*lengths(path.read_text(encoding="utf-8"))]
        assert not words or sum(words) / len(words) <= 17, path
        assert sum(count > 30 for count in words) <= len(words) / 20, path


def test_files_that_are_named_are_there():
    """Links between pages; and in code, paths below the repository or the package, such as `search/fusion.py`."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", re.sub(r"`[^`]*`", "", text))
        assert [target for target in targets if not (path.parent / target).exists()] == [], path
        named = re.findall(r"`((?:\w+/)+\w+\.(?:py|sh|toml|lock))`", text)
        roots = (REPOSITORY, REPOSITORY / "retrieval")
        missing = {name for name in named if not any((root / name).exists() for root in roots)}
        assert missing <= {"configs/NAME.py"}, path
    folders = re.findall(r"^\| `(\w+)/` \|", (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8"), flags=re.M)
    there = {path.parent.name for path in (REPOSITORY / "retrieval").glob("*/__init__.py")}
    assert {*folders} == there | {"configs"}


def names_in(path):
    """The functions, classes and methods that a file defines."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef))


def test_the_code_tour_names_what_there_is():
    tour = (REPOSITORY / "docs" / "code-tour.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.*?) \| (`.*?) \|", tour, flags=re.M)
    assert len(rows) > 20
    for files, names in rows:
        defined = {name for file in re.findall("`(.*?)`", files) for name in names_in(REPOSITORY / "retrieval" / file)}
        assert set(re.findall("`(.*?)`", names)) <= defined, files


# The rows of docs/reliability.md.
RELIABILITY = (REPOSITORY / "docs" / "reliability.md").read_text(encoding="utf-8").splitlines()
RELIABILITY = [line for line in RELIABILITY if line.startswith("| ") and not line.startswith("| fault |")]


def test_every_row_has_a_mutation():
    tests = [protection["test"].partition("::")[2] for protection in mutations.read()]
    assert RELIABILITY
    for row in RELIABILITY:
        assert any(f"`{name}`" in row for name in tests), row
    for name in tests:
        assert any(f"`{name}`" in row for row in RELIABILITY), name


def test_the_tests_are_there():
    for row in RELIABILITY:
        files = re.findall(r"`(\w+_test\.py)`", row)
        sources = [(REPOSITORY / "tests" / file).read_text(encoding="utf-8") for file in files]
        for name in re.findall(r"`(test_\w+)`", row):
            assert any(f"def {name}(" in source for source in sources), name
    for protection in mutations.read():
        source = (REPOSITORY / "retrieval" / protection["file"]).read_text(encoding="utf-8")
        assert source.count(protection["code"]) == 1, protection["fault"]
        file, _, name = protection["test"].partition("::")
        assert f"def {name}(" in (REPOSITORY / "tests" / file).read_text(encoding="utf-8"), name

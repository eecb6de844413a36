"""The documents and --help name every stage, config and format, and their examples are what the readers take."""

import re
import shlex
import sys

import pyarrow
import pytest
from absl import flags
from conftest import REPOSITORY
from pyarrow import parquet
from support import children
from support.command_flags import forget_flags

from configs import ict_bfs_wlp
from retrieval import cli, main, reference
from retrieval.config import fields as config_fields
from retrieval.configs import published
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.labelled_format import LABELLED, Settings
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import SETS, Context
from retrieval.runs.pipeline import overrides
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES

DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]


def test_every_page_is_in_the_contents():
    folder = REPOSITORY / "docs"
    contents = (folder / "contents.md").read_text(encoding="utf-8")
    kinds = ("guides", "reference", "tutorials", "papers")
    pages = [path.relative_to(folder).as_posix() for kind in kinds for path in (folder / kind).glob("*.md")]
    assert len(pages) > 18 and [page for page in pages if f"({page})" not in contents] == []


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_line_of_questions_is_recognised_and_read(name, tmp_path):
    path, passages = tmp_path / "file", tmp_path / "psgs.tsv"
    path.write_text(QUESTIONS[name].example.replace("⇥", "\t"))
    passages.write_text(SETS["qa"].example.replace("⇥", "\t") + "\n1\ta\tT\n")
    given = Context({"sets.qa_patterns": False}, tmp_path, tmp_path)
    (value,) = SETS["qa"].read(f"{passages},{path}", given)
    assert list(value.queries.values()) == ["q"] and [text.text for text in value.candidates] == ["a"]
    (found,) = value.answers.values()
    assert found.values and found.are_patterns == (name == "curated_trec")


@pytest.mark.parametrize("name", LABELLED)
def test_a_line_of_a_format_is_recognised_and_read(name, tmp_path):
    path, queries, collection = (tmp_path / file for file in ("file", "queries.tsv", "collection.tsv"))
    path.write_text(LABELLED[name].example.replace("⇥", "\t").replace("⏎", "\n"))
    if name == "parquet":
        names = LABELLED[name].example.removeprefix("columns ").split(", ")
        parquet.write_table(pyarrow.table(dict(zip(names, (["q"], ["a"], ["b"])))), path)
    queries.write_text("1000094\tq\n")
    news = "".join(f"{id}\tnews\tsub\t{title}\t\t\t[]\t[]\n" for id, title in (("N1", "q"), ("N3", "a"), ("N4", "b")))
    passage = '{"_id": "d7", "title": "", "text": "p, an answer"}\n'
    collection.write_text({"mind": news, "generated": passage}.get(name, "5399011\ta\n4239068\tb\n"))
    texts = {"id_triples": (str(queries), str(collection))} | dict.fromkeys(
        ("mind", "generated"), ("", str(collection))
    )
    lone = name in ("generated", "squad_answers")  # formats that have to be named, and have no negatives
    settings = Settings(name if lone else "", *texts.get(name, ("", "")), 0)
    assert labelled_format.format_of(path, settings).name == name
    with labelled_format.grouped([path], settings, tmp_path, 9) as (groups, counts):
        ((query, positives, negatives, answers, *_),) = groups
    assert answers == (("a",) if name == "dpr" else ())
    assert query in ("q", "q?", "a question") and counts == Counts(1, 1, counts.left_out)
    assert (len(positives), len(negatives)) == (1, 0 if lone else 1)


def test_fields_and_extras_that_pages_name_are_there():
    """Fields of a group, such as `train.steps`, in commands or as code. Results may be of older programs."""
    fields, others = config_fields.declared(), {"answer.text", "model.prompts", "model.answer"}  # the latter of Python
    groups = {name[: dot.start()] for name in fields for dot in re.finditer(r"\.", name)}
    extras = set(re.findall(r'^ {8}"(\w+)": \[', (REPOSITORY / "setup.py").read_text(), flags=re.M))
    for page in DOCUMENTS:
        if page.name in ("CHANGELOG.md", "extending.md") or page.parent.name == "results":
            continue
        text = page.read_text(encoding="utf-8")
        named = re.findall(
            r"--(?:no)?config\.(\w+(?:\.\w+)+)(?![\w.-])|`(?:config\.)?(\w+(?:\.\w+)+)(?:=[^`]*)?`", text
        )
        named = {one or other for one, other in named if (one or other).partition(".")[0] in groups}
        files = {name for name in named if name.endswith((".json", ".jsonl", ".onnx", ".onnx_data", ".safetensors"))}
        assert named - files <= {*fields, *groups, *others}, page
        assert {extra for several in re.findall(r"\.\[([\w,]+)\]", text) for extra in several.split(",")} <= extras, (
            page
        )
    assert len(extras) > 10 and "train" in groups


def commands():
    """The commands of the documents and the configs that stand on a base."""
    for path in (*DOCUMENTS, *(REPOSITORY / "configs").rglob("*.py")):
        text = re.sub(r"\\+\n", " ", path.read_text(encoding="utf-8"))
        yield from (command for command in re.findall(r"-m retrieval\.main (.*)", text) if "--config.base=" in command)


def test_no_command_sets_what_only_its_base_reads(tmp_path, monkeypatch):
    """Also where the base has run every stage."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(published, "start_from", lambda *_: None)  # of a MODEL that is not there
    base = ict_bfs_wlp.get_config()
    base.stages = tuple(STAGES)
    (tmp_path / "config.json").write_text(base.to_json())
    found = list(commands())
    for command in found:
        forget_flags()
        based = re.sub(r"--config\.base=\S+", f"--config.base={tmp_path}", command)
        cli.parse_flags(["main", *shlex.split(based)])
        run = Run(cli.config(), tmp_path / "run", REPOSITORY / "requirements.lock")
        assert run.base and "base" in cli.overridden()
        overrides.check(run, flags.FLAGS.stage or (), cli.overridden())
    assert len(found) >= 14


def help_of(monkeypatch, capsys, flag):
    monkeypatch.setattr(sys, "argv", ["retrieval.main", flag])
    cli.run(main.main, main.manual)
    return capsys.readouterr().out


def test_help_is_one_screen_that_leads_to_the_rest(monkeypatch, capsys):
    told = help_of(monkeypatch, capsys, "--help")
    assert len(told.splitlines()) <= 45 and all(name in told for name in (*STAGES, "own", "--help=all", "fields"))


def test_help_lists_all_of_it(monkeypatch, capsys):
    told = help_of(monkeypatch, capsys, "--help=all")
    for name in (*STAGES, *LABELLED, *cli.described(), "--workdir", "--query"):
        assert name in told
    for form in (*SETS.values(), *LABELLED.values(), *QUESTIONS.values()):
        assert form.what in told and form.setting in told


@pytest.mark.parametrize(
    ("word", "has", "lacks"),
    [
        ("stages", "Stages:\n  adopt\n", "--config.FIELD"),
        ("formats", "Formats: evaluation sets:", "Flags:"),
        ("Grace", "--grace", "--workdir"),
        ("nonesuch", "nothing about 'nonesuch'", ":\n"),
    ],
)
def test_help_about_a_word(word, has, lacks, monkeypatch, capsys):
    told = help_of(monkeypatch, capsys, f"--help={word}")
    assert has in told and lacks not in told


def pages():
    return {name: page() for name, page in reference.PAGES.items()}


def test_the_reference_pages_are_what_the_code_declares():
    """`python -m retrieval.reference` writes them, here without plugins' fields."""
    for name, page in children.returned(pages).items():
        assert page == (REPOSITORY / "docs" / "reference" / name).read_text(encoding="utf-8"), name

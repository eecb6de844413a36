"""The documents and --help name every stage, config and format, and their examples are what the readers take."""

import ast
import json
import re
import shlex
import subprocess
import sys

import pytest
from absl import flags
from conftest import REPOSITORY
from support.command_flags import forget_flags

from configs import ict_bfs_wlp
from retrieval import cli, main
from retrieval.configs import published
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Counts
from retrieval.data.labelled.labelled_format import LABELLED, Settings
from retrieval.data.sets.qa import QUESTIONS
from retrieval.data.sets.set_format import SETS, Given
from retrieval.errors import UserError
from retrieval.pipeline import overrides
from retrieval.pipeline.stage import STAGES
from retrieval.stage_outputs import Run

DOCUMENTS = [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md")]


def test_every_page_is_in_the_contents():
    folder = REPOSITORY / "docs"
    contents = (folder / "contents.md").read_text(encoding="utf-8")
    kinds = ("guides", "reference", "tutorials", "papers")
    pages = [path.relative_to(folder).as_posix() for kind in kinds for path in (folder / kind).glob("*.md")]
    assert len(pages) > 18 and [page for page in pages if f"({page})" not in contents] == []


def test_the_readme_fits_on_two_screens():
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def templates():
    """The texts of the code, with '…' for each value that is put into them."""
    for path in (*(REPOSITORY / "retrieval").rglob("*.py"), *(REPOSITORY / "configs").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\d.,]*[sdg]", "…", node.value)


def test_the_messages_of_troubleshooting_are_those_of_the_code():
    page = " ".join((REPOSITORY / "docs" / "guides" / "troubleshooting.md").read_text(encoding="utf-8").split())
    messages = [message for message in re.findall(r"\*\*`([^`]+)`\.\*\*", page) if "…" in message]
    texts = re.sub("…+", "…", "\n".join(templates()))
    pieces = [piece.strip(" '()") for message in messages for piece in message.split("…")]
    foreign = ("RESOURCE_EXHAUSTED: Out of memory",)  # of XLA
    missing = {piece for piece in pieces if len(piece) > 12 and piece not in texts and piece not in foreign}
    assert len(messages) > 15 and not missing


def test_every_set_of_the_config_has_a_format():
    options = {name.removeprefix("sets.") for form in SETS.values() for name in form.options}
    assert set(SETS) == set(ict_bfs_wlp.get_config().sets) - options - {"distractors"}


@pytest.mark.parametrize("name", QUESTIONS)
def test_a_line_of_questions_is_recognised_and_read(name, tmp_path):
    path, passages = tmp_path / "file", tmp_path / "psgs.tsv"
    path.write_text(QUESTIONS[name].example.replace("⇥", "\t"))
    passages.write_text(SETS["qa"].example.replace("⇥", "\t") + "\n1\ta\tT\n")
    given = Given({"sets.qa_patterns": False}, tmp_path, tmp_path)
    (value,) = SETS["qa"].read(f"{passages},{path}", given)
    assert list(value.queries.values()) == ["q"] and [text.text for text in value.candidates] == ["a"]
    (found,) = value.answers.values()
    assert found.values and found.are_patterns == (name == "curated_trec")


@pytest.mark.parametrize("name", LABELLED)
def test_a_line_of_a_format_is_recognised_and_read(name, tmp_path):
    path, queries, collection = (tmp_path / file for file in ("file", "queries.tsv", "collection.tsv"))
    path.write_text(LABELLED[name].example.replace("⇥", "\t"))
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
        ((query, positives, negatives, answers),) = groups
    assert answers == (("a",) if name == "dpr" else ())
    assert query in ("q", "q?", "a question") and counts == Counts(1, 1, counts.left_out)
    assert (len(positives), len(negatives)) == (1, 0 if lone else 1)


def test_ids_are_not_trained_on_as_texts(tmp_path):
    """As MS MARCO v2 has them."""
    ids = ["2000", "msmarco_passage_01_552", "msmarco_passage_02_17"]
    path, queries, collection = (tmp_path / file for file in ("file", "queries.tsv", "collection.tsv"))
    path.write_text("\t".join(ids))
    queries.write_text(f"{ids[0]}\tq\n")
    collection.write_text(f"{ids[1]}\ta\n{ids[2]}\tb\n")
    settings = Settings("", str(queries), str(collection), 0)
    with pytest.raises(UserError, match=r"file, line 1: .* set config\.pairs\.format=id_triples or triples"):
        labelled_format.format_of(path, settings)
    named = settings._replace(format="id_triples")
    with labelled_format.grouped([path], named, tmp_path, 9) as (groups, _):
        assert [(query, *(text.text for side in sides for text in side)) for query, *sides in groups] == [
            ("q", "a", "b")
        ]
    (tmp_path / "dev.jsonl").write_text(LABELLED["jsonl"].example)  # such as that of config.sets.labelled
    assert labelled_format.format_of(tmp_path / "dev.jsonl", named).name == "jsonl"
    path.write_text("who sang\tReba sang\tBob")
    assert labelled_format.format_of(path, settings).name == "triples"


def commands():
    """The commands of the documents and the configs that stand on a base."""
    for path in (*DOCUMENTS, *(REPOSITORY / "configs").rglob("*.py")):
        text = re.sub(r"\\+\n", " ", path.read_text(encoding="utf-8"))
        yield from (command for command in re.findall(r"-m retrieval\.main (.*)", text) if "--config.base=" in command)


def test_no_command_sets_what_only_its_base_reads(tmp_path, monkeypatch):
    """Also where the base has run every stage."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(published, "_set_sizes", lambda *_: None)  # of a MODEL that is not there
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


def test_help_lists_all_of_it(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["retrieval.main", "--help"])
    cli.run(main.main, main.manual)
    told = capsys.readouterr().out
    for name in (*STAGES, *LABELLED, *cli.described(), "--workdir", "--query"):
        assert name in told
    for form in (*SETS.values(), *LABELLED.values(), *QUESTIONS.values()):
        assert form.what in told and form.setting in told


def test_the_first_help_is_a_screen(monkeypatch, capsys):
    """Its commands are ones that there are."""
    monkeypatch.setattr(published, "_set_sizes", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["/env/bin/retrieval"])
    main.program()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24 and max(map(len, lines)) <= 120
    commands = [shlex.split(line) for line in lines if line.startswith("  retrieval ")]
    assert {words[1] for words in commands if not words[1].startswith("-")} - {"compare"} <= set(STAGES)
    for words in commands:
        if words[1].startswith("--config="):
            forget_flags()
            cli.parse_flags(["main", *(word.replace("published:hf:NAME", "published") for word in words[1:])])


def test_help_of_a_word_is_what_has_it():
    told = main.manual("learning_rate")
    assert "Fields (--config.FIELD=VALUE):\n  config." in told and "config.train.learning_rate=" in told
    assert "config.search.k" not in told and "Stages" not in told
    assert main.manual("xyzzy") == "nothing about 'xyzzy'"


def test_names_that_a_field_may_have_are_in_its_table():
    page = (REPOSITORY / "docs" / "reference" / "fields.md").read_text(encoding="utf-8")
    assert "| `model.pooling` | `'cls'` | cls, mean |" in page
    assert "| `generate.answers` | `''` | '', rules, spacy |" in page


def test_the_reference_pages_are_what_the_code_declares():
    """`python -m retrieval.reference` writes them, here without plugins' fields."""
    program = (
        "import json; from retrieval import reference; "
        "print(json.dumps({name: page() for name, page in reference.PAGES.items()}))"
    )
    pages = json.loads(subprocess.check_output([sys.executable, "-c", program], cwd=REPOSITORY, text=True))
    for name, page in pages.items():
        assert page == (REPOSITORY / "docs" / "reference" / name).read_text(encoding="utf-8"), name

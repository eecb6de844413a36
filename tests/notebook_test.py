"""The notebook is executed as it is, on toy notes and at tiny sizes."""

import json
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support import toy_corpus
from support.command_flags import forget_flags
from support.tiny import CHEAP, as_flags

import retrieval
from retrieval import cli, main
from retrieval.api.finished_run import FinishedRun

NOTEBOOK = REPOSITORY / "docs" / "tutorials" / "search_your_notes.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]


def run_here(config, workdir, overrides):
    """`retrieval.run` in this process, with a model that is soon compiled."""
    forget_flags()
    fields = [f"--config.{name}={value}" for name, value in overrides.items()]
    tiny = as_flags(**CHEAP, **{"train.steps": 2, "loop.validate_every": 0, "train.epochs": 0})
    main.main(cli.parse_flags(["main", f"--config={config}", f"--workdir={workdir}", *fields, *tiny]))
    return FinishedRun(Path(workdir))


@pytest.fixture
def notes(tmp_path, monkeypatch):
    """A folder of Markdown files, where the notebook looks for them."""
    (tmp_path / "docs" / "tutorials").mkdir(parents=True)
    for number in range(40):
        lead, *others = [part.text for section in toy_corpus.article(number).sections for part in section.paragraphs]
        page = f"# {toy_corpus.title(number)}\n\n{lead}\n\n## Life\n\n{' '.join(others)}\n"
        (tmp_path / "docs" / f"{number}.md").write_text(page)
    monkeypatch.chdir(tmp_path / "docs" / "tutorials")
    monkeypatch.setattr(retrieval, "run", run_here, raising=False)
    return tmp_path


def test_the_notebook_runs_to_its_last_cell(notes, monkeypatch, capsys):
    typed = iter(["where does the red fox live", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
    names = {}
    for cell in CELLS:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), NOTEBOOK.name, "exec"), names)
    said = capsys.readouterr().out
    assert (
        "Red fox" in said
        and (notes / "runs" / "notes" / "index").is_dir()
        and len(names["index"]) > 40
        and next(typed, None) is None
    )

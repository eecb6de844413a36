"""Text of any kind, in reports and on a terminal: it reads as what it is, and does nothing."""

import logging
import re

import pytest

from retrieval import cli
from retrieval.common import terminal
from retrieval.evaluation import display
from retrieval.evaluation.run_report import Table, write_report


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Real ones."""


ESCAPES = "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b5A\u202eesrever"
NASTY = f"<script>alert(1)</script> | [link](javascript:x) ![i](y) `code` **b** _u_ \\| a\n# heading\r\n{ESCAPES}"


def test_elsewhere_progress_is_now_and_then_a_line_of_the_log(monkeypatch, caplog, capsys):
    with caplog.at_level(logging.INFO, logger="retrieval"):
        assert list(terminal.progress(range(3), desc="brief")) == [0, 1, 2]
        assert not caplog.messages
        monkeypatch.setattr(terminal, "_SECONDS", 0)
        assert list(terminal.progress(range(3), desc="train")) == [0, 1, 2]
    assert "\r" not in capsys.readouterr().err + caplog.text
    assert len(caplog.messages) >= 3 and caplog.messages[-1].startswith("train: 100% 3/3")


def test_text_of_any_kind_leaves_a_terminal_alone():
    for text in (terminal.printable(NASTY), terminal.one_line(NASTY)):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text)
        assert r"\x1b[31mred" in text and r"\u202eesrever" in text
    assert "\n" in terminal.printable(NASTY) and "\n" not in terminal.one_line(NASTY)
    assert terminal.printable("Zoë’s café – „Köln“, 東京\t→\n") == "Zoë’s café – „Köln“, 東京\t→\n"
    assert terminal.printable("\ud800") == r"\ud800"


def test_errors_and_the_log_leave_a_terminal_alone(capsys):
    with pytest.raises(SystemExit):
        cli._fail(f"a: line 1: the _id '{NASTY}'")
    terminal.set_up_logging()
    logging.getLogger("retrieval.x").warning("skipped %s", NASTY)
    said = capsys.readouterr().err
    assert said.count(r"\x1b[31mred") == 2 and "\x1b" not in said and "\x9b" not in said and "\u202e" not in said


def assert_harmless(text, cells):
    """GitHub's rules: what is escaped is text, and a table has as many cells as its header."""
    assert "\x1b" not in text and "<script" not in text and "\u202e" not in text and "\r" not in text
    unescaped = re.sub(r"\\[\\`*_\[\]|~$]", "", text)
    assert not re.search(r"[\[`]", unescaped.replace("![success", ""))
    for line in unescaped.splitlines():
        assert not line.startswith("|") or line.count("|") == cells + 1


def test_reports_show_text_as_it_reads(tmp_path):
    row = dict(system=NASTY, dataset=NASTY, split=NASTY, queries=1, seconds=1.0, step=None)
    rows = [row | dict(metric=f"Success@{k}", value=0.5) for k in (1, 10)]
    table = Table(NASTY, ["a", NASTY], [[NASTY, 1], ["b", NASTY]], display.inline(NASTY))
    costs, notes = {f"{NASTY}, {NASTY}": {NASTY: NASTY}}, {NASTY: [NASTY]}
    write_report(tmp_path, NASTY, rows, [table], costs=costs, notes=notes)
    text = (tmp_path / "report.md").read_text()
    parts = text.split("\n\n")
    for table, cells in zip((part for part in parts if part.startswith("|")), (3, 5, 2), strict=True):
        assert_harmless(table, cells)
    said = [part for part in parts if part.startswith("**")]
    headings = [line for line in text.splitlines() if line.startswith("#")]
    assert (len(said), len(headings)) == (2, 4)
    for part in said + headings:
        assert_harmless(part, 0)
    (plot,) = (tmp_path / "plots").iterdir()
    assert re.fullmatch(r"[\w.-]+", plot.name)

"""Formats of evaluation sets and of labelled examples that are registered from outside."""

import pytest
from conftest import REPOSITORY

from configs import ict_bfs_wlp
from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.config import fields
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import example
from retrieval.data.labelled.labelled_format import LABELLED, LabelledFormat, Settings
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.set_format import SETS, SetFormat, register
from retrieval.runs.pipeline.run import Run
from retrieval.stages import evaluate, sets


@pytest.fixture
def tables(monkeypatch, own_table):
    """The tables as they are; what a test adds is gone after it."""
    for table in (SETS, LABELLED):
        own_table(table)
    monkeypatch.setattr(fields, "DECLARED", dict(fields.declared()))


class Faq(SetFormat):
    """Lines of a question, a tab and its answer."""

    name, what, setting, example = "faq", "questions and answers", "--config.sets.faq=FILE", "q⇥a"

    def read(self, value, context):
        rows = [line.split("\t") for _, line in text_files.lines(value)]
        queries = {str(number): question for number, (question, _) in enumerate(rows)}
        candidates = [Candidate(str(number), "", text) for number, (_, text) in enumerate(rows)]
        yield RetrievalSet("faq", queries, candidates, {"test": {id: {id: 1} for id in queries}})

    def check_path(self, path, options):
        if "\t" not in path.read_text():
            raise UserError(f"{path}: no tab")


def check(config):
    sets.check_inputs(Run(config, REPOSITORY, REPOSITORY / "requirements.lock"))


def test_a_format_of_sets_is_one_class(tables, tmp_path):
    register(Faq)
    assert fields.declared()["sets.faq"].default == "" and "questions and answers" in fields.declared()["sets.faq"].help
    config = ict_bfs_wlp.get_config()
    config.sets.faq = str(tmp_path / "faq.tsv")
    with pytest.raises(UserError, match=r"faq\.tsv: no such file or folder, in config\.sets\.faq"):
        check(config)
    (tmp_path / "faq.tsv").write_text("why")
    with pytest.raises(UserError, match=r"faq\.tsv: no tab"):
        check(config)
    (tmp_path / "faq.tsv").write_text("why\tbecause\nwho\tme\n")
    check(config)
    run = Run(config, tmp_path, REPOSITORY / "requirements.lock")
    assert tmp_path / "faq.tsv" in sets.inputs(run)
    assert sets.write_sets(run)["faq"]["queries"] == 2 and (tmp_path / "sets/faq/qrels/test.tsv").is_file()


def test_a_set_without_judgements_cannot_be_divided(tables, tmp_path):
    register(type("Unjudged", (Faq,), {"is_judged": False}))
    config = ict_bfs_wlp.get_config()
    config.sets.faq, config.split.set = str(tmp_path / "faq.tsv"), "faq"
    (tmp_path / "faq.tsv").write_text("why\tbecause\n")
    config.evaluate.depth = 5
    with pytest.raises(UserError, match=r"config\.evaluate\.depth=5 is too few results for the metric Answer@100"):
        evaluate.check(config)
    with pytest.raises(UserError, match=r"config\.split\.set=faq: no passage .* is known to be right"):
        check(config)


@pytest.mark.parametrize(("first", "line"), [("", "q|a"), ("{", '{"q": "a"}')])
def test_a_named_format_of_labelled_examples_is_read(tables, tmp_path, first, line):
    class Bars(LabelledFormat):
        name, what, setting, example = "bars", "bars", "bars", line

        def read(self, path, reading):
            yield example("q", [Candidate("", "", "a")], [], str(path), reading.counts)

    Bars.first = first
    labelled_format.register(Bars)
    (tmp_path / "file").write_text(line)
    settings = Settings("bars", "", "", 0)
    with labelled_format.grouped([tmp_path / "file"], settings, tmp_path, 9) as (groups, counts):
        assert [group.query for group in groups] == ["q"] and counts.examples == 1
    (tmp_path / "array").write_text("[]")
    assert labelled_format.format_of(tmp_path / "array", settings).name == "dpr"

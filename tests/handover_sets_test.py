"""Evaluation sets that the package ir_datasets reads."""

import pytest
from support.packages import package

from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.set_format import SETS, Context

ir_datasets = package("ir_datasets")


def test_data_sets_of_ir_datasets_are_evaluation_sets_and_training_judgements(tmp_path):
    documents = [("d1", "the fox is here"), ("d2", "a dog is there"), ("d3", "sep"), ("d4", " ")]
    queries = [("q1", "the fox"), ("q2", "a dog"), ("q3", "nobody judged")]
    for name, rows in (("docs", documents), ("queries", queries)):
        (tmp_path / name).write_text("".join(f"{id}\t{text}\n" for id, text in rows))
    whole = ir_datasets.create_dataset(docs_tsv=str(tmp_path / "docs"), queries_tsv=str(tmp_path / "queries"))
    ir_datasets.registry.register("tiny", whole)
    for name, lines in (("train", "q1 0 d1 1\n"), ("test", "q2 0 d2 2\nq2 0 d1 0\nq1 0 d1 1\nq1 0 d4 1\n")):
        (tmp_path / name).write_text(lines)
        judged = ir_datasets.create_dataset(qrels_trec=str(tmp_path / name))
        ir_datasets.registry.register(f"tiny/{name}", ir_datasets.datasets.base.Dataset(whole, judged))
    ir, value, options = SETS["ir"], "ir:tiny/train,tiny/test", {"sets.unknown": "refuse"}
    ir.check(value, options, False)
    assert ir.names(value) == ["tiny"] and ir.inputs(value, options) == []
    (found,) = ir.read(value, Context(options, tmp_path, tmp_path))
    assert list(found.candidates) == [Candidate(id, "", text) for id, text in documents[:3]]
    assert found.queries == {"q1": "the fox", "q2": "a dog"}
    assert found.qrels == {"train": {"q1": {"d1": 1}}, "test": {"q2": {"d2": 2, "d1": 0}, "q1": {"d1": 1}}}
    assert list(found.left_out.values()) == [1, 1]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("ir:nowhere/at-all", "ir:nowhere/at-all: ir_datasets knows no such data set; https"),
        ("ir:beir/scifact", "ir:beir/scifact: no qrels in ir_datasets; name a part of it that has"),
    ],
)
def test_a_name_that_has_no_judgements_is_refused(value, message):
    with pytest.raises(UserError, match=message):
        SETS["ir"].check(value, {}, False)

"""Evaluation sets as Parquet: NanoBEIR's two forms, in a folder and on a hub, and what can be wrong with them."""

import io

import pyarrow as pa
import pytest
from pyarrow import parquet
from support import toy_hub

from retrieval.common.errors import UserError
from retrieval.common.runtime import hub
from retrieval.data.sets import relevance
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.parquet_sets import ParquetSets

CORPUS = {"_id": ["d1", "d2", "d3"], "text": ["first", "", " second"]}
QUERIES = {"_id": ["q1", "q2", "q3", "q4"], "text": ["a", "b", " ", "lone"]}
QRELS = {"query-id": ["q1", "q1", "q2", "q3"], "corpus-id": ["d1", "d2", "d3", "d1"]}
FORM = ParquetSets()


def data(columns):
    sink = io.BytesIO()
    parquet.write_table(pa.table(columns), sink)
    return sink.getvalue()


def written(folder, files):
    for name, columns in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(columns if isinstance(columns, bytes) else data(columns))
    return folder


def nano(name):
    """The three files of a split."""
    parts = {"corpus": CORPUS, "queries": QUERIES, "qrels": QRELS}
    return {f"{part}/{name}-00000-of-00001.parquet": columns for part, columns in parts.items()}


@pytest.fixture
def folder(tmp_path):
    return written(tmp_path / "Mine", nano("train"))


def read(*sources):
    value = ",".join(map(str, sources))
    FORM.check(value, {}, False)
    return list(FORM.read(value, None))


def test_what_is_empty_is_left_out_and_counted(folder):
    (found,) = read(folder)
    assert (found.name, found.queries) == ("Mine", {"q1": "a", "q2": "b"})
    assert list(found.candidates) == [Candidate("d1", "", "first"), Candidate("d3", "", " second")]
    assert found.qrels == {"test": {"q1": {"d1": 1}, "q2": {"d3": 1}}}
    assert found.left_out == {
        "empty documents, left out": 1,
        "empty queries, left out": 1,
        "judgements of what is empty, left out": 2,
    }


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("relevance", {"positive-corpus-ids": [["d1"], ["d3"]], "bm25-ranked-ids": [["d3"]] * 2}),
        ("qrels", {"corpus-id": ["d1", "d3"], "score": [True, True]}),
    ],
)
def test_judgements_as_lists_or_as_true_and_false(tmp_path, name, columns):
    files = {path: own for path, own in nano("train").items() if not path.startswith("qrels")}
    judged = {"query-id": ["q1", "q2"]} | columns
    (found,) = read(written(tmp_path / "Mine", files | {f"{name}/train.parquet": judged}))
    assert found.qrels == {"test": {"q1": {"d1": 1}, "q2": {"d3": 1}}}


def test_every_split_of_a_folder_is_a_set(tmp_path):
    folder = written(tmp_path / "NanoBEIR-en", nano("NanoNQ") | nano("NanoFEVER"))
    assert [found.name for found in read(folder)] == FORM.names(str(folder)) == ["NanoFEVER", "NanoNQ"]
    assert len(FORM.inputs(str(folder), {})) == 6
    assert FORM.names(str(written(tmp_path / "one", nano("NanoNQ")))) == ["NanoNQ"]


def test_grades_and_several_splits_of_judgements(tmp_path):
    graded = {**QRELS, "score": [2, 1, 0, 1], "corpus-id": ["d1", "d2", "d3", "d1"]}
    files = {
        "corpus/corpus.parquet": CORPUS | {"title": ["", "T", None]},
        "queries/queries.parquet": QUERIES,
        "default/test-00000-of-00001.parquet": graded,
        "default/dev-00000-of-00001.parquet": {"query-id": ["q2"], "corpus-id": [["d1", "d3"]], "score": [1.0]},
    }
    (found,) = read(written(tmp_path / "nfcorpus", files))
    assert found.name == "nfcorpus" and list(found.candidates)[1] == Candidate("d2", "T", "")
    assert found.qrels == {"dev": {"q2": {"d1": 1, "d3": 1}}, "test": {"q1": {"d1": 2, "d2": 1}, "q2": {"d3": 0}}}


def test_data_sets_come_from_the_hub_with_nothing_else(tmp_path, monkeypatch):
    files = {name: data(columns) for name, columns in nano("train").items()} | {"README.md": b"---", "a.py": b""}
    with toy_hub.served({"me/NanoNQ": files}, tmp_path / "cache", monkeypatch) as hub_:
        (found,) = read("hf:me/NanoNQ")
        assert found.name == "NanoNQ" and found.queries == {"q1": "a", "q2": "b"}
        assert not [path for _, path in hub_.asked if path.endswith((".py", ".md"))]
        with pytest.raises(UserError, match="hf:me/none: the hub has no such data set"):
            read("hf:me/none")
    hub.data_set.cache_clear()


CORPUS_FILE, QRELS_FILE = (f"{name}/train-00000-of-00001.parquet" for name in ("corpus", "qrels"))
MISTAKES = {  # what is said -> files that are otherwise; None where one is not there
    "Mine: no Parquet file in corpus; an evaluation set has": {CORPUS_FILE: None},
    "Mine: no Parquet file in qrels nor default nor data": {QRELS_FILE: None},
    "qrels.*: not one column 'query-id'; there are id": {QRELS_FILE: {"id": [1]}},
    "row 1: the candidate 'd9' is not in corpus": {QRELS_FILE: {"query-id": ["q1"], "corpus-id": ["d9"]}},
    "row 1: the query 'q9' is not among the set's": {QRELS_FILE: {"query-id": ["q9"], "corpus-id": ["d1"]}},
    "row 1: the query '' is not among the set's": {QRELS_FILE: {"query-id": [""], "corpus-id": ["d1"]}},
    "no candidate in corpus has a grade above 0": {QRELS_FILE: {"query-id": ["q3"], "corpus-id": ["d1"]}},
    "row 2: the id 'd1' is there twice": {CORPUS_FILE: {"_id": ["d1", "d1"], "text": ["a", "b"]}},
    "row 1: the field 'text' is missing or not a string": {CORPUS_FILE: {"_id": ["d1"], "text": [7]}},
    "the split 'b' of qrels has no corpus; there are train": {"queries/b.parquet": QUERIES, "qrels/b.parquet": QRELS},
}


@pytest.mark.parametrize("message", MISTAKES)
def test_a_mistake_is_one_sentence(tmp_path, message):
    files = {name: data for name, data in (nano("train") | MISTAKES[message]).items() if data}
    relevance.log_again.cache_clear()
    with pytest.raises(UserError, match=message) as refused:
        read(written(tmp_path / "Mine", files))
    assert "\n" not in str(refused.value)

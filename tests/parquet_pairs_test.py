"""Labelled pairs from Parquet: the columns of training sets, folders of data sets, what is left out and refused."""

import json
import tracemalloc

import pyarrow
import pytest
from conftest import REPOSITORY, write
from pyarrow import parquet
from support import tiny
from support.tiny import execute

from retrieval.data.labelled import jsonl_pairs, labelled_format, parquet_pairs, record_fields
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.parsing import text_files
from retrieval.pipeline import preflight
from retrieval.pipeline.run import Run

NONE = Settings("", "", "", 0)
ROWS = [{"anchor": "q", "positive": "a", "negative": "b"}, {"anchor": "r", "positive": "c", "negative": "d"}]


def texts(*values):
    return tuple(Candidate("", "", value) for value in values)


def table(path, columns):
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(columns) if isinstance(columns, list) else columns, path)
    return path


def read(path, columns, fields=""):
    counts = Counts()
    return list(parquet_pairs.read(table(path, columns), counts, record_fields.named(fields))), counts


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"anchor": "q", "positive": "a", "negative": "b"}, Example("q", texts("a"), texts("b"))),
        ({"query": "q", "answer": "a"}, Example("q", texts("a"))),
        ({"question": "q", "passage": "a"}, Example("q", texts("a"))),
        ({"query": "q", "document": "a", "label": 1}, Example("q", texts("a"))),
        ({"query": "q", "positive": "a", "document": "not read"}, Example("q", texts("a"))),
        (
            {"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c"},
            Example("q", texts("a"), texts("b", "c")),
        ),
        ({"query": "q", "positive": ["a", "b"], "negatives": ["c"]}, Example("q", texts("a", "b"), texts("c"))),
        (
            {"query": "q", "positive_passages": [{"docid": "7", "title": "T", "text": "a"}], "negative_passages": []},
            Example("q", (Candidate("7", "T", "a"),)),
        ),
        (
            {"question": "q", "answers": ["x"], "ctxs": [{"text": "x y", "hasanswer": True}, {"text": "b"}]},
            Example("q", texts("x y"), texts("b"), ("x",)),
        ),
    ],
)
def test_a_row_is_what_the_same_line_of_json_is(tmp_path, row, example):
    found, counts = read(tmp_path / "a.parquet", [row])
    line = write(tmp_path / "a.jsonl", json.dumps(row))
    in_json = Counts()
    assert found == [example] == list(jsonl_pairs.read(line, in_json))
    assert set(counts.left_out) == set(in_json.left_out)


def test_what_is_left_out_is_counted_with_its_row(tmp_path):
    path = tmp_path / "a.parquet"
    rows = [
        {"query": "q", "positive": "a", "negative": None, "score": 0.5, "label": 1},
        {"query": "r", "positive": "a", "negative": " ", "score": 0.5, "label": 0},
        {"query": "s", "positive": "a", "negative": None, "score": 0.5, "label": 0},
        {"query": "t", "positive": "", "negative": None, "score": 0.5, "label": 1},
    ]
    found, counts = read(path, rows)
    assert [example.query for example in found] == ["q", "r", "s"]  # a label beside a negative may be anything
    assert found[2] == Example("s", (), texts("a"))
    assert counts.left_out == {
        "values of the field 'score', which is not read": 3,
        "values of the field 'label', which is not read": 1,
        "empty texts": 2,
        "examples without a positive": 1,
    }
    assert counts.first["examples without a positive"] == f"{path}, row 4"


def test_fields_that_are_called_otherwise(tmp_path):
    rows = [{"query": "no", "title": "q", "body": "a", "negative": "no", "hard": "b", "answer": "no"}]
    fields = "query=title,positive=body,negative_2=hard"
    assert read(tmp_path / "a.parquet", rows, fields)[0] == [Example("q", texts("a"), texts("b"))]
    lines = write(tmp_path / "a.jsonl", json.dumps(rows[0]))
    (example,) = labelled_format.sample(lines, NONE._replace(fields=fields))
    assert example == Example("q", texts("a"), texts("b"))
    swapped = [{"query": "a", "positive": "q"}]
    assert read(tmp_path / "a.parquet", swapped, "query=positive,positive=query")[0] == [Example("q", texts("a"))]


@pytest.mark.parametrize(
    "fields", ["title", "query=", "title=query", "query=a,query=b", "positives=a", "query=a;positive=b,x"]
)
def test_fields_that_name_nothing(tmp_path, fields):
    with pytest.raises(UserError, match=r"config\.pairs\.fields=.* is no query=FIELD, positive=FIELD"):
        labelled_format.check(table(tmp_path / "a.parquet", ROWS), NONE._replace(fields=fields))


@pytest.mark.parametrize(
    ("columns", "fields", "message"),
    [
        ({"title": ["q"], "body": ["a"]}, "", r"a\.parquet: one of query, anchor, question is needed, .* title, body;"),
        ({"query": ["q"], "body": ["a"]}, "", r"a\.parquet: one of positive, .* there are query, body;"),
        ({"query": ["q"], "pos": ["a"], "positive": ["a"]}, "", r"there are both 'positive' and 'pos'"),
        ({"query": ["q"], "answer": ["a"], "passage": ["a"]}, "", r"there are both 'answer' and 'passage'"),
        ({"query": ["q"], "pos": ["a"]}, "negative=bad", r"no field 'bad', which config.* there are query, pos"),
        ({"query": ["q", None], "pos": ["a", "b"]}, "", r"row 2: the field 'query' is missing or not a string"),
        ({"query": ["q", " "], "pos": ["a", "b"]}, "", r"row 2: the query is empty"),
        ({"query": ["q"], "pos": [3]}, "", r"row 1, pos 1: the field 'pos' is missing or not a string"),
        ({"query": ["q"], "pos": ["a"], "neg": [["b", None]]}, "", r"row 1, neg 2: the field 'neg' is missing or not"),
        ({"query": ["q"], "pos": [b"\xff"]}, "", r"a\.parquet: a text is not UTF-8"),
        ({"query": ["q"], "pos": ["word " * 1000]}, "", r"row 1: longer than 64 MiB"),
    ],
)
def test_broken_columns_and_rows(tmp_path, monkeypatch, columns, fields, message):
    monkeypatch.setattr(text_files, "MOST_BYTES", 2000)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "a.parquet", pyarrow.table(columns), fields)


def test_two_columns_of_one_name_and_half_a_file(tmp_path):
    twice = pyarrow.table([["q"], ["a"], ["b"]], names=["query", "positive", "positive"])
    with pytest.raises(UserError, match=r"a\.parquet: two columns are called 'positive'"):
        read(tmp_path / "a.parquet", twice)
    path = table(tmp_path / "b.parquet", ROWS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match=r"b\.parquet: no whole Parquet file"):
        labelled_format.check(path, NONE)


def test_parquet_is_known_by_its_beginning_beside_other_formats(tmp_path):
    paths = [table(tmp_path / "a", ROWS), write(tmp_path / "b.tsv", "q\te\tf\n")]
    found = list(labelled_format.in_order(paths, NONE._replace(format="triples"), tmp_path))
    assert [example.positives for example in found] == [texts("a"), texts("c"), texts("e")]


def test_a_folder_of_a_data_set_is_its_train_split(tmp_path):
    for name in ("train-00001-of-00002", "train-00000-of-00002", "test-00000-of-00001", "validation-00000-of-00001"):
        table(tmp_path / "set" / "data" / f"{name}.parquet", ROWS)
    table(tmp_path / "set" / ".cache" / "train-00000-of-00001.parquet", ROWS)
    write(tmp_path / "set" / "README.md", "a card")
    other, lone = write(tmp_path / "x.jsonl", "{}"), table(tmp_path / "lone" / "rows.parquet", ROWS)
    found = labelled_format.files(f"{other},{tmp_path / 'set'},{tmp_path / 'lone'}")
    trained = [tmp_path / "set" / "data" / f"train-0000{number}-of-00002.parquet" for number in (0, 1)]
    assert found == [other, *trained, lone]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"], [0, 1]),
        (["nq_train.parquet", "nq_dev.parquet", "NQ-Test2.parquet"], [0]),
        (["a.parquet", "b-trains.parquet", "contest.parquet"], [0, 1, 2]),
        (["train.parquet", "extra.parquet"], [0]),
    ],
)
def test_names_tell_the_split(tmp_path, names, expected):
    paths = [table(tmp_path / "test" / name, ROWS) for name in names]
    assert labelled_format.files(str(tmp_path / "test")) == [paths[number] for number in expected]


def test_folders_without_one_train_split(tmp_path):
    with pytest.raises(UserError, match=r"a folder without a train split, .* name files of labelled examples"):
        labelled_format.files(str(tmp_path))
    table(tmp_path / "data" / "test-00000-of-00001.parquet", ROWS)
    with pytest.raises(UserError, match=r"name a file, of data/test-00000-of-00001\.parquet"):
        labelled_format.files(str(tmp_path))
    for name in ("pair", "triplet"):
        table(tmp_path / name / "train-00000-of-00001.parquet", ROWS)
    with pytest.raises(UserError, match=r"several data sets, .* of .*pair, .*triplet"):
        labelled_format.files(str(tmp_path))


def test_rows_are_unpacked_a_few_at_a_time(tmp_path):
    """40 MB of texts beside a column that is not read."""
    row = {"query": "q", "positive": "a " * 2000, "other": "b " * 8000}
    path = table(tmp_path / "a.parquet", [row] * 2000)
    tracemalloc.start()
    assert sum(1 for _ in parquet_pairs.read(path, Counts())) == 2000
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def prepared(folder, name, files, tested, **changes):
    """A run whose examples and evaluation set are prepared, checked before."""
    stages = ("sets", "pairs")
    named = {"vocab": str(folder / "vocab.txt"), "pairs.files": str(files), "sets.labelled": str(tested)}
    config = tiny.make_config("dpr", **tiny.CHEAP | named | {"stages": stages, "split.shards": 2} | changes)
    run = Run(config, folder / name, REPOSITORY / "requirements.lock")
    preflight.check(run, stages)
    execute(run)
    return run


def test_a_run_reads_a_folder_of_parquet_as_it_reads_lines(tmp_path):
    words = "fox dog owl hen cow pig rat elk".split()
    WordPiece([*SPECIAL_TOKENS, *words, "the", "where", "is"]).save(tmp_path / "vocab.txt")
    rows = [
        {"title": f"where is the {word}", "body": f"the {word}", "other": f"the {words[number - 1]}"}
        for number, word in enumerate(words)
    ]
    trained, asked = rows[:6], rows[6:]
    lines = write(tmp_path / "train.jsonl", "\n".join(map(json.dumps, trained)))
    for number in (0, 1):
        table(tmp_path / "set" / f"train-0000{number}-of-00002.parquet", trained[3 * number :][:3])
    tested = table(tmp_path / "set" / "test-00000-of-00001.parquet", asked)
    fields = {"pairs.fields": "query=title,positive=body,negative=other"}
    runs = [prepared(tmp_path, f"of-{files.name}", files, tested, **fields) for files in (lines, tmp_path / "set")]
    first, second = ({path.name: path.read_bytes() for path in run.pairs.iterdir() if path.is_file()} for run in runs)
    assert first == second and sum(name.endswith(".tfrecord") for name in first) == 2
    value = beir.read_folder(runs[1].sets / "test-00000-of-00001")
    assert sorted(value.queries.values()) == sorted(row["title"] for row in asked)
    with pytest.raises(UserError, match=r"test-00000.*: no field 'text', which .* there are title, body"):
        prepared(tmp_path, "wrong", tmp_path / "set", tested, **{"pairs.fields": "query=title,positive=text"})

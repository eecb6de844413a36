"""Records of labelled examples by the names of their fields: texts, scores, classes, lists, ids; JSON, Parquet, CSV."""

import csv
import json
import tracemalloc

import pyarrow
import pytest
from conftest import write
from pyarrow import parquet

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.labelled import grouping, labelled_format
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import Reading, Settings
from retrieval.data.sets.beir import Candidate

NONE = Settings()


def texts(*values):
    return tuple(Candidate("", "", value) for value in values)


def scored(query, positives, negatives, scores):
    return Example(query, texts(*positives), texts(*negatives), scores=tuple(scores))


def lines(path, rows):
    return write(path, "\n".join(map(json.dumps, rows)) + "\n")


def as_parquet(path, rows, classes=None):
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pyarrow.Table.from_pylist(rows) if isinstance(rows, list) else rows
    if classes:
        features = {name: {"names": names, "_type": "ClassLabel"} for name, names in classes.items()}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    parquet.write_table(table, path)
    return path


def as_table(path, rows):
    options = {"quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",", **options)
        writer.writeheader()
        writer.writerows(rows)
    return path


def read(path, settings=NONE):
    form = labelled_format.format_of(path, settings)
    form.check(path, settings)
    counts = Counts()
    return list(form.read(path, Reading(settings, path.parent, 100, counts))), counts


FLAT = [
    ({"anchor": "q", "positive": "a", "negative": "b"}, Example("q", texts("a"), texts("b"))),
    ({"query": "q", "answer": "a"}, Example("q", texts("a"))),
    ({"question": "q", "passage": "a"}, Example("q", texts("a"))),
    ({"query": "q", "document": "a", "label": 1}, Example("q", texts("a"))),
    ({"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c"}, Example("q", texts("a"), texts("b", "c"))),
    ({"anchor": "q", "positive": "a", "negative": "b", "score": 1.5}, scored("q", "a", "b", (0.0, -1.5))),
    ({"sentence1": "q", "sentence2": "a", "score": 0.25}, scored("q", "a", "", (0.25,))),
    ({"sentence1": "q", "sentence2": "a", "label": 1}, Example("q", texts("a"))),
    ({"sentence1": "q", "sentence2": "a", "label": 0}, Example("q", (), texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": 0}, Example("q", texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": 2}, Example("q", (), texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": "contradiction"}, Example("q", (), texts("a"))),
    ({"sentence1": "q", "sentence2": "a"}, Example("q", texts("a"))),
    ({"query": "q", "document": "a", "label": False}, Example("q", (), texts("a"))),
    ({"query": "q", "document": "a", "label": 0.0}, Example("q", (), texts("a"))),
    ({"query": "q", "answer": "a", "label": "not relevant"}, Example("q", (), texts("a"))),
]


@pytest.mark.parametrize(("row", "example"), FLAT)
def test_a_table_of_text_is_what_json_and_parquet_are(tmp_path, row, example):
    paths = [
        lines(tmp_path / "a.jsonl.gz", [row]),
        as_parquet(tmp_path / "a.parquet", [row]),
        as_table(tmp_path / "a.csv", [row]),
        as_table(tmp_path / "a.tsv", [row]),
    ]
    assert [read(path)[0] for path in paths] == [[example]] * 4
    assert len({labelled_format.shape(path, NONE) for path in paths}) == 1


LISTED = Example("q", texts("a", "b"), texts("c"))
MARGINS = scored("q", "a", "bc", (0.0, -1.0, -2.0))
JUDGED = Example("q", texts("b", "c"), texts("a"))


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"query": "q", "positives": ["a", "b"], "negatives": ["c"]}, LISTED),
        ({"query": "q", "pos": ["a", "b"], "neg": ["c"], "prompt": "not read"}, LISTED),
        ({"anchor": "q", "positive": ["a", "b"], "hard_negatives": ["c"]}, LISTED),
        (
            {"query": "q", "positive_passages": [{"docid": 7, "title": "T", "text": "a"}], "negative_passages": []},
            Example("q", (Candidate("7", "T", "a"),)),
        ),
        ({"query": "q", "positive": "a", "document": "not read"}, Example("q", texts("a"))),
        ({"query": "q", "positive": "a", "negatives": ["", " ", "d"]}, Example("q", texts("a"), texts("d"))),
        ({"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c", "scores": [1, 2]}, MARGINS),
        ({"query": "q", "positive": "a", "negatives": ["b", "c"], "score": [1, 2]}, MARGINS),
        (
            {"query": "q", "positive": "a", "negatives": ["b", "c"], "scores": "[9.5, 8, -1e-3]"},
            scored("q", "a", "bc", (9.5, 8.0, -0.001)),
        ),
        (
            {"query": "q", "pos": ["a", "b"], "neg": ["c"], "pos_scores": [3, 2], "neg_scores": [1]},
            scored("q", "ab", "c", (3.0, 2.0, 1.0)),
        ),
        (  # an empty text takes its score with it
            {"query": "q", "pos": ["a", " "], "neg": ["c"], "pos_scores": [3, 2], "neg_scores": [1]},
            scored("q", "a", "c", (3.0, 1.0)),
        ),
        ({"query": "q", "docs": ["b", "a", "c"], "scores": [1, 5, 2]}, scored("q", "a", "bc", (5.0, 1.0, 2.0))),
        ({"query": "q", "docs": ["a", "b", "c"], "labels": [0, 1, 2]}, JUDGED),
        ({"query": "q", "docs": ["a", "b", "c"], "labels": [False, True, True]}, JUDGED),
        ({"query": "q", "docs": ["a", "b", "c"], "labels": "[false, true, true]"}, JUDGED),
        ({"query": "q", "documents": ["a", "b"], "labels": [0, 0]}, Example("q", (), texts("a", "b"))),
    ],
)
def test_lists_and_scores(tmp_path, row, example):
    in_json = write(tmp_path / "a.jsonl", b"\xef\xbb\xbf" + json.dumps(row).encode() + b"\r\n\r\n")
    has_empty = any(value == " " for values in row.values() if isinstance(values, list) for value in values)
    for path in (in_json, as_parquet(tmp_path / "a.parquet", [row])):
        examples, counts = read(path)
        assert examples == [example]
        assert labelled_format.shape(path, NONE).has_scores == bool(example.scores)
        assert set(counts.left_out) == ({"empty texts"} if has_empty else set())


def test_what_is_left_out_is_counted_with_its_row(tmp_path):
    rows = [
        {"query": "q", "positive": "a", "negative": None, "score": 0.5, "label": 1},
        {"query": "r", "positive": "a", "negative": " ", "score": 0.5, "label": 0},
        {"query": "s", "positive": "a", "negative": None, "score": 0.5, "label": 0},
        {"query": "t", "positive": "", "negative": None, "score": 0.5, "label": 1},
    ]
    examples, counts = read(path := as_parquet(tmp_path / "a.parquet", rows))
    assert [example.query for example in examples] == ["q", "r", "s"]  # a label beside a negative may be anything
    assert examples[2] == Example("s", (), texts("a"))
    assert counts.left_out == {"empty texts": 2, "examples without a positive": 1}
    assert counts.first["examples without a positive"] == f"{path}, row 4"


@pytest.mark.parametrize(
    ("row", "fields", "example"),
    [
        (
            {"title": "q", "body": "a", "other": "b", "margin": 2.0, "score": 7.0},
            "query=title,positive=body,negative=other,score=margin",
            scored("q", "a", "b", (0.0, -2.0)),
        ),
        ({"query": "q", "answer": "a", "score": 0.5}, "", Example("q", texts("a"))),
        ({"query": "q", "answer": "a", "score": 0.5}, "score=score", scored("q", "a", "", (0.5,))),
        (FLAT[6][0], "query=sentence1,positive=sentence2", Example("q", texts("a"))),
        (
            {"query": "no", "title": "q", "body": "a", "negative": "no", "hard": "b", "answer": "no"},
            "query=title,positive=body,negative_2=hard",
            Example("q", texts("a"), texts("b")),
        ),
        ({"query": "a", "positive": "q"}, "query=positive,positive=query", Example("q", texts("a"))),
    ],
)
def test_fields_that_are_called_otherwise(tmp_path, row, fields, example):
    for path in (
        lines(tmp_path / "a.jsonl", [row]),
        as_parquet(tmp_path / "a.parquet", [row]),
        as_table(tmp_path / "a.csv", [row]),
    ):
        assert read(path, Settings(fields=fields))[0] == [example]
        assert list(labelled_format.sample(path, Settings(fields=fields))) == [example]


@pytest.mark.parametrize(
    "fields", ["title", "query=", "title=query", "query=a,query=b", "positives=a", "query=a;positive=b,x"]
)
def test_fields_that_name_nothing(tmp_path, fields):
    with pytest.raises(UserError, match=r"config\.pairs\.fields=.* is no NAME=FIELD, .* names are negative, .* query,"):
        labelled_format.check(as_parquet(tmp_path / "a.parquet", [FLAT[0][0]]), Settings(fields=fields))


def test_numbers_of_classes_have_the_names_of_the_data_set(tmp_path):
    rows = [{"sentence1": "q", "sentence2": word, "label": label} for label, word in enumerate("ab")]
    names = {"label": ["entailment", "not_entailment"]}  # in which 0 is right, unlike without names
    examples, counts = read(as_parquet(tmp_path / "a.parquet", rows, names))
    assert examples == [Example("q", texts("a"))]
    assert counts.left_out == {"pairs of a class that says nothing, such as neutral": 1}
    with pytest.raises(UserError, match=r"row 1: the label is 7, of 2 classes, entailment, not_entailment"):
        read(as_parquet(tmp_path / "b.parquet", [rows[0] | {"label": 7}], names))


def test_contradictions_are_negatives_of_their_premise(tmp_path):
    rows = [("p", "yes", 0), ("p", "no", 2), ("p", "maybe", 1), ("r", "never", 2), ("p", "too", 0)]
    path = lines(tmp_path / "a.jsonl", [dict(zip(("premise", "hypothesis", "label"), row)) for row in rows])
    with labelled_format.grouped([path], NONE, tmp_path, 9) as (groups, counts):
        assert list(groups) == [Example("p", texts("yes", "too"), texts("no"))]
        assert counts.left_out["queries without a positive"] == 1 and counts.queries == 1


def test_two_texts_of_a_class_are_a_pair_and_all_of_it_are_right(tmp_path):
    words = "a1 b1 a2 a3 b2 a1 c1 a4".split()
    path = lines(tmp_path / "a.jsonl", [{"text": word, "label": word[0]} for word in words])
    examples, counts = read(path)
    pairs = {(example.query, example.positives[0].text) for example in examples}
    assert pairs == {("a2", "a1"), ("a3", "a2"), ("a4", "a3"), ("a1", "a4"), ("b2", "b1"), ("b1", "b2")}
    assert counts.left_out == {
        "texts without a class, empty, or there again": 1,
        "texts that are alone in their class": 1,
    }
    with labelled_format.grouped([path], NONE, tmp_path, 9) as (groups, _):
        value = grouping.evaluation_set("test", groups)
    of_id = {candidate.id: candidate.text for candidate in value.candidates}
    right = {query: {of_id[id] for id in value.qrels["test"][key]} for key, query in value.queries.items()}
    assert right["a1"] == {"a2", "a3", "a4"} and right["b1"] == {"b2"}
    assert all(of_id[key] == query for key, query in value.queries.items())  # so that it is no result of itself


@pytest.fixture
def collections(tmp_path):
    """Queries and passages as TSV, JSON lines and Parquet, with the names that projects use."""
    queries, passages = {"1": "q", "2": "r"}, {"7": "a", "8": "b", "9": "c"}
    tsv = [
        write(tmp_path / f"{len(of)}.tsv", "".join(f"{id}\t{text}\n" for id, text in of.items()))
        for of in (queries, passages)
    ]
    json_lines = [
        lines(tmp_path / f"{name}.jsonl", [{name: id, "text": text} for id, text in of.items()])
        for name, of in (("_id", queries), ("docid", passages))
    ]
    rows = [{"passage_id": int(id), "passage": text} for id, text in passages.items()]
    for number, part in enumerate((rows[:2], rows[2:])):
        as_parquet(tmp_path / "corpus" / f"train-{number}-of-2.parquet", part)
    asked = as_parquet(tmp_path / "q.parquet", [{"query_id": int(id), "query": text} for id, text in queries.items()])
    of_all = (tsv, json_lines, (asked, tmp_path / "corpus"))
    return [Settings(queries=str(of), collection=str(all)) for of, all in of_all]


A, B, C = (Candidate(id, "", text) for id, text in (("7", "a"), ("8", "b"), ("9", "c")))
OF_TEVATRON = "query=query_text,positive_id=positive_document_ids,negative_id=negative_document_ids"
OF_SYSTEMS = "query_id=qid,positive_id=pos,negative_id=neg"  # msmarco-hard-negatives.jsonl of sentence-transformers


@pytest.mark.parametrize(
    ("row", "fields", "example"),
    [
        ({"query_id": 1, "positive_id": 7, "negative_id": 8}, "", Example("q", (A,), (B,))),
        ({"qid": 1, "positive_id": 7, "negative_id": 8, "score": 2.5}, "", Example("q", (A,), (B,), (), (0.0, -2.5))),
        ({"query": "x", "positive_ids": ["7"]}, "", Example("x", (A,))),
        (
            {"query_text": "x", "positive_document_ids": ["7"], "negative_document_ids": ["8", "9"]},
            OF_TEVATRON,
            Example("x", (A,), (B, C)),
        ),
        (
            {"query_id": 1, "document_ids": "['7', '8', '9']", "scores": "[0.5, 0.25, 0.75]"},
            "",
            Example("q", (C,), (A, B), (), (0.75, 0.5, 0.25)),
        ),
        ({"query_id": 1, "doc_ids": [7, 8], "labels": [1, 0]}, "", Example("q", (A,), (B,))),
        (
            {"qid": 1, "pos": [7], "neg": {"bm25": [8, 9], "tas-b": [9], "none": None}},
            OF_SYSTEMS,
            Example("q", (A,), (B, C)),
        ),
    ],
)
def test_ids_stand_for_texts_of_other_files(tmp_path, collections, row, fields, example):
    paths = [lines(tmp_path / "a.jsonl", [row]), as_parquet(tmp_path / "a.parquet", [row])]
    for settings in collections:
        assert [read(path, settings._replace(fields=fields))[0] for path in paths] == [[example]] * 2
    (sampled,) = labelled_format.sample(paths[0], collections[0]._replace(fields=fields))
    assert {text.id for text in sampled.positives} == {text.id for text in example.positives}
    missing = "config.pairs.collection" if example.query == "x" else "config.pairs.(collection|queries)"
    with pytest.raises(UserError, match=f"ids, whose texts are elsewhere: set {missing}"):
        read(paths[0], Settings(fields=fields))


@pytest.mark.parametrize(
    ("change", "passages", "message"),
    [
        ({"query_id": 3}, None, r"line 1: the query '3' is not among those of config"),
        ({"negative_id": 6}, None, r"line 1: the document '6' is not in the collection"),
        ({}, [{"_id": "7", "text": "a"}, {"_id": "7", "text": "b"}], r"b\.jsonl.*'7' is there twice, with something"),
        ({}, [{"name": "7", "text": "a"}], r"line 1: one of query_id, .* is needed, and there are name, text"),
    ],
)
def test_ids_that_nothing_is_known_of(tmp_path, collections, change, passages, message):
    path = lines(tmp_path / "a.jsonl", [{"query_id": 1, "positive_id": 7, "negative_id": 8} | change])
    other = {"collection": str(lines(tmp_path / "b.jsonl", passages))} if passages else {}
    for settings in collections:
        with pytest.raises(UserError, match=message):
            read(path, settings._replace(**other))


TRIPLE = {"query": "q", "positive": "a", "negative": "b"}
LIST = {"query": "q", "documents": ["a", "b"], "scores": [1, 2]}
NAMES = "name the fields, such as config.pairs.fields=query="


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([TRIPLE, {"positive": "a"}], rf"line 2: one of query, anchor, .* there are positive: {NAMES}"),
        ([TRIPLE, {"query": "q"}], "line 2: one of positive, positives, pos, positive_passages, answer, .* is needed"),
        ([{"question": "q", "ctxs": []}], rf"line 1: one of positive, .* there are question, ctxs: {NAMES}"),
        ([{"query": "q", "anchor": "r", "pos": "a"}], "line 1: one of query, .* there are both 'query' and 'anchor'"),
        ([{"query": "q", "pos": "a", "positive": "a"}], "there are both 'positive' and 'pos'"),
        ([{"query": "q", "answer": "a", "passage": "a"}], "there are both 'answer' and 'passage'"),
        ([TRIPLE | {"positive": 3}], "line 1, positive 1: the field 'positive' is missing or not a string"),
        ([TRIPLE | {"negative": ["b", None]}], "line 1, negative 2: the field 'negative' is missing or not"),
        ([TRIPLE | {"query": None}], "line 1: the field 'query' is missing or not a string"),
        ([TRIPLE | {"query": " "}], "line 1: the query is empty"),
        ([TRIPLE | {"score": "high"}], r"line 1: the score is 'high'; it must be a finite number"),
        ([LIST | {"scores": "[1, nan]"}], r"line 1: the scores 2 is 'nan'; it must be a finite number"),
        ([LIST | {"scores": [1, 2, 3]}], r"line 1: 3 numbers in scores, of 2 positives and 0 negatives: give each"),
        ([LIST | {"scores": None}], r"line 1: the scores is 'None'"),
        ([{"query": "q", "docs": ["a"], "labels": [1, 0]}], r"line 1: 2 values in labels, of 1 documents"),
        ([{"query": "q", "docs": ["a"]}], r"line 1: docs without scores or labels, .* there are query, docs"),
        (
            [{"query": "q", "pos": ["a"], "neg": ["b"], "pos_scores": [1, 2], "neg_scores": []}],
            r"line 1: 2 and 0 numbers in pos_scores and neg_scores, of 1 positives and 1 negatives",
        ),
        ([{"premise": "p", "hypothesis": "h", "label": 3}], r"line 1: the label is '3'; .* 0 \(entailment\), 1 \(neu"),
        ([{"sentence1": "p", "sentence2": "h", "label": 3.8}], r"the label is '3.8'; .* config.pairs.fields=score="),
        ([{"text": "p", "label": None}], r"line 1: the field 'label' is missing"),
        ([TRIPLE, TRIPLE | {"score": 1}], r"line 2: its fields are .*score, and those of the first query, p"),
        ([TRIPLE, {"text": "a", "label": 1}], r"line 2: its fields are text, label, and those of the first"),
        ([TRIPLE | {"negative_2": None, "scores": [3, 2]}], "line 1: a negative is null, so it is not clear whose"),
        ([], r"a\.jsonl: the file is empty"),
    ],
)
def test_records_that_are_wrong(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        read(lines(tmp_path / "a.jsonl", rows))


TWICE = pyarrow.table([["q"], ["a"], ["b"]], names=["query", "positive", "positive"])
EMPTY = {"query": pyarrow.array([], "string"), "pos": pyarrow.array([], "string")}


@pytest.mark.parametrize(
    ("content", "fields", "message"),
    [
        ({"title": ["q"], "body": ["a"]}, "", r"a\.parquet: one of query, anchor, question is needed, .* title, body:"),
        ({"query": ["q"], "pos": ["a"]}, "negative=bad", r"no field 'bad', which config.* there are query, pos"),
        ({"query": ["q", None], "pos": ["a", "b"]}, "", r"row 2: the field 'query' is missing or not a string"),
        ({"query": ["q"], "pos": [b"\xff"]}, "", r"a\.parquet: a text is not UTF-8"),
        ({"query": ["q"], "pos": ["word " * 1000]}, "", r"row 1: longer than 64 MiB"),
        ({"query": ["q"], "pos": ["a"], "neg": ["b"], "score": [float("nan")]}, "", r"row 1: the score is 'nan'"),
        (EMPTY, "", r"parquet: no record in it"),
        ("PAR1 and no end", "", r"a\.csv: no whole Parquet file"),
        (TWICE, "", r"a\.parquet: two columns are called 'positive'"),
        ("query,positive\nq\n", "", r"line 2: 1 fields, and the first line names 2: query, positive"),
        ('query,positive\nq,"a\n', "", r"line \d: .*; mend the row: close its quotation marks"),
        ("query,positive,positive\nq,a,b\n", "", r"line 1: two columns are called 'positive'"),
        ("query,positive\n", "", r"a\.csv: no record in it"),
        ("title,body\nq,a\n", "", r"a\.csv, line 1: no format that is known"),
    ],
)
def test_broken_tables(tmp_path, monkeypatch, content, fields, message):
    monkeypatch.setattr(text_files, "MOST_BYTES", 2000)
    is_text = isinstance(content, str)
    path = write(tmp_path / "a.csv", content) if is_text else as_parquet(tmp_path / "a.parquet", pyarrow.table(content))
    with pytest.raises(UserError, match=message):
        read(path, Settings(fields=fields))


def test_quotation_marks_go_over_lines_between_commas_alone(tmp_path):
    path = write(tmp_path / "a.csv", 'query,answer\n"one, two\nthree",a\nr,"b ""c"""\n')
    assert read(path)[0] == [Example("one, two\nthree", texts("a")), Example("r", texts('b "c"'))]
    path = write(tmp_path / "a.tsv", 'query\tanswer\n"q\ta"\n')
    assert read(path)[0] == [Example('"q', texts('a"'))]


def test_parquet_is_known_by_its_beginning_beside_other_formats(tmp_path):
    paths = [as_parquet(tmp_path / "a", [TRIPLE]), write(tmp_path / "b.tsv", "q\te\tf\n")]
    examples = list(labelled_format.in_order(paths, Settings("triples"), tmp_path))
    assert [example.positives for example in examples] == [texts("a"), texts("e")]


def test_rows_are_unpacked_a_few_at_a_time(tmp_path):
    """40 MB of texts beside a column that is not read."""
    row = {"query": "q", "positive": "a " * 2000, "other": "b " * 8000}
    path = as_parquet(tmp_path / "a.parquet", [row] * 2000)
    tracemalloc.start()
    assert sum(1 for _ in labelled_format.in_order([path], NONE, tmp_path)) == 2000
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_folder_of_a_data_set_is_its_train_split(tmp_path):
    trained = [as_parquet(tmp_path / "set/data" / f"train-{part}-of-2.parquet", [TRIPLE]) for part in (0, 1)]
    for name in ("data/test-0-of-1", "data/validation-0-of-1", ".cache/train-0-of-1"):
        as_parquet(tmp_path / "set" / f"{name}.parquet", [TRIPLE])
    write(tmp_path / "set" / "README.md", "a card")
    other, lone = write(tmp_path / "x.jsonl", "{}"), as_parquet(tmp_path / "lone" / "rows.parquet", [TRIPLE])
    assert labelled_format.files(f"{other},{tmp_path / 'set'},{tmp_path / 'lone'}") == [other, *trained, lone]


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
    paths = [as_parquet(tmp_path / "test" / name, [TRIPLE]) for name in names]
    assert labelled_format.files(str(tmp_path / "test")) == [paths[number] for number in expected]


def test_folders_without_one_train_split(tmp_path):
    for names, message in (
        ([], r"needed is one train split, .* there are no such file; name a file"),
        (["data/test-0"], r"there are data/test-0\.parquet; name a file"),
        (["pair/train-0", "triplet/train-0"], r"there are pair/train-0\.parquet, triplet/train-0\.parquet"),
    ):
        for name in names:
            as_parquet(tmp_path / f"{name}.parquet", [TRIPLE])
        with pytest.raises(UserError, match=message):
            labelled_format.files(str(tmp_path))

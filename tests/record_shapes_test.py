"""Records of labelled examples by the names of their fields: scores, classes, lists, ids; JSON, Parquet and CSV."""

import csv
import json

import pyarrow
import pytest
from conftest import write
from pyarrow import parquet

from retrieval.data.labelled import grouping, labelled_format
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import Reading, Settings
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError

NONE = Settings("", "", "", 0)


def texts(*values):
    return tuple(Candidate("", "", value) for value in values)


def lines(path, rows):
    return write(path, "\n".join(map(json.dumps, rows)) + "\n")


def as_parquet(path, rows, classes=None):
    table = pyarrow.Table.from_pylist(rows)
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


def scored(query, positives, negatives, scores):
    return Example(query, texts(*positives), texts(*negatives), scores=tuple(scores))


FLAT = [
    ({"anchor": "q", "positive": "a", "negative": "b", "score": 1.5}, scored("q", "a", "b", (0.0, -1.5))),
    ({"sentence1": "q", "sentence2": "a", "score": 0.25}, scored("q", "a", "", (0.25,))),
    ({"sentence1": "q", "sentence2": "a", "label": 1}, Example("q", texts("a"))),
    ({"sentence1": "q", "sentence2": "a", "label": 0}, Example("q", (), texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": 0}, Example("q", texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": 2}, Example("q", (), texts("a"))),
    ({"premise": "q", "hypothesis": "a", "label": "contradiction"}, Example("q", (), texts("a"))),
    ({"sentence1": "q", "sentence2": "a"}, Example("q", texts("a"))),
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


MARGINS = scored("q", "a", "bc", (0.0, -1.0, -2.0))


@pytest.mark.parametrize(
    ("row", "example"),
    [
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
        ({"query": "q", "pos": ["a", " "], "neg": ["c"], "pos_scores": [3, 2], "neg_scores": [1]}, None),
        (
            {"query": "q", "document_1": "b", "document_2": "a", "document_3": "c", "scores": [1, 5, 2]},
            scored("q", "a", "bc", (5.0, 1.0, 2.0)),
        ),
        ({"query": "q", "docs": ["a", "b", "c"], "labels": [0, 1, 2]}, Example("q", texts("b", "c"), texts("a"))),
        (
            {"query": "q", "docs": ["a", "b", "c"], "labels": [False, True, True]},
            Example("q", texts("b", "c"), texts("a")),
        ),
        (
            {"query": "q", "docs": ["a", "b", "c"], "labels": "[false, True, true]"},
            Example("q", texts("b", "c"), texts("a")),
        ),
        ({"query": "q", "documents": ["a", "b"], "labels": [0, 0]}, Example("q", (), texts("a", "b"))),
    ],
)
def test_lists_and_scores(tmp_path, row, example):
    example = example or scored("q", "a", "c", (3.0, 1.0))  # an empty text takes its score with it
    for path in (lines(tmp_path / "a.jsonl", [row]), as_parquet(tmp_path / "a.parquet", [row])):
        assert read(path)[0] == [example]
        assert labelled_format.shape(path, NONE).has_scores == bool(example.scores)


def test_a_negative_may_be_null(tmp_path):
    """As tables write the rows that have fewer; a null has a score of its own, or none."""
    rows = [
        {"query": "q", "positive": "a", "negative_1": "b", "negative_2": "c", "scores": [3.0, 2.0, 1.0]},
        {"query": "r", "positive": "a", "negative_1": None, "negative_2": "c", "scores": [3.0, 0.0, 1.0]},
        {"query": "s", "positive": "a", "negative_1": "b", "negative_2": None, "scores": [3.0, 2.0, 0.0]},
    ]
    expected = [scored("q", "a", "bc", (3, 2, 1)), scored("r", "a", "c", (3, 1)), scored("s", "a", "b", (3, 2))]
    for path in (lines(tmp_path / "a.jsonl", rows), as_parquet(tmp_path / "a.parquet", rows)):
        assert read(path)[0] == expected


def test_columns_are_named_by_the_config(tmp_path):
    row = {"title": "q", "body": "a", "other": "b", "margin": 2.0, "score": 7.0}
    named = NONE._replace(fields="query=title,positive=body,negative=other,score=margin")
    for path in (as_parquet(tmp_path / "a.parquet", [row]), as_table(tmp_path / "a.csv", [row])):
        assert read(path, named)[0] == [scored("q", "a", "b", (0.0, -2.0))]
    pair = lines(tmp_path / "a.jsonl", [{"query": "q", "answer": "a", "score": 0.5}])
    examples, counts = read(pair)
    assert examples == [Example("q", texts("a"))] and sum(counts.left_out.values()) == 1
    assert read(pair, NONE._replace(fields="score=score"))[0] == [scored("q", "a", "", (0.5,))]
    positives = NONE._replace(fields="query=sentence1,positive=sentence2")
    assert read(lines(tmp_path / "b.jsonl", [FLAT[1][0]]), positives)[0] == [Example("q", texts("a"))]


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
    assert counts.left_out == {"texts that come again": 1, "texts that are alone in their class": 1}
    with labelled_format.grouped([path], NONE, tmp_path, 9) as (groups, _):
        value = grouping.evaluation_set("test", groups)
    of_id = {candidate.id: candidate.text for candidate in value.candidates}
    right = {query: {of_id[id] for id in value.qrels["test"][key]} for key, query in value.queries.items()}
    assert right["a1"] == {"a2", "a3", "a4"} and right["b1"] == {"b2"}
    assert all(of_id[key] == query for key, query in value.queries.items())  # so that it is no result of itself


def test_records_of_nomic_say_what_their_fields_are(tmp_path):
    objective = {
        "self": [["title"]],
        "paired": [["query", "document"]],
        "triplet": [["query", "document", "negatives"]],
    }
    rows = [
        {"query": "q", "document": "a", "metadata": {"objective": {"self": [], "triplet": [], "paired": []} | part}}
        for part in ({"paired": objective["paired"]}, {"self": objective["self"]})
    ] + [
        {"query": "r", "document": "a", "negatives": ["b", "c"], "metadata": {"objective": objective | {"paired": []}}}
    ]
    examples, counts = read(lines(tmp_path / "a.jsonl", rows))
    assert examples == [Example("q", texts("a")), Example("r", texts("a"), texts("b", "c"))]
    assert counts.left_out == {"objectives of a text with itself": 2}
    assert read(as_parquet(tmp_path / "a.parquet", rows[2:]))[0] == examples[1:]
    bad = rows[0] | {"metadata": {"objective": {"paired": [["query", "answer"]]}}}
    with pytest.raises(UserError, match=r"line 1: the objective \['query', 'answer'\] names no two or three fields"):
        read(lines(tmp_path / "b.jsonl", [bad]))


@pytest.fixture
def collections(tmp_path):
    """Queries and passages as TSV, JSON lines and Parquet, with the names that projects use."""
    queries, passages = {"1": "q", "2": "r"}, {"7": "a", "8": "b", "9": "c"}
    tsv = [
        write(tmp_path / f"{name}.tsv", "".join(f"{id}\t{text}\n" for id, text in of.items()))
        for name, of in (("queries", queries), ("passages", passages))
    ]
    json_lines = [
        lines(tmp_path / "queries.jsonl", [{"_id": id, "text": text} for id, text in queries.items()]),
        lines(tmp_path / "corpus.jsonl", [{"docid": id, "title": "", "text": text} for id, text in passages.items()]),
    ]
    (tmp_path / "corpus").mkdir()
    rows = [{"passage_id": int(id), "passage": text} for id, text in passages.items()]
    for number, part in enumerate((rows[:2], rows[2:])):
        as_parquet(tmp_path / "corpus" / f"train-{number}-of-2.parquet", part)
    in_parquet = [
        as_parquet(tmp_path / "q.parquet", [{"query_id": int(id), "query": text} for id, text in queries.items()]),
        tmp_path / "corpus",
    ]
    return [NONE._replace(queries=str(of), collection=str(all)) for of, all in (tsv, json_lines, in_parquet)]


A, B, C = (Candidate(id, "", text) for id, text in (("7", "a"), ("8", "b"), ("9", "c")))
SYSTEMS = {"bm25": [8, 9], "tas-b": [9], "none": None}


@pytest.mark.parametrize(
    ("row", "example"),
    [
        ({"query_id": 1, "positive_id": 7, "negative_id": 8}, Example("q", (A,), (B,))),
        ({"query_id": 1, "positive_id": 7, "negative_id": 8, "score": 2.5}, Example("q", (A,), (B,), (), (0.0, -2.5))),
        ({"query_id": "1", "query_text": "x", "positive_document_ids": ["7"]}, Example("x", (A,))),
        (
            {"query_id": "1", "query_text": "x", "positive_document_ids": ["7"], "negative_document_ids": ["8", "9"]},
            Example("x", (A,), (B, C)),
        ),
        (
            {"query_id": 1, "document_ids": "['7', '8', '9']", "scores": "[0.5, 0.25, 0.75]"},
            Example("q", (C,), (A, B), (), (0.75, 0.5, 0.25)),
        ),
        ({"query_id": 1, "doc_ids": [7, 8], "labels": [1, 0]}, Example("q", (A,), (B,))),
        ({"qid": 1, "pos": [7], "neg": SYSTEMS}, Example("q", (A,), (B, C))),
    ],
)
def test_ids_stand_for_texts_of_other_files(tmp_path, collections, row, example):
    paths = [lines(tmp_path / "a.jsonl", [row]), as_parquet(tmp_path / "a.parquet", [row])]
    for settings in collections:
        assert [read(path, settings)[0] for path in paths] == [[example]] * 2
    (found,) = labelled_format.sample(paths[0], collections[0])
    assert {text.id for text in found.positives} == {text.id for text in example.positives}
    missing = "config.pairs.collection" if "query_text" in row else "config.pairs.(collection|queries)"
    with pytest.raises(UserError, match=f"ids, whose texts are elsewhere: set {missing}"):
        read(paths[0])


def test_ids_that_nothing_is_known_of(tmp_path, collections):
    for row, message in (
        ({"query_id": 3, "positive_id": 7, "negative_id": 8}, r"line 1: the query '3' is not among those of config"),
        ({"query_id": 1, "positive_id": 7, "negative_id": 6}, r"line 1: the document '6' is not in the collection"),
    ):
        for settings in collections:
            with pytest.raises(UserError, match=message):
                read(lines(tmp_path / "a.jsonl", [row]), settings)
    twice = lines(tmp_path / "twice.jsonl", [{"_id": "7", "text": "a"}, {"_id": "7", "text": "b"}])
    row = {"query_id": 1, "positive_id": 7, "negative_id": 7}
    with pytest.raises(UserError, match=r"twice\.jsonl: the document '7' is there twice, with another text"):
        read(lines(tmp_path / "a.jsonl", [row]), collections[0]._replace(collection=str(twice)))
    with pytest.raises(UserError, match=r"line 1: one of query_id, .* is needed, and there are name, text"):
        named = lines(tmp_path / "b.jsonl", [{"name": "7", "text": "a"}])
        read(lines(tmp_path / "a.jsonl", [row]), collections[0]._replace(collection=str(named)))


TRIPLE = {"query": "q", "positive": "a", "negative": "b"}
LIST = {"query": "q", "document_1": "a", "document_2": "b", "scores": [1, 2]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([TRIPLE | {"score": "high"}], r"line 1: the score is 'high'; it must be a finite number"),
        ([LIST | {"scores": "[1, nan]"}], r"line 1: the scores 2 is 'nan'; it must be a finite number"),
        ([LIST | {"scores": [1, 2, 3]}], r"line 1: scores has 3 numbers, of 2 documents: give each one"),
        ([LIST | {"scores": None}], r"line 1: the scores is 'None'"),
        ([{"query": "q", "docs": ["a"], "labels": [1, 0]}], r"line 1: 2 values in labels, of 1 documents"),
        ([{"query": "q", "docs": ["a"]}], r"line 1: docs without scores or labels, .* there are query, docs"),
        (
            [{"query": "q", "pos": ["a"], "neg": ["b"], "pos_scores": [1, 2], "neg_scores": []}],
            r"line 1: pos_scores and neg_scores have 2 and 0 scores, of 1 positives and 1 negatives",
        ),
        ([{"premise": "p", "hypothesis": "h", "label": 3}], r"line 1: the label is '3'; .* 0 \(entailment\), 1 \(neu"),
        ([{"sentence1": "p", "sentence2": "h", "label": 3.8}], r"the label is '3.8'; .* config.pairs.fields=score="),
        ([{"text": "p", "label": None}], r"line 1: the field 'label' is missing"),
        (
            [TRIPLE, TRIPLE | {"score": 1}],
            r"line 2: its fields are .*score, and those of line 1 are query, positive, n",
        ),
        ([TRIPLE, {"text": "a", "label": 1}], r"line 2: its fields are text, label, and those of line 1 are"),
        (
            [TRIPLE | {"negative_2": "c"}, TRIPLE],
            r"line 2: 1 negatives, and records before it have 2: give each as many, or a list",
        ),
        (
            [TRIPLE | {"negative_2": None, "scores": [3, 2]}],
            r"line 1: a negative is null, and scores may be 2 scores or",
        ),
        ([LIST, LIST | {"document_3": "c"}], r"line 2: 3 documents, and records before it have 2"),
        ([], r"a\.jsonl: the file is empty"),
    ],
)
def test_records_that_are_wrong(tmp_path, rows, message):
    with pytest.raises(UserError, match=message):
        read(lines(tmp_path / "a.jsonl", rows))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("query,positive\nq\n", r"line 2: 1 fields, and the first line names 2: query, positive"),
        ('query,positive\nq,"a\n', r"line \d: no CSV .*; close its quotation marks"),
        ("query,positive,positive\nq,a,b\n", r"line 1: two columns are called 'positive'"),
        ("query,positive\n", r"a\.csv: no record in it"),
        ("title,body\nq,a\n", r"a\.csv, line 1: no format that is known"),
    ],
)
def test_a_broken_table_of_text(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read(write(tmp_path / "a.csv", text))


def test_an_empty_table_has_no_record(tmp_path):
    table = pyarrow.table({"query": pyarrow.array([], "string"), "positive": pyarrow.array([], "string")})
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"a\.parquet: no record in it"):
        read(tmp_path / "a.parquet")
    not_a_number = as_parquet(tmp_path / "b.parquet", [TRIPLE | {"score": float("nan")}])
    with pytest.raises(UserError, match=r"row 1: the score is 'nan'; it must be a finite number"):
        read(not_a_number)


def test_quotation_marks_go_over_lines_between_commas_alone(tmp_path):
    path = write(tmp_path / "a.csv", 'query,answer\n"one, two\nthree",a\nr,"b ""c"""\n')
    assert read(path)[0] == [Example("one, two\nthree", texts("a")), Example("r", texts('b "c"'))]
    path = write(tmp_path / "a.tsv", 'query\tanswer\n"q\ta"\n')
    assert read(path)[0] == [Example('"q', texts('a"'))]

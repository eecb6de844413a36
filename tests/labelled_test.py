"""Labelled examples of every format: what is read, what is left out and counted, what is refused and where."""

import itertools
import json
import random
import tracemalloc

import pytest
from conftest import write

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.labelled import grouping, json_array
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import LABELLED, Reading, Settings
from retrieval.data.sets import beir, msmarco
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate


def texts(*values):
    return tuple(Candidate("", "", value) for value in values)


def read(name, path, counts, pool=9, **settings):
    """The examples of a file of a named format."""
    return LABELLED[name].read(path, Reading(Settings(**settings), path.parent, pool, counts))


QUESTION = {
    "question": "who sang",
    "answers": ["Reba"],
    "positive_ctxs": [{"title": "R", "text": "Reba sang", "passage_id": "7"}, {"title": "", "text": "so", "psg_id": 8}],
    "negative_ctxs": [{"title": "N", "text": "no"}],
    "hard_negative_ctxs": [{"title": "H", "text": "hard", "passage_id": 9}],
}


@pytest.mark.parametrize("name", ["nq.json", "nq.json.gz"])
def test_dpr(tmp_path, name):
    easy = QUESTION | {"question": "easy", "hard_negative_ctxs": []}
    bare = {"question": "bare", "positive_ctxs": [{"text": "x"}]}
    path, counts = write(tmp_path / name, json.dumps([QUESTION, easy, bare | {"positive_ctxs": []}, bare])), Counts()
    first, second, third = read("dpr", path, counts)
    assert first.positives == (Candidate("7", "R", "Reba sang"), Candidate("8", "", "so"))
    assert first.negatives == (Candidate("9", "H", "hard"),)
    assert second.negatives == (Candidate("", "N", "no"),)  # where none is hard
    assert third == Example("bare", texts("x"))
    assert first.answers == ("Reba",)
    assert counts.left_out == {"examples without a positive": 1}
    assert counts.first == {"examples without a positive": f"{path}, record 3"}


def test_ids_that_count_anew_in_every_list_are_none(tmp_path):
    """A negative '0' that is another text than the positive '0' stays; cut or whole, one text has one id."""
    row = {"query": "q", "positives": [{"docid": 0, "text": "a b"}], "negatives": [{"docid": 0.0, "text": "c"}]}
    same = {"query": "r", "positives": [{"docid": "0", "text": "a b"}], "negatives": [{"docid": "0", "text": "a"}]}
    path, counts = write(tmp_path / "x.jsonl", "\n".join(map(json.dumps, (row, same)))), Counts()
    found = list(read("jsonl", path, counts))
    assert found[0] == Example("q", texts("a b"), texts("c"))
    assert found[1].negatives == (Candidate("0", "", "a"),)
    assert counts.left_out == {"ids of examples in which one is of two texts": 1}
    groups, _ = group(found, tmp_path)
    assert {each.query: len(each.negatives) for each in groups} == {"q": 1, "r": 0}


def test_an_array_is_read_in_pieces_of_any_size(tmp_path, monkeypatch):
    records = [{"a": "é" * random.Random(i).randrange(90), "b": [{"]": '["}'}]} for i in range(40)]
    for indent, piece in itertools.product((None, 1), (1, 2, 7, 1 << 16)):
        monkeypatch.setattr(json_array, "_PIECE", piece)
        path = write(tmp_path / "x.json", "\ufeff" + json.dumps(records, indent=indent, ensure_ascii=False))
        found = list(json_array.read(path))
        assert [value for _, value in found] == records and found[7][0] == f"{path}, record 8"


def test_an_endless_record_is_refused_before_it_is_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "MOST_BYTES", 1 << 16)
    path = write(tmp_path / "x.json.gz", '[{"a": [' + "word " * (4 << 20) + '{"b": [' * 200_000)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"x\.json\.gz, record 1: (longer than 64 MiB|.*nested too deeply)"):
        list(read("dpr", path, Counts()))
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"x\.json: begins with '', but a JSON array"),
        ('[{"a": 1}', r"record 2: not valid JSON \(the file is cut off\)"),
        ('[{"a": 1}, [2]]', r"record 2: not an object"),
        ('[{"a": 1}]\n[{"a": 2}]', r"x\.json, record 2: stands behind the end of the array"),
        ("[" + '{"a":' * 5000, r"record 1: .*nested too deeply"),
        (b'[{"a": "\xff"}]', r"x\.json: not UTF-8"),
    ],
)
def test_a_broken_array(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        list(json_array.read(write(tmp_path / "x.json", text)))


TRIPLES = 'who "sang"\tReba\tBob\nwho\tA\t\n'


@pytest.mark.parametrize("name", ["t.tsv", "t.tsv.gz"])
def test_triples_of_texts(tmp_path, name):
    counts = Counts()
    first, second = read("triples", write(tmp_path / name, "\ufeff" + TRIPLES), counts)
    assert first == Example('who "sang"', texts("Reba"), texts("Bob"))
    assert second == Example("who", texts("A")) and counts.left_out == {"empty texts": 1}


def test_a_first_line_that_names_the_columns_is_passed_over(tmp_path):
    queries = write(tmp_path / "q.tsv", "qid\tquery\n" + QUERIES)
    assert msmarco.read_queries(queries) == {"1": "first?", "2": "second?"}
    for names in ("pid\tpassage", "_id\tText", "passage_id\tpassage_text"):
        path = write(tmp_path / "c.tsv", f"{names}\n{COLLECTION}")
        assert [each.id for each in msmarco.read_collection(path)] == ["p1", "p2", "p3"]
    path = write(tmp_path / "docs.tsv", "docid\turl\ttitle\tbody\nD1\thttp://a\tT\twords\nD2\thttp://b\t\tmore\n")
    documents = [Candidate("D1", "http://a T", "words"), Candidate("D2", "http://b", "more")]
    assert list(msmarco.read_collection(path)) == documents
    assert len(list(msmarco.read_collection(write(tmp_path / "c.tsv", "p1\tpassage\n")))) == 1


COLLECTION = "p1\tone\n\np2\t\u2028two\x85\rand\np3\tthree\n"
QUERIES = "1\tfirst?\n2\tsecond?\n"


@pytest.mark.parametrize("name", ["collection.tsv", "collection.tsv.gz"])
def test_triples_of_ids(tmp_path, name):
    """Of the lines of a query one example is made, with the texts of its ids."""
    triples = write(tmp_path / "ids.tsv", "1\tp1\tp2\n2\tp2\tp3\n1\tp3\tp2\n1\tp1\tp3\n")
    queries, collection = write(tmp_path / "q.tsv", QUERIES), write(tmp_path / name, COLLECTION)
    counts = Counts()
    files = dict(queries=str(queries), collection=str(collection))
    found = read("id_triples", triples, counts, 9, **files)
    second, first = Candidate("p2", "", "\u2028two\x85\rand"), Candidate("p1", "", "one")
    third = Candidate("p3", "", "three")
    assert {e.query: (set(e.positives), e.negatives) for e in found} == {
        "first?": ({first, third}, (second,)),
        "second?": ({second}, (third,)),
    }
    assert counts.left_out == {"ids of negatives that are positives of their query": 1}
    assert len(list(read("id_triples", triples, counts, 0, **files))) == 2
    assert counts.left_out["ids of negatives beyond the 0 that a query keeps"] == 2
    assert {path.name for path in tmp_path.iterdir()} == {"ids.tsv", "q.tsv", name}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("ids.tsv", "1\tp1\n", r"ids\.tsv, line 1: 2 fields, expected 3 between tabs: query id, positive id"),
        ("ids.tsv", "1\tp1\tp2\n9\tp1\tp2\n", r"ids\.tsv, query '9': the query '9' is not among those of"),
        ("ids.tsv", "1\tp1\tp9\n", r"ids\.tsv, query '1': the document 'p9' is not in the collection"),
        ("q.tsv", "1\tq\n1\tr\n", r"q\.tsv, line 2: the id '1' is there twice"),
        ("c.tsv", "p1\ta\n\np2\tb\np1\tc\n", r"c\.tsv, line 4: the id 'p1' is there twice, with something else"),
    ],
)
def test_broken_files_of_ids(tmp_path, name, text, message):
    for other, good in (("ids.tsv", "1\tp1\tp2\n"), ("q.tsv", QUERIES), ("c.tsv", COLLECTION), (name, text)):
        write(tmp_path / other, good)
    with pytest.raises(UserError, match=message):
        files = dict(queries=str(tmp_path / "q.tsv"), collection=str(tmp_path / "c.tsv"))
        list(read("id_triples", tmp_path / "ids.tsv", Counts(), **files))


def group(examples, folder, pool=9, **kwargs):
    counts = Counts()
    with grouping.grouped(examples, folder, pool, counts, **kwargs) as groups:
        twice = list(groups), list(groups)
    assert twice[0] == twice[1]
    return twice[0], counts


def test_a_querys_positive_is_never_its_negative(tmp_path):
    """By its text, whatever its id, and by its id, whatever its text; other queries may have it as a negative."""
    examples = [
        Example("q", texts("a"), texts("b", "c")),
        Example("q", texts("b"), texts("a", "d")),
        Example("q", (Candidate("7", "", "e"),), (Candidate("7", "", "e, revised"), Candidate("8", "", "a"))),
        Example("r", texts("c"), texts("a")),
    ]
    found, counts = group(examples, tmp_path)
    merged = {e.query: tuple({text.text for text in side} for side in e[1:3]) for e in found}
    assert merged == {"q": ({"a", "b", "e"}, {"c", "d"}), "r": ({"c"}, {"a"})}
    assert (counts.examples, counts.queries) == (4, 2)
    assert counts.left_out == {"negatives that are positives of their query": 3}  # "a" counts once


def test_groups_ignore_line_order_and_keep_a_pool(tmp_path):
    examples = [Example(f"q{i % 5}", texts("gold"), texts(f"n{i}")) for i in range(50)]
    found, counts = group(examples, tmp_path, pool=3)
    assert counts.left_out["negatives beyond the 3 that a query keeps"] == 5 * (10 - 3)
    shuffled, _ = group(random.Random(0).sample(examples, 50), tmp_path, pool=3)
    assert found == shuffled and [len(e.negatives) for e in found] == [3] * 5
    assert [e.query for e in group(examples, tmp_path, seed=1)[0]] != [e.query for e in found]
    with grouping.grouped(examples, tmp_path, 3, Counts()) as groups:
        assert list(groups.where(lambda query: query != found[0].query)) == found[1:]
        counts = Counts()
    with grouping.grouped(examples, tmp_path, 3, counts) as groups:
        first = found[0].query
        assert list(groups.without("first ones", lambda query: query == first)) == found[1:]
    assert counts.queries == 4 and counts.left_out["first ones"] == 1


def test_an_evaluation_set_of_labelled_files(tmp_path):
    """The answers of a query are joined."""
    examples = [
        Example("q", texts("a"), texts("b"), answers=("A", "b")),
        Example("q", texts("a"), answers=("b", " ")),
        Example("r", texts("b", "c")),
    ]
    value = grouping.evaluation_set("dev", group(examples, tmp_path)[0])
    texts_of = {candidate.id: candidate.text for candidate in value.candidates}
    relevant = {value.queries[q]: {texts_of[id] for id in grades} for q, grades in value.qrels["test"].items()}
    assert relevant == {"q": {"a"}, "r": {"b", "c"}} and sorted(texts_of.values()) == ["a", "b", "c"]
    assert {value.queries[id]: own for id, own in value.answers.items()} == {"q": Answers(("A", "b"))}
    beir.write_folder(tmp_path / "dev", value)
    assert beir.read_folder(tmp_path / "dev") == value

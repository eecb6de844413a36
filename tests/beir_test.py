"""BEIR folders: a hand-written one, the counts of real ones, and every way in which one can be broken."""

import gzip
import json

import pytest

from retrieval.common.errors import UserError
from retrieval.data.sets import beir, relevance, set_format
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate, RetrievalSet

CORPUS = '{"_id": "d1", "title": "One", "text": "first"}\n{"_id": 2, "text": "zwei é\\u2028", "metadata": {}}\n\n'
QUERIES = '{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "b"}\n{"_id": "q3", "text": "not judged"}\n'
OPTIONS = {"sets.splits": (), "split.set": ""}
QRELS = "Query-ID\tcorpus-id\tscore \nq2\td1\t1.0\nq2\t2\t0\nq1\t2\t-1\n"


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "tiny"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(CORPUS, encoding="utf-8")
    (folder / "queries.jsonl").write_text(QUERIES, encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
    return folder


EXPECTED = RetrievalSet(
    name="tiny",
    queries={"q1": "a", "q2": "b"},
    candidates=[Candidate("d1", "One", "first"), Candidate("2", "", "zwei é\u2028")],
    qrels={"test": {"q2": {"d1": 1, "2": 0}, "q1": {"2": -1}}},
)


def test_reads_a_folder(folder, caplog):
    value = beir.read_folder(folder)
    assert value == EXPECTED and list(value.queries) == ["q1", "q2"]
    assert "set tiny: 1 queries without a judgement or an answer, left out" in caplog.text


def test_judgements_of_other_candidates_are_refused_or_counted(folder):
    lines = "q1\td9\t2\nq2\td8\t0\nq3\td9\t1\n"
    (folder / "qrels" / "test.tsv").write_text(QRELS + lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"line 5: the candidate 'd9' .* config\.sets\.unknown=drop leaves such"):
        beir.read_folder(folder)
    value = beir.read_folder(folder, relevance.DROP)
    assert (value.queries, value.qrels) == (EXPECTED.queries, EXPECTED.qrels)
    assert value.left_out == {relevance.OUTSIDE: 3, relevance.RELEVANT_OUTSIDE: 2, relevance.LOST: 1}
    (folder / "qrels" / "test.tsv").write_text(lines, encoding="utf-8")
    with pytest.raises(UserError, match=r"no candidate in corpus\.jsonl has a grade above 0"):
        beir.read_folder(folder, relevance.DROP)


def test_lines_that_come_again_count_once(folder, caplog):
    for name, text in (("corpus.jsonl", CORPUS), ("queries.jsonl", QUERIES), ("qrels/test.tsv", QRELS)):
        last = text.strip("\n").rpartition("\n")[2]
        (folder / name).write_text(f"{text.rstrip()}\n{last}\n", encoding="utf-8")
    for _ in range(2):
        assert beir.read_folder(folder) == EXPECTED
        assert beir.read_judged(folder).candidates == ["d1", "2"]
    for name, what in (("corpus.jsonl", "lines"), ("queries.jsonl", "lines"), ("qrels/test.tsv", "judgements")):
        assert caplog.text.count(f"{folder / name}: 1 {what} are there again, and count once") == 1
    (folder / "corpus.jsonl").write_text(CORPUS + '{"_id": "d1", "text": "other"}', encoding="utf-8")
    with pytest.raises(UserError, match=r"line 4: the id 'd1' is there twice, with something else before"):
        beir.read_folder(folder)


def test_whole_numbers_are_ids_however_they_are_written(folder):
    (folder / "corpus.jsonl").write_text('{"_id":1.0, "text":"a"}\n{"_id":2, "text":"b"}\n{"_id":"3.0", "text":"c"}')
    (folder / "queries.jsonl").write_text('{"_id": 7.0, "text": "q"}')
    (folder / "qrels" / "test.tsv").write_text("7\t1\t1\n7\t2\t0\n7\t3.0\t-2\n")
    assert beir.read_folder(folder).qrels == {"test": {"7": {"1": 1, "2": 0, "3.0": -2}}}
    for wrong in ("1.5", "true", "1e300", "[1]", "null", "9007199254740993.0"):
        (folder / "corpus.jsonl").write_text(f'{{"_id": {wrong}, "text": "a"}}')
        with pytest.raises(UserError, match="line 1: the field '_id' is missing or not a string"):
            beir.read_folder(folder)


def test_reads_a_folder_without_its_texts(folder):
    own = '{"_id": "q1", "title": "t", "text": "a"}\n{"_id": "q2", "text": "not the query"}\n'
    own += '{"_id": "q3", "text": "not judged"}\n'
    (folder / "corpus.jsonl").write_text(CORPUS + own, encoding="utf-8")
    value, judged = beir.read_folder(folder), beir.read_judged(folder)
    assert (judged.name, judged.queries, judged.qrels) == (value.name, value.queries, value.qrels)
    assert judged.candidates == [candidate.id for candidate in value.candidates] == ["d1", "2", "q1", "q2", "q3"]
    assert judged.own == {"q1": 2}


ANSWERS = '{"_id": "q3", "answers": ["a", "a b", ""]}\n{"_id": "q1", "patterns": ["a|b"]}\n'
TEXTS = ANSWERS.replace('"patterns"', '"answers"')


@pytest.mark.parametrize("is_judged", [True, False])
def test_answers_are_those_of_the_judged_queries_or_of_all(folder, is_judged):
    (folder / "answers.jsonl").write_text(TEXTS + '{"_id": "q2", "answers": [""]}\n')  # one that is none
    if not is_judged:
        (folder / "qrels" / "test.tsv").unlink()
    for value in (beir.read_folder(folder), beir.read_judged(folder)):
        assert value.queries == (EXPECTED.queries if is_judged else {"q1": "a", "q3": "not judged"})
        more = {} if is_judged else {"q3": Answers(("a", "a b"))}
        assert value.answers == {"q1": Answers(("a|b",))} | more and bool(value.qrels) == is_judged


def test_header_is_optional_and_windows_files_are_read(folder):
    (folder / "qrels" / "test.tsv").write_bytes("q2\td1\t1\r\nq2\t2\t0\r\nq1\t2\t-1".encode("utf-8-sig"))
    (folder / "corpus.jsonl").write_bytes(CORPUS.replace("\n", "\r\n").encode("utf-8-sig"))
    assert beir.read_folder(folder) == EXPECTED


def test_a_written_folder_replaces_the_old_one(tmp_path):
    value = RetrievalSet(
        "set",
        {"q-1": 'tab\t"quote"\nline', "ü": " 中 "},
        [Candidate("d/1", "title\r\n", ""), Candidate("d2", "", "\u2028\x85 text")],
        {"pair": {"q-1": {"d2": 1}}, "sentence": {"ü": {"d/1": 3, "d2": 0}}},
    )
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "corpus.jsonl.gz").write_text("old")
    beir.write_folder(tmp_path / "set", value)
    assert beir.read_folder(tmp_path / "set") == value
    assert not (tmp_path / "set" / "corpus.jsonl.gz").exists()
    first = json.loads((tmp_path / "set" / "corpus.jsonl").read_text(encoding="utf-8").split("\n")[0])
    assert first == {"_id": "d/1", "title": "title\r\n", "text": ""}
    assert (tmp_path / "set" / "qrels" / "pair.tsv").read_text() == "query-id\tcorpus-id\tscore\nq-1\td2\t1\n"


BAD = {
    "a line break in an _id": ("queries.jsonl", b'{"_id": "a\\nb", "text": ""}\n', ["line 1", "a line break"]),
    "an unknown query": ("qrels/test.tsv", b"q9\td1\t1\n", ["test.tsv, line 1", "query 'q9'", "queries.jsonl"]),
    "a second header": ("qrels/test.tsv", 2 * QRELS.encode(), ["test.tsv, line 5", "is not an integer"]),
    "two grades": ("qrels/test.tsv", b"q1\td1\t1\nq1\td1\t2\n", ["test.tsv, line 2", "'q1'", "'d1'", "twice"]),
    "answers of no query": ("answers.jsonl", b'{"_id": "q9", "answers": ["a"]}\n', ["answers.jsonl: the query 'q9'"]),
    "both": ("answers.jsonl", ANSWERS.encode(), ["answers.jsonl, line 2: patterns and answers in one file"]),
    "no pattern": ("answers.jsonl", b'{"_id": "q1", "patterns": ["("]}\n', ["line 1", "'(' is no regular expression"]),
}


@pytest.mark.parametrize("case", BAD)
def test_broken_file_is_named_with_its_line(folder, case):
    name, data, words = BAD[case]
    (folder / name).write_bytes(data)
    with pytest.raises(UserError) as error:
        beir.read_folder(folder)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_empty_queries_and_odd_or_zero_grades_are_refused(folder):
    qrels, queries = folder / "qrels" / "test.tsv", folder / "queries.jsonl"
    for grade in ("1_0", "\u0661", "0x1", "0.5", ".0", "1.0e1"):
        qrels.write_text(f"q2\td1\t{grade}\n", encoding="utf-8")
        with pytest.raises(UserError, match=r"test\.tsv, line 1: the score '.*' is not an integer"):
            beir.read_folder(folder)
    qrels.write_text("q2\td1\t0\nq1\t2\t-1\n")
    for read in (beir.read_folder, beir.read_judged):
        with pytest.raises(UserError, match=r"test\.tsv: no candidate in corpus\.jsonl has a grade above 0"):
            read(folder)
    queries.write_text(QUERIES.replace('"not judged"', '" \\n"'))
    with pytest.raises(UserError, match=r"queries\.jsonl, line 3: the query 'q3' is empty"):
        beir.read_queries(queries)


def test_judgements_and_answers_may_be_gzipped_too(folder):
    (folder / "qrels" / "test.tsv").rename(folder / "qrels" / "test.tsv.gz")
    (folder / "qrels" / "._test.tsv").write_bytes(b"\x00\x05\x16\x07\xff")  # a Mac's
    (folder / "answers.jsonl.gz").write_bytes(gzip.compress(ANSWERS.splitlines()[1].encode()))
    set_format.BeirFolders().check_path(folder, OPTIONS)
    value = beir.read_folder(folder)
    assert value.qrels == EXPECTED.qrels and value.answers == {"q1": Answers(("a|b",), True)}


def test_corpora_of_other_projects_are_read(tmp_path):
    records = [
        ({"pid": "msmarco_passage_00_0", "passage": "v2", "docid": "d_0"}, "msmarco_passage_00_0", "", "v2"),
        ({"docid": "msmarco_doc_00_0", "title": "T", "body": "v2"}, "msmarco_doc_00_0", "T", "v2"),
        ({"docid": "5#0", "title": "T", "text": "of MIRACL"}, "5#0", "T", "of MIRACL"),
        ({"id": 7, "contents": "of pyserini"}, "7", "", "of pyserini"),
        ({"_id": "own", "docid": "other", "text": "ours", "body": "theirs"}, "own", "", "ours"),
    ]
    (path := tmp_path / "corpus.jsonl").write_text("".join(json.dumps(record) + "\n" for record, *_ in records))
    assert list(beir.read_candidates(path)) == [Candidate(*expected) for _, *expected in records]

"""Open-domain questions and their passages, in every format that they are published in."""

import json
import logging

import pytest
from conftest import write

from retrieval.common.errors import UserError
from retrieval.data.sets import beir, qa, set_format
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate

DPR = 'who was \'he\'\t[\'Bob\', "O\'Hara"]\n"the ""one""?"\t"[\'a ""b""\']"\n'
NQ_OPEN = '{"question": "q 1", "answer": ["a", "b"]}\n\n{"question": "q 2", "answer": ["\\u00e9"]}\n'
WEB_QUESTIONS = '[{"qId": "w1", "answers": ["a"], "qText": "q 1"},\n {"qId": "w2", "answers": ["b"], "qText": "q 2"}]'
ENTITY_QUESTIONS = '[{"question": "q 1", "answers": ["a"]}, {"qId": 2, "qText": "q 2", "answers": ["b"]}]'
CURATED_TREC = '1\tfactoid\tHow "tall"?\t"6,?\\s*m"|x\n20\tfactoid\tWho?\tA\\.? B\n3\tfactoid\tIn?\ta|b\\\tc\n'
PASSAGES = 'id\ttext\ttitle\n1\t"Aaron ""the"" first"\tAaron\n2\t"two\nlines"\t"A ""b"""\n3\tplain\t\n'


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (DPR, {"who was 'he'": ("Bob", "O'Hara"), 'the "one"?': ('a "b"',)}),
        (NQ_OPEN, {"q 1": ("a", "b"), "q 2": ("é",)}),
        (NQ_OPEN.replace("answer", "answers"), {"q 1": ("a", "b"), "q 2": ("é",)}),
        (ENTITY_QUESTIONS, {"q 1": ("a",), "q 2": ("b",)}),
        (WEB_QUESTIONS, {"q 1": ("a",), "q 2": ("b",)}),
        (CURATED_TREC, {'How "tall"?': ('"6,?\\s*m"|x',), "Who?": ("A\\.? B",), "In?": ("a|b\\\tc",)}),
    ],
    ids=["dpr", "nq_open", "fid", "entity_questions", "web_questions", "curated_trec"],
)
def test_questions(tmp_path, text, expected, ending):
    queries, answers = qa.read_questions([write(tmp_path / f"file{ending}", "\ufeff" + text.replace("\n", "\r\n"))])
    assert {queries[id]: found.values for id, found in answers.items()} == expected
    assert {found.are_patterns for found in answers.values()} == {text is CURATED_TREC}
    assert list(queries) == list(answers) and all(beir.check_id(id, "", "") for id in queries)


@pytest.mark.parametrize(
    "text",
    ['q\t["6,?\\\\s*m|x", ""]\n', '{"question": "q", "answer": ["6,?\\\\s*m|x", ""]}\n', "1\tfactoid\tq\t6,?\\s*m|x\n"],
    ids=["dpr", "nq_open", "curated_trec"],
)
def test_patterns_of_every_format(tmp_path, text, caplog):
    """As DPR, DrQA and Anserini have CuratedTREC."""
    path = write(tmp_path / "file", text)
    (found,) = qa.read_questions([path], are_patterns=True)[1].values()
    assert found == Answers((r"6,?\s*m|x",), are_patterns=True) and "look like" not in caplog.text
    with pytest.raises(UserError, match=r"(line|record) 1: 'a\(.*' is no regular expression"):
        qa.read_questions([write(path, text.replace("6,?", "a(").replace("m|x", ""))], are_patterns=True)


@pytest.mark.parametrize("value", [r"New\s?York", "Sept(ember)?"])
def test_likely_patterns_are_told_once_a_file(tmp_path, caplog, value):
    records = [("q 1", ["plain"]), ("q 2", [value, "a|b"]), ("q 3", [value])]
    text = "".join(json.dumps({"question": question, "answer": found}) + "\n" for question, found in records)
    qa.read_questions([write(tmp_path / "f", text)])
    (told,) = caplog.messages
    assert told.startswith(f"{tmp_path / 'f'}: 3 answers look like regular expressions and are read as texts")
    assert f"such as '{value}'" in told and told.endswith("set config.sets.qa_patterns=True")


def test_texts_with_signs_do_not_look_like_patterns(tmp_path, caplog):
    values = ["C++", "Who?", "Mr. T.", "10.14.2[3] (18C54)", "$1.50 (US)", "M*A*S*H", "a | b", r"\beta + \sqrt 2", "?|"]
    qa.read_questions([write(tmp_path / "f", json.dumps({"question": "q", "answer": values}))])
    assert not caplog.messages


def test_repeats_are_joined_and_questions_without_answers_left_out(tmp_path, caplog):
    lines = [("q", ["a"]), ("r", []), ("q", ["b", "a"]), ("s", [" ", ""]), ("t", ["", "x"])]
    path = write(tmp_path / "f", "".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in lines))
    with caplog.at_level(logging.WARNING):
        queries, answers = qa.read_questions([path])
    assert {queries[id]: found for id, found in answers.items()} == {"q": Answers(("a", "b")), "t": Answers(("x",))}
    assert "1 questions that are there again, whose answers are joined" in caplog.text
    assert "2 questions without an answer, left out" in caplog.text
    assert "3 answers without a word, left out" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q\t['a'\n", r"line 1: the answers are no Python list \(SyntaxError\)"),
        ("q\t['a']\nq\t__import__('os')\n", r"line 2: the answers are no Python list \(ValueError\)"),
        ("q\t['a']\nq\t['a']\tmore\n", r"line 2: 3 fields, expected 2 between tabs: question, list of answers"),
        ('{"question": "q", "answer": ["a", 1]}', r"line 1: the field 'answer\[1\]' is missing or not a string"),
        (WEB_QUESTIONS.replace("w2", "w1"), r"record 2: the question id 'w1' is there twice"),
        ("1\tfactoid\tq\ta(\n", r"line 1: 'a\(' is no regular expression"),
        ('{"question": "q", "answer": []}', r"not one question with an answer"),
    ],
)
def test_broken_questions(tmp_path, text, message):
    with pytest.raises(UserError, match=rf"^{tmp_path / 'file'}.*{message}"):
        qa.read_questions([write(tmp_path / "file", text)])


def test_passages_of_dpr(tmp_path):
    expected = [Candidate("1", "Aaron", 'Aaron "the" first'), Candidate("2", 'A "b"', "two\nlines")]
    found = list(qa.read_passages(write(tmp_path / "psgs.tsv.gz", PASSAGES)))
    assert found == [*expected, Candidate("3", "", "plain")]


def test_passages_of_others(tmp_path):
    text = "word " * 40_000  # a whole document, longer than Python's own limit of a field
    (whole,) = qa.read_passages(write(tmp_path / "psgs.tsv", f"id\ttext\ttitle\n1\t{text}\tt\n"))
    assert whole.text == text
    corpus = write(tmp_path / "corpus.jsonl", '{"_id": "d", "title": "T", "text": "words"}\n')
    assert list(qa.read_passages(corpus)) == [Candidate("d", "T", "words")]
    assert list(qa.read_passages(write(tmp_path / "c.tsv", '7\t"a\n'))) == [Candidate("7", "", '"a')]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PASSAGES + "4\ta\n", r"line 6: 2 fields, expected 3 between tabs: id, text, title"),
        (PASSAGES + "1\ta\tb\n", r"line 6: the id '1' is there twice"),
        (PASSAGES + "4\ta\rb\tc\n", r"line 6: new-line .* no carriage return"),
        (PASSAGES + '4\t"a\tb\n5\ta\tb\n', r"line 6: unexpected end of data; mend the row"),
    ],
)
def test_broken_passages(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        list(qa.read_passages(write(tmp_path / "psgs.tsv", text)))


def test_each_further_file_of_questions_is_a_set(tmp_path):
    form, given = set_format.SETS["qa"], set_format.Context({"sets.qa_patterns": False}, tmp_path / "none", tmp_path)
    passages, first = write(tmp_path / "psgs.tsv", PASSAGES), write(tmp_path / "NQ-open.test.jsonl", NQ_OPEN)
    value = f"{passages},{first},{write(tmp_path / 'WQ.dev.json', WEB_QUESTIONS)}"
    read = list(form.read(value, given))
    assert [each.name for each in read] == form.names(value) == ["qa", "qa-WQ"]
    assert set(read[1].answers) == {"w1", "w2"} and [len(list(each.candidates)) for each in read] == [3, 3]
    form.check(value, given.options, True)
    with pytest.raises(UserError, match="1 file, but 2 are needed"):
        form.check(str(passages), given.options, True)

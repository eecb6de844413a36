"""Natural Questions: small records in both official forms, made by hand, with the paragraphs they should become."""

import logging
import re

import pytest
from support.nq_records import (
    LEFT_OUT,
    PARAGRAPH,
    PEOPLE,
    PLAIN,
    TEXT,
    city,
    full_record,
    judged,
    simplified,
    words,
    write,
)

from retrieval.data.sets import natural_questions

FIRST, SECOND, THIRD = re.fullmatch(r"(.*\?) (.*\.) (Dr\. .*)", TEXT).groups()


@pytest.mark.parametrize("form", [lambda record: record, simplified])
@pytest.mark.parametrize(
    ("short", "sentence", "answer"),
    [
        (words("1", "076", "000"), SECOND, "1 076 000"),
        (words("Köln", after=PARAGRAPH[0]), FIRST, "Köln"),
        (words("?"), FIRST, "?"),
        (words("It"), SECOND, "It"),
        (words("it", "?", "It"), FIRST, "it? It"),
        (words("Dr."), THIRD, "Dr."),
        ((PLAIN.index("<P>"), PLAIN.index("is")), FIRST, "Köln (Cologne)"),
        (words("there", "."), THIRD, "there."),
    ],
)
def test_the_gold_sentence_is_where_the_answer_begins(tmp_path, form, short, sentence, answer):
    value = natural_questions.read_nq([write(tmp_path / "a.jsonl", form(city((PARAGRAPH, [short], "NONE"))))])
    assert value.name == "nq"
    assert [(c.title, c.text) for c in value.candidates] == [(FIRST, TEXT), (SECOND, TEXT), (THIRD, TEXT)]
    assert judged(value) == judged(value, "sentence") == {"how many people": {(sentence, TEXT)}}
    assert [known.values for known in value.answers.values()] == [(answer,)]


def test_spaces_are_those_of_print_in_the_simplified_form(tmp_path):
    tokens = """<P> `` Go ! '' , she said -lrb- for $ 5 , 10 % -RRB- : the dogs ' food ; I 'll n't [ 1 ] ... <p>
    is a tag <Br> We ` re' </P>""".split()
    whole, short = {"start_token": 0, "end_token": len(tokens)}, {"start_token": 2, "end_token": 3}
    annotation = {"long_answer": whole, "short_answers": [short], "yes_no_answer": "NONE"}
    record = {"example_id": "x", "question_text": "q", "document_text": " ".join(tokens), "annotations": [annotation]}
    value = natural_questions.read_nq([write(tmp_path / "a.jsonl", record)])
    expected = "\"Go!\", she said (for $5, 10%): the dogs' food; I'lln't [1]... <p> is a tag We 're'"
    assert {c.text for c in value.candidates} == {expected}


LIST_ITEM = (PLAIN.index("<Li>"), PLAIN.index("</Li>") + 1)


@pytest.mark.parametrize("form", [lambda record: record, simplified])
def test_what_is_left_out_is_counted_by_reason(tmp_path, caplog, form):
    records = [form(city(annotation, question=reason)) for reason, annotation in LEFT_OUT.items()]
    records += [form(city((LIST_ITEM, [words("Bob")], "NONE"), question="a list")), form(city(question="none"))]
    with caplog.at_level(logging.INFO):
        value = natural_questions.read_nq([write(tmp_path / "a.jsonl", *records, form(city(PEOPLE)))])
    assert list(value.queries.values()) == ["how many people"]
    for reason in LEFT_OUT:
        count = 2 if reason == "the long answer is not a paragraph" else 1
        assert f"left out {count} annotations: {reason}" in caplog.text


def test_every_annotation_counts_and_equal_questions_are_one(tmp_path):
    annotations = [LEFT_OUT["no long answer"], PEOPLE, (PARAGRAPH, [words("Dr.", "Who")], "NONE")]
    other = full_record("<P>Nobody knows.</P>", ["<P>", "Nobody", "knows", ".", "</P>"], [((0, 5), [(1, 2)], "NONE")])
    paths = [write(tmp_path / "a.jsonl", city(*annotations)), write(tmp_path / "b.jsonl.gz", simplified(other))]
    value = natural_questions.read_nq(paths)
    expected = {(SECOND, TEXT), (THIRD, TEXT), ("Nobody knows.", "Nobody knows.")}
    assert judged(value) == {"how many people": expected}
    assert (len(value.queries), len(value.candidates), sum(map(len, value.qrels["pair"].values()))) == (1, 4, 3)

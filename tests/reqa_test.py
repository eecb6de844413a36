"""ReQA: a tiny SQuAD file with candidates and judgements listed by hand, the published counts, and broken files."""

import copy
import json
import logging

import pytest
from support.nq_records import judged, write
from support.toy_squad import ONE, SQUAD, TWO

from retrieval.common.errors import UserError
from retrieval.data.sets import reqa
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.open_domain import extend
from retrieval.data.sets.set_format import Context

ROME, OLD, MAY = "Ann lives in Rome.", "She is old.", "She met Dr. Who in May."
BOB = "Bob is not."


@pytest.fixture
def tiny(tmp_path):
    return write(tmp_path / "tiny.json", SQUAD)


def test_candidates_queries_and_judgements(tiny):
    value = reqa.read_squad([tiny])
    assert value.name == "reqa"
    # ONE has "She is old." twice: once in the candidates.
    expected = [(ROME, ONE), (OLD, ONE), (MAY, ONE), (OLD, TWO), (BOB, TWO)]
    assert [(c.title, c.text) for c in value.candidates] == expected
    assert [c.id.split("-")[1] for c in value.candidates] == ["0", "1", "3", "0", "1"]
    pairs = {"Where?": {(ROME, ONE), (MAY, ONE), (BOB, TWO)}, "How is she?": {(OLD, ONE)}, "Where? ": {(MAY, ONE)}}
    assert judged(value, "pair") == pairs and list(value.queries.values()) == list(pairs)
    assert judged(value, "sentence") == pairs | {"How is she?": {(OLD, ONE), (OLD, TWO)}}
    assert {value.queries[query]: found.values for query, found in value.answers.items()} == {
        "Where?": ("Rome", "in Rome", "in May", "Bob", " Bob"),
        "How is she?": ("old",),
        "Where? ": ("Dr. Who",),
    }


def test_misplaced_answers(tmp_path, caplog):
    """'Rome' and 'May.' occur once: their places are sure. 'old' occurs twice, 'Paris' never: they are left out."""
    squad = copy.deepcopy(SQUAD)
    wrong = [("Rome", 40), ("Rome", -4), ("Rome", 10**9), ("May.", -4), ("old", 0), ("Paris", 0), ("", 3), (" ", 3)]
    questions = squad["data"][0]["paragraphs"][0]["qas"]
    questions[0]["answers"] = [{"text": text, "answer_start": start} for text, start in wrong]
    questions[1]["answers"] = questions[1]["answers"] + [{"text": "old", "answer_start": 1}]
    questions[2]["answers"] = [{"text": "Paris", "answer_start": 1}]
    with caplog.at_level(logging.WARNING):
        value = reqa.read_squad([write(tmp_path / "wrong.json", squad)])
    assert judged(value, "pair") == {"Where?": {(ROME, ONE), (MAY, ONE), (BOB, TWO)}, "How is she?": {(OLD, ONE)}}
    assert [found.values for found in value.answers.values()] == [("Rome", "May.", "Bob", " Bob"), ("old",)]
    # "Where? " lost its only answer, "Nowhere?" had none.
    assert "6 answers without a sure place" in caplog.text and "2 questions without an answer" in caplog.text


def test_counts_of_the_dev_file(shared_data):
    """Of train and dev they are the 97,888 queries of Chang et al., Table 2, and 101,957 candidates (101,951 there)."""
    value = reqa.read_squad([shared_data / "squad" / "dev-v1.1.json.gz"])
    assert (len(value.queries), len(value.candidates)) == (10_539, 10_250)


OPTIONS = {"sets.known_articles": False, "sets.reqa_sentences": False, "sets.distractors": 0}


def of_corpus(tiny, folder, *titles):
    lines = [json.dumps({"_id": str(number), "title": title, "text": "A b."}) for number, title in enumerate(titles)]
    (folder / "passages-0.jsonl").write_text("\n".join(lines))
    (value,) = reqa.SquadFiles().read(str(tiny), Context(OPTIONS | {"sets.known_articles": True}, folder, folder))
    return value


def test_only_articles_of_the_corpus_are_asked_about(tiny, tmp_path, caplog):
    value = of_corpus(tiny, tmp_path, "Elsewhere", "more")
    rest = {**SQUAD, "data": [article for article in SQUAD["data"] if article["title"] == "More"]}
    alone = reqa.read_squad([write(tmp_path / "more.json", rest)])
    assert (value.queries, value.candidates, value.qrels) == (alone.queries, alone.candidates, alone.qrels)
    assert "left out 1 of 2 articles, which the corpus does not have" in caplog.text
    with pytest.raises(UserError, match="not one question with an article that the corpus has"):
        of_corpus(tiny, tmp_path, "Elsewhere")


def test_candidates_can_be_sentences_alone(tiny, tmp_path):
    both = reqa.read_squad([tiny])
    (value,) = reqa.SquadFiles().read(str(tiny), Context(OPTIONS | {"sets.reqa_sentences": True}, tmp_path, tmp_path))
    assert [(c.id, c.title, c.text) for c in value.candidates] == [(c.id, "", c.title) for c in both.candidates]
    assert (value.queries, value.qrels, value.answers) == (both.queries, both.qrels, both.answers)
    with pytest.raises(UserError, match="goes without config"):
        reqa.SquadFiles().check(str(tiny), OPTIONS | {"sets.reqa_sentences": True, "sets.distractors": 3}, True)


PASSAGES = [
    Candidate("7:0", "Cats", "Cats sleep. Cats purr. Cats sleep."),
    Candidate("7:1", "Cats", "A cat has four legs."),
    Candidate("9:0", "Dogs", "Dogs bark. The answer is here."),
]
PAIRS = {
    ("corpus:7:0-0", "Cats sleep.", PASSAGES[0].text),
    ("corpus:7:0-1", "Cats purr.", PASSAGES[0].text),
    ("corpus:7:1-0", "A cat has four legs.", PASSAGES[1].text),
    ("corpus:9:0-0", "Dogs bark.", PASSAGES[2].text),
}


def one_pair():
    own = Candidate("c0", "The answer is here.", "The answer is here. So it is.")
    return RetrievalSet("reqa", {"q0": "where"}, [own], {"pair": {"q0": {"c0": 1}}})


def test_distinct_sentences_that_are_not_the_sets_own():
    value = extend(one_pair(), PASSAGES, 4, seed=0)
    assert next(iter(value.candidates)) == one_pair().candidates[0]
    assert {(c.id, c.title, c.text) for c in list(value.candidates)[1:]} == PAIRS
    assert (value.queries, value.qrels) == (one_pair().queries, one_pair().qrels)


def test_a_passage_of_the_set_or_with_a_query_gives_no_pair():
    own = Candidate("c0", "", PASSAGES[1].text)
    asked = RetrievalSet("s", {"q0": "Cats purr."}, [own], {"test": {"q0": {"c0": 1}}})
    (drawn,) = [c.title for c in list(extend(asked, PASSAGES, 2, seed=0).candidates)[1:] if c.title != "Dogs bark."]
    assert drawn == "The answer is here."

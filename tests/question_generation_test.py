"""Question generation: proposed answers, what is left out, and its files as labelled pairs."""

import importlib.util
import json

import numpy as np
import pytest
from support.tiny import execute, make_config, make_run
from support.toy_squad import SQUAD

from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.methods.writer import expansions, stage
from retrieval.methods.writer.answer_maker import MAKERS, Span, chosen
from retrieval.methods.writer.writer import WrittenText
from retrieval.pipeline import preflight, records

TEXT = (
    "The Norman king ruled. In 1066, William the Conqueror won the Battle of Hastings on 14 October 1066 with 7,000 "
    "men. "
    "Dr. Smith paid $1.2 million in the early 19th century for 35.5 % of U.S. territory. He was born in New York City. "
    "Today, it costs 3."
)
ANSWERS = [
    "Norman",
    "1066",
    "William the Conqueror",
    "Battle of Hastings",
    "14 October 1066",
    "7,000",
    "Dr. Smith",
    "$1.2 million",
    "early 19th century",
    "35.5 %",
    "U.S.",
    "New York City",
    "3",
]


def test_rules_propose_dates_numbers_and_names():
    (spans,) = MAKERS["rules"].spans([TEXT])
    assert chosen(TEXT, spans, 99, 0) == ANSWERS


def test_a_few_answers_are_drawn_by_the_seed():
    (spans,) = MAKERS["rules"].spans([TEXT])
    draws = [chosen(TEXT, spans, 3, seed) for seed in range(20)]
    assert draws[0] == chosen(TEXT, spans, 3, 0) and len({tuple(draw) for draw in draws}) > 10
    assert all(draw == [answer for answer in ANSWERS if answer in draw] and len(draw) == 3 for draw in draws)


def test_the_longest_of_overlapping_answers_stays():
    text = "ab cd ab CD"
    assert chosen(text, [Span(0, 2), Span(0, 5), Span(6, 8)], 9, 0) == ["ab cd", "ab"]
    assert chosen(text, [Span(0, 5), Span(6, 11)], 9, 0) == ["ab cd"]


def test_the_best_answers_come_before_others():
    text = "ab cd ef gh AB ij"
    others = [Span(0, 2), Span(6, 8), Span(9, 11), Span(15, 17)]
    best = [Span(3, 8), Span(6, 11), Span(12, 14), Span(15, 17)]
    assert chosen(text, others, 2, 0, best) == ["ab", "cd ef"]  # the second overlaps the first; the third reads as "ab"
    drawn = {tuple(chosen(text, others, 2, seed, best[:1])) for seed in range(20)}
    assert drawn == {("ab", "cd ef"), ("cd ef", "gh"), ("cd ef", "ij")}


@pytest.mark.skipif(importlib.util.find_spec("spacy") is not None, reason="spaCy is installed")
def test_spacy_that_is_missing_is_one_sentence():
    with pytest.raises(UserError, match=r"answers=spacy needs the package spacy, which is not installed: pip install"):
        MAKERS["spacy"].check()


def examples(path, **settings):
    with labelled_format.grouped([path], Settings("", "", "", 0)._replace(**settings), path.parent, 9) as (groups, _):
        return {group.query: group.positives for group in groups}


def test_squads_answers_stand_in_the_place_of_titles(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD))
    found = examples(path, format="squad_answers")
    for paragraph in (p for article in SQUAD["data"] for p in article["paragraphs"]):
        for question in paragraph["qas"]:
            if question["question"] in found and len(found[question["question"]]) == 1:
                (source,) = found[question["question"]]
                assert source.title == question["answers"][0]["text"] and source.text == paragraph["context"]
    assert found


class Fields:
    answers, queries, least_words = "rules", 9, 4


def test_short_passages_and_told_answers_are_left_out():
    passages = [Candidate("a", "T", "in 1066 William won 7,000 fights"), Candidate("b", "", "only 3 words")]
    texts = {"1066": "when was it?", "William": "who, if not William?", "7,000": "When was it"}
    asked = []

    def write(sources):
        asked.extend(sources)
        return [[WrittenText(texts[source.title], -1.0, False)] for source in sources]

    found = stage._questions(passages, write, Fields, 0)
    lines, counts = stage._judged(found, stage.Judges())
    assert [json.loads(line) for line in lines] == [
        {"_id": "a", "text": "when was it?", "answer": "1066", "log_probability": -1.0}
    ]
    assert [(source.title, source.text) for source in asked] == [(answer, passages[0].text) for answer in texts]
    told = {name: counts[name] for name in (stage.SHORT, stage.PROPOSED, stage.TOLD, stage.DUPLICATES)}
    assert list(told.values()) == [1, 3, 1, 1] and counts[stage.KEPT] == 1


def write_file(path, *documents, answer="p"):
    path.write_text("".join(expansions.to_line(expansions.Expansion(id, f"q {id}", -1.0, answer)) for id in documents))


def test_generated_questions_find_their_passages(tmp_path):
    for number, ids in enumerate(("ab", "cd")):
        lines = [json.dumps({"_id": id, "title": "", "text": f"p {id}"}) for id in ids]
        (tmp_path / f"passages-{number}.jsonl").write_text("\n".join(lines))
    path = tmp_path / "file"
    write_file(path, "b", "b", "d")
    settings = {"format": "generated", "collection": str(tmp_path)}
    found = {query: [text.text for text in texts] for query, texts in examples(path, **settings).items()}
    assert found == {"q b": ["p b"], "q d": ["p d"]}
    write_file(path, "b", answer="not there")
    with labelled_format.grouped([path], Settings("", "", "", 0)._replace(**settings), tmp_path, 9) as (groups, counts):
        assert not list(groups) and counts.left_out["questions whose answer is not in their passage"] == 1
    write_file(path, "b", "x")
    with pytest.raises(UserError, match=r"the passage 'x' is not in .*, or stands before another one there"):
        examples(path, **settings)
    with pytest.raises(UserError, match=r"set config\.pairs\.collection to a folder of passages"):
        examples(path, format="generated")


@pytest.mark.long
def test_towers_train_on_questions_that_a_run_wrote(inputs, prepared, tmp_path):
    """From SQuAD to questions of the corpus, and from these to towers."""
    changes = {"base": str(prepared), "corpus": "", "sets.reqa": "", "loop.validate_every": 0}
    asks = changes | {"pairs.files": str(inputs / "squad.json"), "generate.least_words": 3, "generate.way": "sample"}
    asks |= {"generate.collections": ("corpus",), "train.steps": 1}
    writer = make_run("question_generation", inputs, tmp_path / "questions", **asks)
    preflight.check(writer, writer.config.stages)
    execute(writer)
    counts = records.details(writer, "generate")["corpus"]
    assert counts[stage.PROPOSED] >= counts[stage.KEPT] > 16
    pairs = changes | {"pairs.files": str(writer.folder / "generated" / "corpus.jsonl"), "cluster.count": 2}
    pairs |= {"pairs.collection": str(prepared / "corpus"), "train.batch_size": 8, "mine.refresh_every": 2}
    run = make_run("proqa", inputs, tmp_path / "run", **pairs)
    preflight.check(run, ["sets", "pairs", "train"])
    execute(run, "sets", "pairs", "train")
    written = records.details(run, "pairs")
    # A tenth validates; a question that was written of two passages is one query with two positives.
    assert 0.8 * counts[stage.KEPT] < written["pairs"] < counts[stage.KEPT]
    assert (run.folder / "refreshed" / "00001").exists()


def kept_questions(*answers):
    passage = Candidate("a", "", "p")
    kept = [(passage, expansions.Expansion("a", f"q {answer}", -1.0, answer)) for answer in answers]
    return stage.Found(kept, stage.Counter({stage.KEPT: len(kept)}), [False] * len(kept))


def test_a_reader_has_to_find_the_answer_again():
    asked = []

    def answers(questions, passages):
        asked.append((list(questions), [passage.text for passage in passages]))
        return ["The Rome", "Bern", ""]

    lines, counts = stage._judged(kept_questions("Rome", "Paris", "x"), stage.Judges(answers))
    assert [json.loads(line)["answer"] for line in lines] == ["Rome"] and asked == [
        (["q Rome", "q Paris", "q x"], ["p"] * 3)
    ]
    assert (counts[stage.LOST], counts[stage.KEPT]) == (2, 1)


def test_a_reranker_scores_what_is_written(tmp_path):
    judges = stage.Judges(scores=lambda queries, passages: np.array([0.25, -1.5], np.float32))
    lines, _ = stage._judged(kept_questions("a", "b"), judges)
    (tmp_path / "file").write_text("".join(lines))
    assert [line.score for line in expansions.read(tmp_path / "file")] == [0.25, -1.5]
    (tmp_path / "file").write_text('{"_id": "a", "text": "b", "score": NaN}')
    with pytest.raises(UserError, match=r"line 1: not valid JSON \(NaN is no number of JSON\)"):
        list(expansions.read(tmp_path / "file"))


@pytest.mark.parametrize("field", ["reader", "proposer"])
def test_a_reader_needs_answers(field):
    config = make_config("doc2query", **{f"generate.{field}": "runs/reader"})
    with pytest.raises(UserError, match=rf"generate\.{field}=runs/reader is for the answers of questions"):
        preflight.check_settings(config, ["generate"])


def test_proposed_answers_are_asked_for():
    class Proposer:
        def spans(self, passages):
            return [[Span(passage.text.index("won"), passage.text.index("won") + 3)] for passage in passages]

    fields = make_config("question_generation", **{"generate.queries": 1}).generate
    asked = []

    def write(sources):
        asked.extend(source.title for source in sources)
        return [[WrittenText("who?", -1.0, False)] for _ in sources]

    stage._questions([Candidate("a", "", TEXT)], write, fields, 0, Proposer())
    assert asked == ["won"]

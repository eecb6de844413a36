"""Question generation: proposed answers, what is left out, and its files as labelled pairs."""

import json

import pytest

from retrieval.common.errors import UserError
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets.beir import Candidate
from retrieval.methods.writer import examples, stage
from retrieval.methods.writer.decoding import WrittenText
from retrieval.methods.writer.examples import MAKERS, chosen

TEXT = (
    "The Norman king ruled. In 1066, William the Conqueror won the Battle of Hastings on 14 October 1066 with 7,000. "
    "Dr. Smith paid $1.2 million in the early 19th century for 35.5 % of U.S. territory. He was born in New York City. "
    "Today, it costs 3."
)
ANSWERS = (
    "Norman|1066|William the Conqueror|Battle of Hastings|14 October 1066|7,000|Dr. Smith|$1.2 million|"
    "early 19th century|35.5 %|U.S.|New York City|3"
).split("|")


def test_rules_propose_dates_numbers_and_names():
    (spans,) = MAKERS["rules"]([TEXT])
    assert chosen(TEXT, spans, 99, 0) == ANSWERS


def test_a_few_answers_are_drawn_by_the_seed():
    (spans,) = MAKERS["rules"]([TEXT])
    draws = [chosen(TEXT, spans, 3, seed) for seed in range(20)]
    assert draws[0] == chosen(TEXT, spans, 3, 0) and len({tuple(draw) for draw in draws}) > 10
    assert all(draw == [answer for answer in ANSWERS if answer in draw] and len(draw) == 3 for draw in draws)


def labelled(path, **settings):
    """The positives of each query, and what is counted."""
    with labelled_format.grouped([path], Settings(**settings), path.parent, 9) as (groups, counts):
        return {group.query: [text.text for text in group.positives] for group in groups}, counts


class Fields:
    answers, queries = "rules", 9


def test_short_passages_and_told_answers_are_left_out(monkeypatch):
    monkeypatch.setattr(stage, "_WORDS", 4)
    passages = [Candidate("a", "T", "in 1066 William won 7,000 fights"), Candidate("b", "", "only 3 words")]
    texts = {"1066": "when was it?", "William": "who, if not William?", "7,000": "When was it"}
    asked = []

    def write(sources):
        asked.extend(sources)
        return [[WrittenText(texts[source.title], -1.0, False)] for source in sources]

    counts = stage.Counter()
    drafts = stage.kept(stage.questions(passages, write, Fields, 0, counts), counts)
    assert [json.loads(line) for line in stage.lines_of(drafts)] == [
        {"_id": "a", "text": "when was it?", "answer": "1066", "log_probability": -1.0}
    ]
    assert [(source.title, source.text) for source in asked] == [(answer, passages[0].text) for answer in texts]
    told = {name: counts[name] for name in (stage.SHORT, stage.PROPOSED, stage.TOLD, stage.DUPLICATES)}
    assert list(told.values()) == [1, 3, 1, 1] and counts[stage.KEPT] == 1


def write_file(path, *documents, answer="p"):
    path.write_text("".join(examples.to_line(examples.Expansion(id, f"q {id}", answer)) for id in documents))


def test_generated_questions_find_their_passages(tmp_path):
    for number, ids in enumerate(("ab", "cd")):
        lines = [json.dumps({"_id": id, "title": "", "text": f"p {id}"}) for id in ids]
        (tmp_path / f"passages-{number}.jsonl").write_text("\n".join(lines))
    path = tmp_path / "file"
    write_file(path, "b", "b", "d")
    settings = {"format": "generated", "collection": str(tmp_path)}
    assert labelled(path, **settings)[0] == {"q b": ["p b"], "q d": ["p d"]}
    write_file(path, "b", answer="not there")
    found, counts = labelled(path, **settings)
    assert not found and counts.left_out["questions whose answer is not in their passage"] == 1
    write_file(path, "b", "x")
    with pytest.raises(UserError, match=r"the passage 'x' is not in .*, or stands before another one there"):
        labelled(path, **settings)
    with pytest.raises(UserError, match=r"ids, whose texts are elsewhere: set config\.pairs\.collection"):
        labelled(path, format="generated")

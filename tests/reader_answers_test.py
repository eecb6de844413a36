"""What a reader gives: places in texts, spans of rows, which of them is the answer, and whether it is right."""

import collections
import math
import re
import string
import time
import unicodedata

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from flax import nnx
from support.modules import spread
from support.tiny_pairs import CONFIG

from retrieval.common.errors import UserError
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate, Judged
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.evaluation import exact_match
from retrieval.methods.reader import task
from retrieval.methods.reader.answer_stage import WEIGHTS, best_weight
from retrieval.methods.reader.model_and_loss import SpanReader
from retrieval.methods.reader.task import Retrieved, Rows
from retrieval.methods.reader.trained import Span, ranked
from retrieval.models.text import Text

PIECES = "the of in a red fox zurich 1895 1943 old dr . ( ) , ##s jose o ' neil cafe live what who".split()
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *PIECES])
TEXT = "The red fox (1895–1943) lives in Zürich. José O'Neil, of the Café; OLD Zu\u0308rich"


def test_tokens_of_an_answer_give_back_its_characters():
    making = Rows(VOCABULARY, 8, 40)
    row = making.of(making.begin("what fox"), Candidate("1", "old", TEXT))
    assert VOCABULARY.encode_with_places(TEXT)[0] == VOCABULARY.encode(TEXT)
    assert [VOCABULARY.tokens[id] for id in row.ids[:6]] == ["[CLS]", "what", "fox", "[SEP]", "old", "[SEP]"]
    for value in ("1943", "Zürich", "José O'Neil", "The"):
        (start, end), *_ = answers.places(answers.of_texts([value]), TEXT)
        assert row.characters_of(*row.tokens_of(start, end)) == (start, end)


def shards(tmp_path, questions):
    statistics = task.write(questions, Rows(VOCABULARY, 8, 20), tmp_path, 4)
    parse, paths = task.AnswerSpans().shards.parse, sorted(map(str, tmp_path.glob(task.PATTERN)))
    narrow = lambda record: {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in record.items()}  # noqa: E731
    return statistics, [narrow(parse(record)) for record in tf.data.TFRecordDataset(paths)]


PARAGRAPHS = [Candidate("1", "", "the old fox . the old fox"), Candidate("2", "", "in the red cafe the fox lives" * 5)]


def test_what_cannot_be_trained_on_is_counted_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(task, "MOST", 3)
    monkeypatch.setattr(answers, "_SECONDS", 0.2)
    slow = Answers(("(a+)+$",), True)
    endless = [Candidate("3", "", "a" * 60 + "!")]
    questions = [
        Retrieved("who", answers.of_texts(["fox", "the"]), PARAGRAPHS, [2.0, 1.0]),
        Retrieved("what", answers.of_texts(["nowhere"]), PARAGRAPHS, [2.0, 1.0]),
        Retrieved("what slow", slow, endless, [1.0]),
    ]
    began = time.perf_counter()
    told, records = shards(tmp_path, questions)
    assert time.perf_counter() - began < 10 and len(records) == told["questions"] == 1
    assert told["first"] == {task.WITHOUT: "what", task.SLOW: "what slow"}
    assert told[task.CUT] == 2 and told[task.BEHIND] > 0 and told[task.MORE] > 0
    with pytest.raises(UserError, match="no question has an answer in its paragraphs, of 1"):
        shards(tmp_path / "none", questions[1:2])


@pytest.mark.parametrize("most", [3, 7])
def test_every_paragraph_with_an_answer_keeps_a_span_where_there_is_room(most, monkeypatch):
    times = [3, 0, 1, 3, 2]
    paragraphs = [Candidate(str(n), "", " ".join(["fox old"] * count) or "red") for n, count in enumerate(times)]
    retrieved = Retrieved("who", answers.of_texts(["fox"]), paragraphs, [0.0] * 5)
    every = task.match(Rows(VOCABULARY, 8, 20), retrieved, collections.Counter())[1]
    monkeypatch.setattr(task, "MOST", most)
    counts = collections.Counter()
    kept = task.match(Rows(VOCABULARY, 8, 20), retrieved, counts)[1]
    assert [sum(paragraph == n for paragraph, *_ in every) for n in range(5)] == times
    assert len(kept) == min(most, 9) == 9 - counts[task.MORE]
    assert kept == [span for span in every if span in kept]  # in their order: all of them where there is room
    of_each = {3: [1, 0, 1, 1, 0], 7: [2, 0, 1, 2, 2]}[most]
    assert [sum(paragraph == n for paragraph, *_ in kept) for n in range(5)] == of_each
    assert counts[task.UNMARKED] == (most == 3)
    firsts = {paragraph: span for paragraph, *span in reversed(every)}
    assert all([paragraph, *firsts[paragraph]] in map(list, kept) for paragraph, *_ in kept)


def test_examples_have_the_paragraphs_that_are_drawn(tmp_path):
    texts = ["in the cafe", "the old fox", "red", "the fox"]
    paragraphs = [Candidate(str(i), "", text) for i, text in enumerate(texts)]
    _, (record,) = shards(tmp_path, [Retrieved("who", answers.of_texts(["fox"]), paragraphs, [4.0, 3.0, 2.0, 1.0])])
    lengths = {"paragraph": 3, "pair": 20, "spans": 4, "retrieved": 6}
    plain = task.example(record, tf.range(4), lengths)
    assert plain["spans"].numpy().tolist() == [[1, 5, 5], [-1] * 3, [-1] * 3, [-1] * 3]
    assert plain["retrieved"].numpy().tolist() == [4, 3, 2, 1, -math.inf, -math.inf]
    seen = set()
    for seed in range(12):
        order = task._positive_first(record, tf.constant([seed, 1]))
        drawn = task.example(record, order, lengths)
        assert drawn["paragraph"].numpy()[0] in (1, 3) and {*drawn["paragraph"].numpy()[1:]} == {0, 2}
        assert drawn["spans"].numpy()[0, 0] == 0
        seen.add(int(drawn["paragraph"].numpy()[0]))
    assert seen == {1, 3}
    few = task.example(record, tf.range(4), lengths | {"paragraph": 6})
    assert (few["pair"].numpy()[4:] == -1).all()


@pytest.mark.parametrize("widths", [0, 3])
def test_the_best_spans_are_those_of_a_loop(widths):
    model = spread(SpanReader(CONFIG, widths=widths, selects=True, rngs=nnx.Rngs(0)))
    ids = np.random.default_rng(0).integers(1, 30, (3, 9)).astype(np.int32)
    inside = np.array([[0, 0, 1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0, 0], [0] * 9], np.int32)
    pairs = Text.from_ids(jnp.asarray(ids), jnp.zeros((3, 9), jnp.int32))
    read = nnx.jit(lambda model, inside: (model(pairs, None), model.best(pairs, inside, 3, 4)))
    scores, found = jax.tree.map(np.asarray, read(model, jnp.asarray(inside)))
    np.testing.assert_allclose(found[:, 0], scores["select"], rtol=1e-5)
    for r in range(3):
        spans = [(i, j) for i in range(9) for j in range(i, min(i + 3, 9)) if inside[r, i] and inside[r, j]]
        if widths:
            of = {(i, j): scores["pairs"][r, i, j - i] for i, j in spans}
        else:
            of = {(i, j): scores["start"][r, i] + scores["end"][r, j] for i, j in spans}
        best = sorted(of, key=lambda span: -of[span])[:4]
        np.testing.assert_allclose(found[r, 1 : 1 + len(best)], [of[span] for span in best], rtol=1e-5)
        assert [(int(a), int(b)) for a, b in zip(found[r, 5:9], found[r, 9:13])][: len(best)] == best
        assert (found[r, 1 + len(best) : 5] < -1e29).all()


def official_words(text):
    """SQuAD's normalisation as its description has it, one step after the other."""
    text = "".join(c for c in unicodedata.normalize("NFD", text).lower() if c not in string.punctuation)
    return [word for word in re.split(r"\b(?:a|an|the)\b|\s", text) if word]


@pytest.mark.parametrize(
    ("given", "right"),
    [
        ("The Beatles", "beatles"),
        ("1,000 km", "1000 km"),
        ("old fox", "the fox fox"),
        ("José", "Jose\u0301"),
        ("the", "a"),
    ],
)
def test_exact_match_and_f1_follow_squads_rule(given, right):
    ours, theirs = official_words(given), official_words(right)
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    f1 = 2 * shared / (len(ours) + len(theirs)) if shared else 0
    found = exact_match.scores(given, ["zzz", right], False, "q")
    assert found == {"EM": float(ours == theirs), "F1": pytest.approx(f1)}


def test_regular_expressions_are_counted_both_ways():
    score = lambda answer, *patterns: tuple(exact_match.scores(answer, patterns, True, "q").values())  # noqa: E731
    assert score("Sept 5", "sept(ember)?", "x") == (1, 1)
    assert score("in Sept", "sept(ember)?") == (0, 1)
    assert score("May", "sept(ember)?") == (0, 0) and score("", ".*") == (0, 0)
    assert score("Cafe\u0301", "caf\xe9") == score("caf\xe9", "cafe\u0301") == score("caf\xe9", "caf.$") == (1, 1)


def test_a_pattern_that_never_ends_is_told(monkeypatch):
    monkeypatch.setattr(exact_match, "_SECONDS", 0.2)
    with pytest.raises(UserError, match="regular expression of the question 'who'"):
        exact_match.scores("a" * 60 + "!", ["(a+)+$"], True, "who")


def test_the_weight_is_the_best_on_validation_questions():
    span = lambda text, *scores: Span(text, 0, 0, 1, *scores)  # noqa: E731
    questions = [[span("right", 1.0, 0.0), span("wrong", 0.0, 3.0)], [span("wrong", 1.0, 0.0), span("right", 0.0, 0.2)]]
    judged = Judged("", {"q": ""}, [], {}, {}, {"q": answers.of_texts(["right"])})
    right = {w: sum(ranked(spans, w)[0].text == "right" for spans in questions) for w in WEIGHTS}
    best = max(w for w in WEIGHTS if right[w] == max(right.values()))
    assert best_weight([(judged, "q", spans) for spans in questions]) == best

"""What a reader gives: places in texts, spans of rows, which of them is the answer, and whether it is right."""

import collections
import json
import math
import re
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

from retrieval.data.sets import answers, nq_dev, orqa_split, qa, squad
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.evaluation import exact_match
from retrieval.methods.reader import span_shards, task
from retrieval.methods.reader.answer_choice import WEIGHTS, Span, best_weight, ranked
from retrieval.methods.reader.model import SpanReader
from retrieval.methods.reader.reader_rows import RowLengths, inside_paragraph, question_tokens, row_of
from retrieval.methods.reader.span_shards import Retrieved
from retrieval.models.text import Text
from retrieval.time_limit import TooSlowError

PIECES = "the of in a red fox zurich 1895 1943 old dr . ( ) , ##s jose o ' neil cafe live what who".split()
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *PIECES])
TEXT = "The red fox (1895–1943) lives in Zürich. José O'Neil, of the Café; OLD Zu\u0308rich"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("1943", ["1943"]),
        ("zürich", ["Zürich", "Zu\u0308rich"]),
        ("Jose\u0301 o'neil", ["José O'Neil"]),
        ("old", ["OLD"]),
        ("fox (1895", ["fox (1895"]),
        ("zur", []),
    ],
)
def test_answers_stand_where_their_tokens_do(value, wanted):
    found = answers.places(answers.of_texts([value]), TEXT)
    assert [TEXT[start:end] for start, end in found] == wanted


def test_patterns_stand_wherever_they_fit():
    found = answers.places(answers.of_patterns([r"\d{4}", "18.."], "here"), TEXT)
    assert [TEXT[start:end] for start, end in found] == ["1895", "1943"]


def test_tokens_of_an_answer_give_back_its_characters():
    lengths = RowLengths(8, 40)
    row = row_of(VOCABULARY, question_tokens(VOCABULARY, "what fox", lengths), Candidate("1", "old", TEXT), lengths)
    assert VOCABULARY.encode_with_places(TEXT)[0] == VOCABULARY.encode(TEXT)
    assert [VOCABULARY.tokens[id] for id in row.ids[:6]] == ["[CLS]", "what", "fox", "[SEP]", "old", "[SEP]"]
    for value in ("1943", "Zürich", "José O'Neil", "The"):
        (start, end), *_ = answers.places(answers.of_texts([value]), TEXT)
        assert row.characters_of(*row.tokens_of(start, end)) == (start, end)


def test_an_answer_keeps_the_accents_behind_its_last_letter():
    text = "the foxe\u0301 and the fox\u0302\u0301."
    ids, places = VOCABULARY.encode_with_places(text)
    assert ids == VOCABULARY.encode(text)
    held = [text[start:end] for start, end in places]
    assert "".join(held) == text.replace(" ", "") and "x\u0302\u0301" in held[-2]


def test_the_paragraph_is_between_the_last_two_separators():
    sep = VOCABULARY.sep_id
    rows = np.array([[2, 7, sep, 8, 8, sep, 0], [2, 7, sep, 9, sep, 8, sep], [2, 7, sep, sep, 0, 0, 0]])
    expected = [[0, 0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 1, 0], [0] * 7]
    np.testing.assert_array_equal(inside_paragraph(rows, sep), expected)


def shards(tmp_path, questions):
    statistics = span_shards.write(questions, VOCABULARY, tmp_path, 4, RowLengths(8, 20), 3)
    shards = task.AnswerSpans().shards
    paths = sorted(map(str, tmp_path.glob(span_shards.PATTERN)))
    features = shards.features()
    parse = lambda record: tf.io.parse_single_example(record, features)  # noqa: E731
    narrow = lambda record: {k: tf.cast(v, tf.int32) if v.dtype == tf.int64 else v for k, v in record.items()}  # noqa: E731
    return statistics, [narrow(parse(record)) for record in tf.data.TFRecordDataset(paths)]


PARAGRAPHS = [Candidate("1", "", "the old fox . the old fox"), Candidate("2", "", "in the red cafe the fox lives" * 5)]


def test_what_cannot_be_trained_on_is_counted_and_named(tmp_path, monkeypatch):
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
    assert told["first"] == {span_shards.WITHOUT: "what", span_shards.SLOW: "what slow"}
    assert told[span_shards.CUT] == 2 and told[span_shards.BEHIND] > 0 and told[span_shards.MORE] > 0
    with pytest.raises(UserError, match="no question has an answer in its paragraphs, of 1"):
        shards(tmp_path / "none", questions[1:2])


@pytest.mark.parametrize("most", [3, 5, 7, 50])
def test_every_paragraph_with_an_answer_keeps_a_span_where_there_is_room(most):
    times = [3, 0, 1, 3, 2]
    paragraphs = [Candidate(str(n), "", " ".join(["fox old"] * count) or "red") for n, count in enumerate(times)]
    retrieved = Retrieved("who", answers.of_texts(["fox"]), paragraphs, [0.0] * 5)
    match = lambda most, counts: span_shards.match(VOCABULARY, retrieved, RowLengths(8, 20), most, counts).spans  # noqa: E731
    counts = collections.Counter()
    every, kept = match(99, collections.Counter()), match(most, counts)
    assert [sum(paragraph == n for paragraph, *_ in every) for n in range(5)] == times
    assert len(kept) == min(most, 9) == 9 - counts[span_shards.MORE]
    assert kept == [span for span in every if span in kept]  # in their order: all of them where there is room
    of_each = {3: [1, 0, 1, 1, 0], 5: [2, 0, 1, 1, 1], 7: [2, 0, 1, 2, 2], 50: times}[most]
    assert [sum(paragraph == n for paragraph, *_ in kept) for n in range(5)] == of_each
    assert counts[span_shards.UNMARKED] == (most == 3)
    firsts = {paragraph: span for paragraph, *span in reversed(every)}
    assert all([paragraph, *firsts[paragraph]] in map(list, kept) for paragraph, *_ in kept)


def test_a_pattern_that_is_slow_in_a_candidate_leaves_out_its_question_alone(tmp_path):
    def slow():
        raise TooSlowError("too slow")

    known, scores = answers.of_texts(["fox"]), [2.0, 1.0]
    behind = lambda: span_shards.Compared([2, 3], [0, 1, 2], [2])  # noqa: E731
    questions = [
        Retrieved("slow", known, PARAGRAPHS, scores, slow),
        Retrieved("behind", answers.of_texts(["nowhere"]), PARAGRAPHS, scores, behind),
        Retrieved("none", known, PARAGRAPHS[:0], [], lambda: span_shards.Compared([2, 3], [], [])),
    ]
    told, records = shards(tmp_path, questions)
    assert told["first"] == {span_shards.SLOW: "slow", span_shards.WITHOUT: "none"} and len(records) == 1
    assert told[span_shards.DEEP] == 1 and told["candidates with an answer"] == 1


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
    assert not few["pair"].numpy()[4:].any()


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
    text = "".join(
        c for c in unicodedata.normalize("NFD", text).lower() if c not in set("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")
    )
    return [word for word in re.split(r"\b(?:a|an|the)\b|\s", text) if word]


CASES = [
    ("The Beatles", "beatles"),
    ("U.S.A.", "usa"),
    ("an apple, a day", "apple day"),
    ("1,000 km", "1000 km"),
    ("old red fox", "the red fox fox"),
    ("José", "Jose\u0301"),
    ("nothing", "all"),
    ("the", "a"),
]


@pytest.mark.parametrize(("given", "right"), CASES)
def test_exact_match_and_f1_follow_squads_rule(given, right):
    ours, theirs = official_words(given), official_words(right)
    shared = sum((collections.Counter(ours) & collections.Counter(theirs)).values())
    f1 = (
        2 * (shared / len(ours)) * (shared / len(theirs)) / (shared / len(ours) + shared / len(theirs)) if shared else 0
    )
    found = exact_match.scores(given, ["zzz", right], False, "q")
    assert found == {"EM": float(ours == theirs), "F1": pytest.approx(f1)}


def test_regular_expressions_are_counted_both_ways():
    score = lambda answer, *patterns: tuple(exact_match.scores(answer, patterns, True, "q").values())  # noqa: E731
    assert score("Sept 5", "sept(ember)?", "x") == (1, 1)
    assert score("in Sept", "sept(ember)?") == (0, 1)
    assert score("May", "sept(ember)?") == (0, 0) and score("", ".*") == (0, 0)
    assert score("Cafe\u0301", "caf\xe9") == score("caf\xe9", "cafe\u0301") == score("caf\xe9", "caf.$") == (1, 1)


def test_expressions_are_read_as_the_passages_search_reads_them():
    score = lambda answer, *patterns: tuple(exact_match.scores(answer, patterns, True, "q").values())  # noqa: E731
    assert score("Vichy", r"Marshal Philippe P\étain") == (0, 0)  # NFD would make \e of it, which is an error
    for answer in ("Marshal Philippe Pétain", unicodedata.normalize("NFD", "marshal philippe pétain")):
        assert score(answer, r"Marshal Philippe P\étain") == (1, 1)
    with pytest.raises(UserError, match=r"the question 'q': 'a\(' is no regular expression"):
        score("a", "a(")


def test_every_expression_of_curated_trec_is_scored(shared_data):
    queries, known = qa.read_questions(shared_data / "qa" / "curatedtrec" / "large2470-test.tsv")
    assert len(queries) > 600
    for id, found in known.items():
        exact_match.scores("Vichy", found.values, found.are_patterns, queries[id])


def test_a_pattern_that_never_ends_is_told(monkeypatch):
    monkeypatch.setattr(exact_match, "_SECONDS", 0.2)
    with pytest.raises(UserError, match="regular expression of the question 'who'"):
        exact_match.scores("a" * 60 + "!", ["(a+)+$"], True, "who")


def span(text, reader, retriever):
    return Span(text, 0, 0, 1, reader, retriever)


def test_spans_of_equal_text_are_one_answer_where_asked():
    spans = [span("Rome", 2.0, 1.0), span("Paris", 1.9, 5.0), span("the Paris!", 1.8, 3.0)]
    assert ranked(spans, 1.0)[0].text == "Rome" and ranked(spans, 0.5)[0].text == "Paris"
    best = ranked(spans, 1.0, sums=True)[0]
    assert best.text == "Paris" and best.reader == pytest.approx(math.log(math.exp(1.9) + math.exp(1.8)))


@pytest.mark.parametrize("sums", [False, True])
def test_a_weight_of_0_takes_the_best_span_of_the_chosen_passage(sums):
    spans = [span("Rome", 9.0, 1.0), span("Paris", 8.0, 1.0), span("Oslo", 8.5, 3.0), span("Paris", 2.0, 3.0)]
    assert [each.text for each in ranked(spans, 0.0, sums)[:2]] == ["Oslo", "Paris"]


def test_the_weight_is_the_best_on_validation_questions():
    questions = [[span("right", 1.0, 0.0), span("wrong", 0.0, 3.0)], [span("wrong", 1.0, 0.0), span("right", 0.0, 0.2)]]
    value = lambda number, text: float(text == "right")  # noqa: E731
    means = {w: np.mean([value(n, ranked(spans, w)[0].text) for n, spans in enumerate(questions)]) for w in WEIGHTS}
    weight, mean = best_weight(questions, value)
    assert mean == max(means.values()) and weight == max(w for w in WEIGHTS if means[w] == mean)


def test_orqas_division_has_the_published_counts(shared_data):
    folder = shared_data / "qa" / "webquestions"
    questions = [
        q for name in ("trainmodel", "val", "devtest") for q in qa.read_questions(folder / f"{name}.json")[0].values()
    ]
    is_dev = orqa_split.is_held_out(questions)
    ((name, published),) = orqa_split.published_for(len(questions)).items()
    assert name == "WebQuestions"
    assert abs(int(is_dev.sum()) - published.dev) <= 2 and abs(int((~is_dev).sum()) - published.train) <= 2


def test_nqs_dev_questions_are_known(shared_data):
    questions, _ = qa.read_questions(shared_data / "qa" / "nq_open" / "NQ-open.dev.jsonl")
    assert len(questions) == 3610 and all(map(nq_dev.asks, questions.values()))
    first = next(iter(questions.values()))
    assert nq_dev.asks(f" {first.upper()} ") and not nq_dev.asks(f"{first} twice")


def test_questions_of_squad_without_an_answer_in_place_are_counted(tmp_path):
    questions = [("who?", "fox", 4), ("what?", "eagle", 4), ("when?", "fox", 0)]
    asked = [{"id": q, "question": q, "answers": [{"text": a, "answer_start": at}]} for q, a, at in questions]
    asked[0]["answers"].append({"text": "The wolf", "answer_start": 0})
    asked.append({"id": "4", "question": "why?", "answers": [], "is_impossible": True})
    paragraph = {"context": "The fox.", "qas": asked}
    (tmp_path / "x.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    found = squad.read(tmp_path / "x.json")
    assert list(found.queries.values()) == ["who?", "when?"] and len(found.answers) == 2
    assert found.left_out == {
        "answers without a sure place in their paragraph, left out": 2,  # an eagle and a wolf
        "questions without an answer, left out": 2,
    }


def test_squad_is_read_with_its_paragraphs(shared_data):
    value = squad.read(shared_data / "squad" / "dev-v1.1.json.gz")
    assert (len(value.queries), len(value.candidates)) == (10_539, 2067)
    texts = {candidate.id: candidate.text for candidate in value.candidates}
    for id, grades in list(value.qrels[squad.RULE].items())[::500]:
        assert all(any(text in texts[gold] for text in value.answers[id].values) for gold in grades)

"""The division of questions into training, validation and test."""

import dataclasses
import hashlib

import pytest

from retrieval.common.errors import UserError
from retrieval.data.sets import splits
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.splits import by_files, split


def questions(count):
    """Question i is answered by candidate i, and by candidate i + 1 with the text of another rule."""
    queries = {f"q{i}": f"question {i}" for i in range(count)}
    candidates = [Candidate(f"c{i}", f"sentence {i}", f"passage {i}") for i in range(count + 1)]
    pair = {f"q{i}": {f"c{i}": 1} for i in range(count)}
    wide = {f"q{i}": {f"c{i}": 1, f"c{i + 1}": 1} for i in range(count)}
    return RetrievalSet("reqa", queries, candidates, {"pair": pair, "sentence": wide})


@pytest.mark.parametrize(("ratio", "sizes"), [(0.01, (9, 1, 990)), (0.05, (45, 5, 950)), (0.8, (720, 80, 200))])
def test_the_papers_ratios(ratio, sizes):
    value = questions(1000)
    test, training = split(value, ratio, 0.1, seed=0)
    assert (len(training.qrels["train"]), len(training.qrels["validation"]), len(test.queries)) == sizes
    sides = [set(training.qrels["train"]), set(training.qrels["validation"]), set(test.queries)]
    assert set.union(*sides) == set(value.queries) and sum(map(len, sides)) == 1000  # nobody is on two sides
    assert test.candidates == value.candidates  # everything is ranked, also what answers training questions


def test_training_keeps_only_the_first_rule():
    test, training = split(questions(10), 0.5, 0.2, seed=0)
    for query in test.queries:
        number = int(query[1:])
        assert test.qrels["pair"][query] == {f"c{number}": 1}
        assert test.qrels["sentence"][query] == {f"c{number}": 1, f"c{number + 1}": 1}
    judged = training.qrels["train"] | training.qrels["validation"]
    assert judged == {query: {f"c{query[1:]}": 1} for query in training.queries}
    assert {candidate.id for candidate in training.candidates} == {f"c{query[1:]}" for query in training.queries}


def test_training_has_each_question_of_a_set_once():
    """BEIR's train, dev and test; a question that is in two of them has the positives of both."""
    value = questions(12)
    parts = {"dev": range(4), "test": range(3, 8), "train": range(7, 12)}
    value.qrels.clear()
    value.qrels.update({part: {f"q{i}": {f"c{i}": 1, "c12": 0} for i in ids} for part, ids in parts.items()})
    value.qrels["test"]["q3"] = {"c0": 2}
    training = split(value, 0.9, 0.2, seed=0)[1]
    judged = training.qrels["train"] | training.qrels["validation"]
    expected = {f"q{i}": {f"c{i}": 1} for i in range(12)} | {"q3": {"c3": 1, "c0": 2}}
    assert judged == {id: expected[id] for id in training.queries} and {"q1", "q3", "q6", "q9"} & judged.keys()


def of_parts(**parts):
    """Questions by part; candidate i is right, and the next one is judged and wrong."""
    value = questions(20)
    value.queries["q19"] = " Question 0"
    judged = {part: {f"q{i}": {f"c{i}": 2, f"c{i + 1}": 0} for i in ids} for part, ids in parts.items()}
    return dataclasses.replace(value, qrels=judged)


def test_a_set_is_divided_by_its_own_files():
    """q2 is tested on and not validated on; q5 is validated on and not trained on; q19 asks what q0 does."""
    value = of_parts(train=range(5, 20), dev=range(2, 6), test=range(3), other=[3])
    test, training = by_files(value, "train", "dev", 0.1, seed=0)
    assert test.qrels == {name: value.qrels[name] for name in ("test", "other")}
    assert list(test.queries) == ["q0", "q1", "q2", "q3"] and test.candidates == value.candidates
    assert training.qrels["validation"] == {"q4": {"c4": 2}, "q5": {"c5": 2}}
    assert training.qrels["train"] == {f"q{i}": {f"c{i}": 2} for i in range(6, 19)}
    assert sorted(training.left_out.values()) == [2, 2]


def test_a_share_of_the_training_file_is_held_out_where_no_other_is_named():
    value = of_parts(train=range(5, 19), test=range(3))
    for seed in (0, 1):
        test, training = by_files(value, "train", "", 0.25, seed)
        assert (len(training.qrels["train"]), len(training.qrels["validation"])) == (10, 4)
        assert not training.qrels["train"].keys() & training.qrels["validation"].keys() and len(test.queries) == 3
    assert by_files(value, "train", "", 0.25, 0)[1].qrels != training.qrels
    with pytest.raises(UserError, match=r"set 'reqa': config\.split\.train=train leaves 14 .* and 0 to validate on"):
        by_files(value, "train", "", 0.01, 0)
    with pytest.raises(UserError, match="none of 0 questions that are left to test on"):
        by_files(dataclasses.replace(value, qrels={"train": value.qrels["train"]}), "train", "", 0.25, 0)


def test_equal_differences_are_ordered_by_the_hash_of_ids():
    """Published numbers hang on it."""
    value = questions(100)
    ids = sorted(value.queries, key=lambda id: hashlib.blake2b(f"3 {id}".encode(), digest_size=8).digest())
    test, training = split(value, 0.5, 0.1, 3)
    assert set(training.qrels["validation"]) == set(ids[:5]) and set(test.queries) == set(ids[50:])


def test_a_smaller_share_is_part_of_a_larger():
    """Training and validation questions together are: validation takes the first ones, also what few are trained on."""
    few, many = (split(questions(200), ratio, 0.1, 0)[1] for ratio in (0.05, 0.8))
    assert set(few.queries) < set(many.queries)
    assert set(few.qrels["train"]) < set(many.qrels["validation"])


def test_what_an_uncased_model_sees_alike_is_one_question():
    forms = ["When  did beyoncé? ", "WHEN DID BEYONCE\u0301?", "When did Beyonce?", "when did Beyoncé?"]
    assert set(map(splits.wording, forms)) == {"when did beyonce?"}


def test_questions_differing_in_space_or_case_are_one():
    value = questions(200)
    for i in range(100, 200):
        value.queries[f"q{i}"] = value.queries[f"q{i - 100}"].upper().replace(" ", "  ") + " "
    assert splits.wording("Café") == splits.wording("cafe") and splits.wording("ハス") != splits.wording("バス")
    for seed in range(3):
        test, training = split(value, 0.5, 0.2, seed)
        sides = [test.queries, *training.qrels.values()]
        wordings = [{splits.wording(value.queries[id]) for id in side} for side in sides]
        assert sum(map(len, sides)) == 200 and sum(map(len, wordings)) == 100  # a question and its like are on one side
    assert set(value.queries) == {*test.queries, *training.queries}  # and their texts are as they were
    assert all(test.queries[id] == value.queries[id] for id in test.queries)


def test_folds_test_on_every_question_once():
    value = questions(39)
    value.queries["q38"] = "Question 0"  # stays with the other one
    tested = []
    for fold in range(1, 6):
        test, training = split(value, 0.8, 0.1, 0, f"{fold}/5")
        assert training.queries.keys() | test.queries.keys() == value.queries.keys()
        assert {splits.wording(text) for text in training.queries.values()}.isdisjoint(
            map(splits.wording, test.queries.values())
        )
        assert 7 <= len(test.queries) <= 9 and len(training.qrels["validation"]) in (3, 4)
        tested += test.queries
    assert sorted(tested) == sorted(value.queries)
    with pytest.raises(UserError, match=r"config\.split\.fold=6/5 and .* 0 test of 39"):
        split(value, 0.8, 0.1, 0, "6/5")


def test_shares_that_leave_nothing():
    for ratio, parts in ((0.01, "1 train, 0 validation, 99 test of 100"), (0.999, "90 train, 10 validation, 0 test")):
        with pytest.raises(UserError, match=f"makes {parts}"):
            split(questions(100), ratio, 0.1, 0)

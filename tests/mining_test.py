"""Mined negatives against a naive reference: ranks, margins, positives by id and by text, ties."""

import numpy as np
import pytest

from retrieval.common.errors import UserError
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pairs.hard_negatives import Mining, Question, Searched
from retrieval.search.mining import Rule, mine


def naive(scores, rows, golds, others, texts, rule):
    """What may be drawn for a query, one result after the other."""
    gold_texts = {texts[gold] for gold in golds}
    results = [(score, row) for score, row in zip(scores, rows) if row != -1 and row not in others]
    positive_scores = [score for score, row in results if texts[row] in gold_texts]
    rank, seen, left = 0, set(), []
    for score, row in results:
        if texts[row] in gold_texts or texts[row] in seen:
            continue
        seen.add(texts[row])
        rank += 1
        if not rule.first <= rank <= rule.last:
            continue
        if rule.margin is not None or rule.relative_margin is not None:
            if not positive_scores:
                continue
            best = max(positive_scores)
            if score > best - (rule.margin or 0) or score > best - (rule.relative_margin or 0) * abs(best):
                continue
        left.append(row)
    return left


def draw_lists(random):
    """40 queries over 60 candidates, some of which have the same text; scores of few values, so that many tie."""
    texts_N = random.integers(0, 45, 60).astype(np.uint64)
    scores_QN = random.integers(-6, 7, (40, 60)).astype(np.float32) / 2
    rows_QK = np.argsort(-scores_QN, axis=1, kind="stable")[:, :25].astype(np.int32)
    scores_QK = np.take_along_axis(scores_QN, rows_QK, axis=1)
    for query, found in enumerate(random.integers(0, 26, 40)):  # an index may find fewer
        if query % 3 == 0:
            rows_QK[query, found:], scores_QK[query, found:] = -1, -np.inf
    golds = [random.integers(0, 60, random.integers(1, 4)).tolist() for _ in range(40)]
    others = [random.integers(0, 60, random.integers(0, 2)).tolist() for _ in range(40)]
    return scores_QK, rows_QK, golds, others, texts_N


def drawn(lists, rule, seed=(0,), **rest):
    """`mine` of what `draw_lists` gives."""
    *ranked, positives, others, texts_N = lists
    return mine(*ranked, positives=positives, others=others, texts_N=texts_N, rule=rule, seed=seed, **rest)


RULES = [
    Rule(count=5, first=1, last=10),
    Rule(count=30, first=4, last=25),
    Rule(count=30, first=1, last=25, margin=1.0),
    Rule(count=30, first=2, last=20, relative_margin=0.5),
    Rule(count=4, first=1, last=25, margin=0.5, relative_margin=0.3),
]


@pytest.mark.parametrize("rule", RULES)
def test_as_a_naive_loop(rule):
    for seed in range(5):
        lists = draw_lists(np.random.default_rng(seed))
        mined = drawn(lists, rule, (0, 0))
        for query, (scores, rows, golds, others) in enumerate(zip(*lists[:4])):
            left = naive(scores, rows, golds, others, lists[4], rule)
            assert mined.left_Q[query] == len(left)
            own = mined.rows[query].tolist()
            assert len(own) == min(rule.count, len(left))
            assert own == [row for row in left if row in own]  # of them, best first
            ranked = [row for row in rows if row != -1 and row not in others]
            ranks = [rank for rank, row in enumerate(ranked, 1) if lists[4][row] in lists[4][golds]]
            assert mined.rank_Q[query] == (ranks[0] if ranks else 0)


def test_results_of_equal_text_are_counted_down_to_the_last_rank():
    """Rows 1 and 3 have the text of the positive 0, and row 5 that of row 4; row 8 would be the fourth negative."""
    texts_N = np.array([7, 7, 1, 7, 2, 2, 3, 4, 4], np.uint64)
    rows_QK = np.array([[1, 0, 2, 3, 4, 5, 6, 8, 7]])
    lists = (np.zeros(rows_QK.shape, np.float32), rows_QK, [[0]], [[]], texts_N)
    assert [drawn(lists, Rule(9, first=1, last=last)).equal for last in (1, 2, 3, 4, 9)] == [1, 2, 3, 3, 4]
    whole = drawn(lists, Rule(9, first=1, last=9))
    assert whole.left_Q[0] + whole.equal + 1 == rows_QK.size


def test_what_the_margins_leave_out_is_counted():
    lists = draw_lists(np.random.default_rng(0))
    free, strict = (drawn(lists, rule, (0, 0)) for rule in (Rule(30, 1, 25), RULES[2]))
    assert free.too_close == 0 < strict.too_close == free.left_Q.sum() - strict.left_Q.sum()


def test_the_draw_depends_on_seed_and_query_number():
    lists = draw_lists(np.random.default_rng(1))
    rule = Rule(3, 1, 25)
    whole = drawn(lists, rule, (0, 1))
    part = drawn((*(values[30:] for values in lists[:4]), lists[4]), rule, (0, 1), start=30)
    assert all(np.array_equal(a, b) for a, b in zip(whole.rows[30:], part.rows, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(whole.rows, drawn(lists, rule, (0, 2)).rows))


@pytest.mark.parametrize("rule", RULES)
def test_passages_with_an_answer_are_no_negatives(rule):
    """It keeps its rank: nothing comes up from below, and the positive's own rank stays."""
    rng = np.random.default_rng(3)
    lists = draw_lists(rng)
    answered_QK = rng.random(lists[1].shape) < 0.3
    free, strict = drawn(lists, rule), drawn(lists, rule, answered_QK=answered_QK)
    count = 0
    for query, (scores, rows, golds, others) in enumerate(zip(*lists[:4])):
        left = naive(scores, rows, golds, others, lists[4], rule)
        kept = [row for row in left if not answered_QK[query][rows.tolist().index(row)]]
        count += len(left) - len(kept)
        assert strict.left_Q[query] == len(kept) and set(strict.rows[query].tolist()) <= set(kept)
        assert len(strict.rows[query]) == min(rule.count, len(kept))
    assert strict.answered == count > 0 == free.answered
    assert (strict.rank_Q == free.rank_Q).all() and strict.too_close == free.too_close


@pytest.mark.parametrize(("score", "left"), [(-0.49, 0), (-0.525, 1)])
def test_a_share_of_a_negative_score_goes_down(score, left):
    """Of -0.5 a twentieth is 0.025, and negatives score -0.525 at most."""
    lists = np.array([[score]]), np.array([[1]]), [[0]], [[]], np.arange(2)
    rule = Rule(1, 1, 1, relative_margin=0.05, top=True)
    assert drawn(lists, rule, compared_Q=np.array([-0.5])).left_Q.tolist() == [left]


class Texts(list):
    """Candidates of different texts, none of them blank."""

    blank = ()
    keys_N = np.arange(2, dtype=np.uint64)


def test_no_negative_at_all_is_an_error_unless_lone_questions_stay():
    questions, mining = [Question("q0", "who?", [0, 1], [], known=[0, 1])], Mining(Rule(2, 1, 2), answers=False, seed=0)
    lists = np.zeros((1, 2), np.float32), np.arange(2, dtype=np.int32)[None]
    arguments = mining, Searched(questions, Texts("ab"), ["who?"], lambda queries, k: lists)
    with pytest.raises(UserError, match=r"no question has a negative left, from 'q0' \(who\?\) on"):
        hard_negatives.mine(*arguments)
    mined = hard_negatives.mine(*arguments, keeps_lone=True)
    assert [row.tolist() for row in mined.rows] == [[]] and mined.counts["questions without any"] == 1

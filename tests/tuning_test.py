"""The tuner against a search through every setting, on recalls that are made up."""

import itertools

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.search import tuning
from retrieval.search.tuning import Choice, Setting, choose, draw, recalls

LEAVES, DEPTHS = [1, 2, 4, 8, 16, 32], [10, 20, 50]


def cost(setting):
    return setting.leaves * 10 + setting.reordered * 4


def constant(recall_of):
    """Every query has the same recall, so there is no margin to keep."""
    return lambda setting: np.full(400, recall_of(setting))


@pytest.mark.parametrize("seed", range(20))
def test_the_cheapest_of_all_settings_that_are_enough(seed):
    rng = np.random.default_rng(seed)
    by_leaves, by_depth = np.sort(rng.uniform(0.5, 1, len(LEAVES))), np.sort(rng.uniform(0.5, 1, len(DEPTHS)))
    table = {
        Setting(number, depth): min(by_leaves[i], by_depth[j])
        for (i, number), (j, depth) in itertools.product(enumerate(LEAVES), enumerate(DEPTHS))
    }
    target = rng.uniform(0.5, 0.9)
    enough = [setting for setting, recall in table.items() if recall >= target]
    choice = choose(constant(table.get), LEAVES, DEPTHS, cost, target)
    if enough:
        assert choice.enough and choice.setting in enough
        assert cost(choice.setting) == min(map(cost, enough))
    else:
        assert not choice.enough and choice.setting == Setting(32, 50)
    assert choice.recall == pytest.approx(table[choice.setting])


def test_tuned_recall_is_two_errors_above_target():
    def spread(setting):
        """Half of 400 queries at the mean - 0.2, half at the mean + 0.2: a standard error of 0.01."""
        mean = {1: 0.75, 2: 0.799, 4: 0.815, 8: 0.825, 16: 0.83, 32: 0.84}[setting.leaves]
        return mean + np.tile([-0.2, 0.2], 200)

    assert choose(spread, LEAVES, [10], cost, 0.8) == Choice(Setting(8, 10), pytest.approx(0.825), True)
    assert choose(spread, LEAVES, [10], cost, 0.83) == Choice(Setting(32, 10), pytest.approx(0.84), False)


def test_queries_weigh_as_much_as_they_have_results():
    """Of 20 results of one query all are found, of the other's one none: 20 of 21, not half."""
    exact = np.full((2, 20), -1)
    exact[0], exact[1, 0] = np.arange(20), 30
    sample = tuning.Sample(np.zeros((2, 1)), exact, np.full(2, -1))
    assert sample.weights.tolist() == [1, 1 / 20]
    found = sample.recalls(lambda queries, k: (None, np.tile(np.arange(20), (2, 1))))
    choice = choose(lambda setting: found, [1], [10], cost, 0.5, sample.weights)
    assert choice.recall == pytest.approx(20 / 21)


def test_the_margin_of_a_weighted_mean_is_that_of_repeated_draws():
    rng = np.random.default_rng(0)
    weights = rng.integers(1, 21, (2000, 400)) / 20
    values = rng.binomial(20, 0.7 + 0.2 * weights) / 20
    means = (values * weights).sum(1) / weights.sum(1)
    spread = 2 * means.std()
    for share, enough in ((1.1, True), (0.9, False)):
        choice = choose(lambda _: values[0], [1], [10], cost, means[0] - share * spread, weights[0])
        assert choice.enough == enough


def test_bisection_measures_few_settings():
    measured = []
    leaves = list(range(1, 1001))

    def measure(setting):
        measured.append(setting)
        return np.full(100, setting.leaves / 1000)

    assert choose(measure, leaves, [10, 20], cost, 0.5).setting == Setting(500, 10)
    assert len(measured) == len(set(measured)) <= 22


def test_recalls_by_hand():
    exact = np.array([[1, 2, 3, 4], [5, 6, -1, -1]])
    approximate = np.array([[4, 9, 1, 8], [5, -1, -1, -1]])
    assert recalls(exact, approximate).tolist() == [2 / 4, 1 / 2]
    with pytest.raises(ValueError, match="2 exact lists and 1"):
        recalls(exact, approximate[:1])


def ranked(queries, embeddings, k):
    return np.argsort(-(queries @ embeddings.T), axis=1, kind="stable")[:, :k]


def test_a_sample_of_the_queries(caplog):
    rng = np.random.default_rng(0)
    embeddings, queries = rng.normal(size=(500, 8)), rng.normal(size=(300, 8)).astype(np.float32)
    sample, again = draw(embeddings, queries, 120, 10), draw(embeddings, queries, 120, 10)
    places = [np.flatnonzero((queries == query).all(axis=1)).item() for query in sample.queries_SE]
    assert len(set(places)) == 120 and places == sorted(places) and places != list(range(120))
    np.testing.assert_array_equal(sample.exact_SK, ranked(sample.queries_SE, embeddings, 10))
    assert (sample.own_S == -1).all() and not caplog.text
    np.testing.assert_array_equal(sample.queries_SE, again.queries_SE)

    asked = []
    found = sample.recalls(lambda q, k: asked.append(k) or (None, ranked(q, embeddings[:250], k)))
    expected = [(exact < 250).mean() for exact in sample.exact_SK]
    np.testing.assert_allclose(found, expected)
    assert asked == [10]


@pytest.mark.parametrize("queries", [np.zeros((0, 0)), np.ones((99, 8))])
def test_few_queries_are_joined_by_candidates(queries, caplog):
    embeddings = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    sample = draw(embeddings, queries, 120, 10)
    assert f"{len(queries)} queries are too few" in caplog.text
    np.testing.assert_array_equal(sample.queries_SE, embeddings[sample.own_S])
    scores = sample.queries_SE @ embeddings.T
    scores[np.arange(120), sample.own_S] = -np.inf
    np.testing.assert_array_equal(sample.exact_SK, np.argsort(-scores, axis=1, kind="stable")[:, :10])

    def search(q, k):
        """All that there is; then nothing but the query itself and what comes after the best ten."""
        rows = ranked(q, embeddings, 500)
        rows[60:, :10] = -1
        rows[60:, 0] = sample.own_S[60:]
        return None, rows[:, :k]

    found = sample.recalls(search)
    assert (found[:60] == 1).all() and (found[60:] <= 0.1).all()


def test_as_many_results_as_candidates():
    embeddings = np.random.default_rng(0).normal(size=(6, 3))
    sample = draw(embeddings, np.zeros((0, 0)), 4, 100)
    assert sample.exact_SK.shape == (4, 5) and all(own not in rows for own, rows in zip(sample.own_S, sample.exact_SK))


def test_a_sample_that_cannot_be_drawn():
    embeddings = np.ones((200, 4), np.float32)
    with pytest.raises(UserError, match="3 dimensions and the candidates 4"):
        draw(embeddings, np.ones((200, 3)), 100, 10)
    with pytest.raises(UserError, match="200 of 200 query embeddings hold NaN"):
        draw(embeddings, np.full((200, 4), np.nan), 100, 10)
    assert tuning.draw(embeddings, embeddings, 1, 10).queries_SE.shape == (1, 4)

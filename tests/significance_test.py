"""Intervals, tests and corrections against scipy, all permutations, and examples by hand."""

import itertools

import numpy as np
import pytest
import scipy.stats

from retrieval.evaluation import significance


@pytest.mark.parametrize("n", [2, 3, 7, 200])
def test_students_t_is_scipys(n):
    values = np.random.default_rng(n).normal(0.3, 1, n).tolist()
    test = scipy.stats.ttest_1samp(values, 0)
    low, high = test.confidence_interval(0.95)
    assert significance.margin(values) == pytest.approx((high - low) / 2)
    assert significance.p_value(values) == pytest.approx(test.pvalue)


def test_values_without_spread():
    assert (significance.p_value([0.5, 0.5]), significance.p_value([0.0, 0.0])) == (None, 1)


def test_holm_by_hand():
    # Sorted 0.01, 0.02, 0.03, 0.04, times 4, 3, 2, 1: 0.04, 0.06, 0.06, 0.04, of which the last may not be below 0.06.
    assert significance.holm([0.03, 0.01, 0.04, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert significance.holm([0.5, 0.9]) == [1, 1] and significance.holm([]) == []
    assert significance.holm([0.02, 0.02, 0.3]) == pytest.approx([0.06, 0.06, 0.3])


def test_randomisation_of_few_questions_is_that_of_all_permutations():
    values = np.array([0.5, -0.25, 0.5, 0.0, 1 / 3, -0.2, 0.9, 0.5])
    sums = [abs(np.dot(signs, values)) for signs in itertools.product((-1, 1), repeat=len(values))]
    exact = np.mean([value >= abs(values.sum()) - 1e-9 for value in sums])
    assert significance.randomisation(values, samples=100_000) == pytest.approx(exact, abs=0.005)
    test = scipy.stats.permutation_test((values, np.zeros(8)), lambda a, b: (a - b).mean(), permutation_type="samples")
    assert test.pvalue == pytest.approx(exact)


@pytest.mark.parametrize(
    ("parts", "exact"), [([1 / 6] * 6 + [-1 / 3, 1 / 3], 0.1875), ([1 / 6] * 4 + [1 / 3, 1 / 3, -1 / 3], 0.21875)]
)
def test_sums_that_are_equal_but_for_rounding_count_as_extreme(parts, exact):
    """Thirds and sixths, as reciprocal ranks have them."""
    assert significance.randomisation(np.array(parts), samples=100_000) == pytest.approx(exact, abs=0.005)


def test_randomisation_is_the_same_every_time_and_both_ways():
    values = np.random.default_rng(0).normal(0.1, 1, 200)
    found = significance.randomisation(values)
    assert found == significance.randomisation(values) == significance.randomisation(-values)
    assert found != significance.randomisation(values, seed=1)
    assert significance.randomisation(np.zeros(10)) == 1  # systems that do not differ
    assert significance.randomisation(np.full(100, 0.5)) == pytest.approx(1 / 10_001)

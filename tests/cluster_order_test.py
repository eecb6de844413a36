"""How clusters become batches."""

import numpy as np
import pytest

from retrieval.methods.clusters import cluster_order
from retrieval.methods.clusters.cluster_order import Clustered


def pairs(sizes=(30, 12, 60), questions=3, seed=0):
    """Paragraphs in clusters of these sizes, with up to so many questions each."""
    random = np.random.default_rng(seed)
    cluster_N = random.permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int32)
    count_N = random.integers(1, questions + 1, len(cluster_N))
    return Clustered(cluster_N, random.permutation(np.repeat(np.arange(len(cluster_N)), count_N)))


def draw(name, batches=400, size=10, seed=1, of=None):
    of = of or pairs()
    return of, cluster_order.ORDERS[name](of, batches, size, np.random.default_rng(seed))


def test_the_papers_batches_have_one_cluster_and_distinct_paragraphs():
    of, rows = draw("paper")
    assert rows.shape == (400, 10) and set(rows.ravel()) == set(range(len(of.paragraph_M)))
    for batch in of.paragraph_M[rows]:
        assert len(set(of.cluster_N[batch])) == 1 and len(set(batch)) == 10


def test_clusters_count_by_their_pairs():
    of, rows = draw("paper", batches=4000)
    cluster_M = of.cluster_N[of.paragraph_M]
    found = np.bincount(cluster_M[rows[:, 0]]) / len(rows)
    np.testing.assert_allclose(found, np.bincount(cluster_M) / len(cluster_M), atol=0.03)


def test_a_small_cluster_is_drawn_with_repetition():
    _, rows = draw("paper", of=pairs(sizes=(4,)))
    assert rows.shape == (400, 10)


def test_the_authors_batches_repeat_an_epoch_of_all_pairs():
    of, rows = draw("authors")
    whole = len(of.paragraph_M) // 10
    assert len(set(rows[:whole].ravel())) == 10 * whole
    np.testing.assert_array_equal(rows[whole : 2 * whole], rows[:whole])
    of_clusters = [len(set(of.cluster_N[of.paragraph_M[batch]])) for batch in rows[:whole]]
    assert sorted(of_clusters)[-3:] == [1, 2, 2] or sorted(of_clusters)[-2:] == [1, 2]  # a batch at each border


def test_the_authors_order_keeps_questions_of_a_paragraph_apart():
    of, rows = draw("authors")
    twice = sum(len(set(batch)) < 10 for batch in of.paragraph_M[rows[: len(of.paragraph_M) // 10]])
    assert twice <= 6  # where one round ends and the next begins: two borders a cluster


@pytest.mark.parametrize("name", cluster_order.ORDERS)
def test_batches_depend_on_the_seed_alone(name):
    np.testing.assert_array_equal(draw(name)[1], draw(name)[1])
    assert not np.array_equal(draw(name)[1], draw(name, seed=2)[1])


def test_small_clusters_join_their_neighbour():
    """Of four on a line, the two small ones join what is next to them; an empty one vanishes."""
    cluster_N = np.repeat([0, 1, 2, 4], [20, 3, 20, 2])
    centroids = np.array([[0.0], [1.0], [10.0], [5.0], [8.5]])
    found = cluster_order.merge_small(cluster_N, centroids, least=5)
    np.testing.assert_array_equal(found, np.repeat([0, 0, 1, 1], [20, 3, 20, 2]))


def test_two_small_clusters_can_be_enough_together():
    """The mean of the joined ones counts from then on: by itself the third is nearer to the second."""
    cluster_N = np.repeat([0, 1, 2, 3], [3, 3, 9, 9])
    found = cluster_order.merge_small(cluster_N, np.array([[0.0], [1.0], [5.0], [-9.0]]), least=6)
    np.testing.assert_array_equal(found, np.repeat([0, 0, 1, 2], [3, 3, 9, 9]))


def test_clusters_that_are_all_too_small_become_one():
    found = cluster_order.merge_small(np.arange(6), np.arange(6.0)[:, None], least=10)
    np.testing.assert_array_equal(found, np.zeros(6))

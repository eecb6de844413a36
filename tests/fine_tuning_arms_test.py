"""What `benchmarks.fine_tuning` chooses by and reports, without a model: schedules, batches, metrics and tables."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.fine_tuning import table
from benchmarks.fine_tuning.train import (
    DEPTH,
    Collection,
    Sizes,
    ndcg,
    optimizer,
    recall,
    with_schedule,
)
from retrieval.evaluation import metrics
from retrieval.training.optimizer import make_optimizer

QUERIES, CANDIDATES = 20, 150


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    """Twenty queries with up to six graded positives each, in five folds; candidates 0 and 1 have one text."""
    random = np.random.default_rng(0)
    rows = [(q, c, random.integers(1, 3)) for q in range(QUERIES) for c in random.permutation(CANDIDATES)[: 1 + q % 6]]
    lists = np.stack([random.permutation(CANDIDATES)[:DEPTH] for _ in range(QUERIES)])
    lists[3, 40:] = -1  # BM25 found no more
    arrays = {"qrels_all": np.array(rows, np.int32), "folds": np.arange(QUERIES) % 5}
    arrays |= {"texts": np.maximum(np.arange(CANDIDATES), 1), "bm25_rows": lists.astype(np.uint16)}
    arrays["bm25_scores"] = -np.sort(-random.random(lists.shape), axis=1).astype(np.float32)
    for name, count in (("queries", QUERIES), ("candidates", CANDIDATES)):
        arrays[f"{name}_lengths"] = np.full(count, 5, np.uint16)
        arrays[name] = random.integers(1, 9, 5 * count).astype(np.uint16)
    path = tmp_path_factory.mktemp("sets") / "toy.npz"
    np.savez(path, **arrays)
    return Collection(path, Sizes(query_length=8, length=4))


def test_a_schedule_in_the_state_is_that_of_the_program():
    params = {"kernel": jnp.ones((3, 4)), "bias": jnp.ones(4)}
    ours, theirs = optimizer(), make_optimizer(learning_rate=3e-3, steps=20, warmup_ratio=0.1, clip_norm=1.0)
    state, other, moved, expected = with_schedule(ours.init(params), 3e-3, 20), theirs.init(params), params, params
    for step in range(20):
        gradient = jax.tree.map(lambda x: jax.random.normal(jax.random.key(step), x.shape), params)  # noqa: B023
        update, state = ours.update(gradient, state, moved)
        moved = optax.apply_updates(moved, update)
        update, other = theirs.update(gradient, other, expected)
        expected = optax.apply_updates(expected, update)
    jax.tree.map(np.testing.assert_array_equal, moved, expected)
    assert abs(moved["kernel"] - 1).max() > 1e-3


def test_metrics_are_those_of_the_program(collection):
    queries, rows = np.arange(QUERIES), collection.bm25[0]
    names = [list(map(str, range(count))) for count in (QUERIES, CANDIDATES)]
    qrels = {q: {str(c): int(collection.grades[int(q), c]) for c in collection.positives(int(q))} for q in names[0]}
    expected = metrics.per_query(rows, *names, qrels, table.METRICS)
    np.testing.assert_allclose(ndcg(collection, queries, rows), expected["nDCG@10"])
    np.testing.assert_allclose(recall(collection, queries, rows), expected["R@100"])

"""What `benchmarks.fine_tuning` chooses by and reports, without a model: schedules, batches, metrics and tables."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from benchmarks.fine_tuning import table
from benchmarks.fine_tuning.train import (
    DEPTH,
    Collection,
    Examples,
    Sizes,
    coded,
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


def test_folds_test_every_query_once_and_no_text_is_too_long(collection):
    assert sorted(np.concatenate([split.test for split in collection.splits])) == list(range(QUERIES))
    for split in collection.splits:
        assert sorted(np.concatenate(split)) == list(range(QUERIES))
    assert collection.queries.shape == (QUERIES, 8) and collection.candidates.shape == (CANDIDATES, 4)


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


def test_no_positive_of_a_query_is_its_negative(collection):
    train = collection.splits[0].train
    batch = Examples(collection, train, 0, seed=1).batch(16, 1)
    for place, (document,) in enumerate(batch["document_id"]):
        known = set(batch["positive_ids"][place].tolist())
        assert document in known and known <= set(batch["document_id"].ravel().tolist())
    again = Examples(collection, train, 0, seed=1).batch(16, 1)
    jax.tree.map(np.testing.assert_array_equal, batch, again)
    negatives = {query: np.array([149 - query]) for query in range(QUERIES)}
    mined = Examples(collection, train, 1, seed=1, negatives=negatives).batch(8, 3)
    assert (mined["document_id"][:, 1] >= 149 - QUERIES).all()
    np.testing.assert_array_equal(mined["document_id"][:, 2], mined["document_id"][:, 0])  # there is one negative alone


def test_metrics_are_those_of_the_program(collection):
    queries, rows = np.arange(QUERIES), collection.bm25[0]
    names = [list(map(str, range(count))) for count in (QUERIES, CANDIDATES)]
    qrels = {q: {str(c): int(collection.grades[int(q), c]) for c in collection.positives(int(q))} for q in names[0]}
    expected = metrics.per_query(rows, *names, qrels, table.METRICS)
    np.testing.assert_allclose(ndcg(collection, queries, rows), expected["nDCG@10"])
    np.testing.assert_allclose(recall(collection, queries, rows), expected["R@100"])


def test_a_table_compares_with_the_model_before(collection):
    """The arm 'in-batch' ranks positives first in two whole seeds; a third seed has one fold and does not count."""
    best = np.argsort(-collection.grades, axis=1, kind="stable")[:, :DEPTH]

    def record(arm, queries, rows, **more):
        lists = {"rows": coded(rows, np.uint16), "scores": coded(collection.bm25[1][queries], np.float32)}
        return {"kind": "test", "set": "toy", "arm": arm, "queries": queries.tolist(), **lists, **more}

    everything = np.arange(QUERIES)
    records = [record("start", everything, collection.bm25[0])]
    for seed, fold in [(1, f) for f in range(5)] + [(2, f) for f in range(5)] + [(3, 0)]:
        queries = collection.splits[fold].test
        records.append(record("in-batch", queries, best[queries], seed=seed, fold=fold, step=50 * seed))
    found = table.systems(collection, list(map(json.loads, map(json.dumps, records))))
    assert found["in-batch"].values["nDCG@10"].shape == (2, QUERIES)
    np.testing.assert_allclose(found["in-batch"].values["nDCG@10"], 1)
    text = table.table({"toy": found})
    row = next(line for line in text.splitlines() if "fine-tuned" in line)
    assert "100.00 ± 0.00" in row and "< 0.001" in row
    start = 100 * found["start"].values["nDCG@10"].mean()
    assert f"+{100 - start:.2f} [" in row and f"| {start:.2f} |" in text
    low, high = table.interval(np.array([0.0, 2.0] * 50))
    assert low == pytest.approx(0.8, abs=0.05) and high == pytest.approx(1.2, abs=0.05)

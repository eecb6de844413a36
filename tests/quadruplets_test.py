"""The quadruplet loss against loops in float64."""

import jax
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh

from retrieval.methods.quadruplets.loss import Quadruplet, distance

CASES = [
    dict(margin=0.3),
    dict(margin=0.0),
    dict(margin=0.3, hinges="sum"),
    dict(margin=0.3, hinges="sum", hard_margin=0.7),
    dict(margin=0.3, hinges="chain", hard_margin=0.1),
    dict(margin=0.3, hinges="triplets", hard_margin=0.1),
    dict(margin=0.3, batch_sum=True),
]


def batch(B=16, K=3, E=4, seed=0):
    """Every fourth hard slot is empty: it has the positive's id."""
    random = np.random.default_rng(seed)
    ids = np.arange(B * K).reshape(B, K)
    ids[::4, 2:] = ids[::4, :1]
    return random.normal(size=(B, E)), random.normal(size=(B, K, E)), {"document_id": ids}


def by_loops(query, document, batch, margin, hinges="max", hard_margin=None, batch_sum=False):
    """The loss of each example, one at a time."""
    hard_margin = margin if hard_margin is None else hard_margin

    def far(x, y):
        return 1 - x @ y / np.linalg.norm(x) / np.linalg.norm(y)

    losses = []
    for q, (p, *negatives), ids in zip(query, document, batch["document_id"]):
        n, h = negatives[0], negatives[-1]
        simple = max(far(q, p) - far(q, n) + margin, 0)
        if len(negatives) == 1 or ids[2] == ids[0]:
            losses.append(simple)
        elif hinges == "chain":
            losses.append(max(far(q, p) - far(q, h) + hard_margin, 0) + max(far(q, h) - far(q, n) + margin, 0))
        elif hinges == "triplets":
            losses.append(max(far(q, p) - far(q, h) + hard_margin, 0) + simple)
        else:
            hard = max(far(q, p) - far(h, n) + hard_margin, 0)
            losses.append(max(simple, hard) if hinges == "max" else simple + hard)
    return np.array(losses) * (len(losses) if batch_sum else 1)


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("K", [2, 3])
def test_the_loss_is_that_of_the_loops(options, K):
    arrays = batch(K=K)
    np.testing.assert_allclose(Quadruplet(**options)(*arrays)[0], by_loops(*arrays, **options), rtol=1e-5, atol=1e-6)


def test_the_loss_is_the_same_on_eight_devices():
    query, document, ids = batch()

    def both(params, batch):
        def total(query):
            loss, metrics = Quadruplet(0.3)(query, batch["document"], batch)
            return loss.sum(), metrics

        return jax.value_and_grad(total, has_aux=True)(batch["query"] * params)

    arrays = {"query": query.astype(np.float32), "document": document.astype(np.float32), **ids}
    assert_same_on_any_mesh(both, np.float32(1), arrays)


def test_metrics_are_the_means_of_distances_and_active_hinges():
    query, document, ids = batch()
    metrics = Quadruplet(0.3)(query, document, ids)[1]
    q, p, n, h = query, *document.transpose(1, 0, 2)
    has_hard = ids["document_id"][:, 2] != ids["document_id"][:, 0]
    np.testing.assert_allclose(metrics["distance_hard"].mean(), distance(h, n)[has_hard].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["distance_simple"], distance(q, n))
    assert set(np.unique(metrics["active"])) <= {0, 0.5, 1}
    nearer = (distance(q, p) < distance(q, n)) & (~has_hard | (distance(q, p) < distance(q, h)))
    np.testing.assert_array_equal(metrics["recall@1"], nearer)

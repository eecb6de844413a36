"""The quadruplet loss against loops in float64, and what two towers do with it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh

from configs import laptop
from retrieval.errors import UserError
from retrieval.methods.quadruplets.loss import distance, quadruplet
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.recipe import build_model, recipe_of
from retrieval.training.collapse import DISTANCES, Collapse
from retrieval.training.objectives.margins import triplet

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
    np.testing.assert_allclose(quadruplet(*arrays, **options)[0], by_loops(*arrays, **options), rtol=1e-5, atol=1e-6)


def test_each_branch_of_both_maxima_occurs():
    query, document, _ = batch(B=64)
    q, p, n, h = query, *document.transpose(1, 0, 2)
    simple, hard = (distance(q, p) - distance(q, n) + 0.3, distance(q, p) - distance(h, n) + 0.3)
    cases = zip(np.sign(simple).tolist(), np.sign(hard).tolist(), (simple > hard).tolist())
    assert set(cases) == {(1, 1, True), (1, 1, False), (1, -1, True), (-1, 1, False), (-1, -1, True), (-1, -1, False)}


@pytest.mark.parametrize("K", [2, 3])
def test_the_loss_is_the_same_on_eight_devices(K):
    query, document, ids = batch(K=K)

    def both(params, batch):
        def total(query):
            loss, metrics = quadruplet(query, batch["document"], batch, margin=0.3)
            return loss.sum(), metrics

        return jax.value_and_grad(total, has_aux=True)(batch["query"] * params)

    arrays = {"query": query.astype(np.float32), "document": document.astype(np.float32), **ids}
    assert_same_on_any_mesh(both, np.float32(1), arrays)


def test_an_empty_hard_slot_leaves_the_triplet_loss():
    query, document, ids = batch()
    ids["document_id"][:, 2] = ids["document_id"][:, 0]
    with_slot = quadruplet(query, document, ids, margin=0.3)[0]
    without = quadruplet(query, document[:, :2], {"document_id": ids["document_id"][:, :2]}, margin=0.3)[0]
    np.testing.assert_array_equal(with_slot, without)
    unit = [array / np.linalg.norm(array, axis=-1, keepdims=True) for array in (query, document)]
    scores = np.einsum("be,bke->bk", unit[0], unit[1][:, :2])
    known = triplet(jnp.asarray(scores), {"document_id": ids["document_id"][:, :2]}, margin=0.3)[0]
    np.testing.assert_allclose(with_slot, known, atol=1e-6)


def test_only_the_worse_hinge_moves_a_hard_negative():
    query, document, ids = batch(B=64)
    grad = jax.grad(lambda d: quadruplet(query, d, ids, margin=0.3)[0].sum())(document)
    q, p, n, h = query, *document.transpose(1, 0, 2)
    positive, has_hard = distance(q, p), ids["document_id"][:, 2] != ids["document_id"][:, 0]
    simple, hard = positive - distance(q, n) + 0.3, positive - distance(h, n) + 0.3
    moves = np.abs(grad[:, 2]).sum(axis=1) > 0
    np.testing.assert_array_equal(moves, has_hard & (np.asarray(hard) > np.maximum(simple, 0)))


def test_distances_are_0_to_2_and_1_for_zeros():
    random = np.random.default_rng(0).normal(size=(50, 4))
    np.testing.assert_allclose(distance(random, random), 0, atol=1e-6)
    np.testing.assert_allclose(distance(random, -random), 2, atol=1e-6)
    zero = jnp.zeros((1, 4))
    np.testing.assert_array_equal(distance(zero, random[:1]), 1)
    assert np.isfinite(jax.grad(lambda x: distance(x, random[:1]).sum())(zero)).all()


def test_metrics_are_the_means_of_distances_and_active_hinges():
    query, document, ids = batch()
    metrics = quadruplet(query, document, ids, margin=0.3)[1]
    q, p, n, h = query, *document.transpose(1, 0, 2)
    has_hard = ids["document_id"][:, 2] != ids["document_id"][:, 0]
    np.testing.assert_allclose(metrics["distance_hard"].mean(), distance(h, n)[has_hard].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["distance_simple"], distance(q, n))
    assert set(np.unique(metrics["active"])) <= {0, 0.5, 1}
    nearer = (distance(q, p) < distance(q, n)) & (~has_hard | (distance(q, p) < distance(q, h)))
    np.testing.assert_array_equal(metrics["recall@1"], nearer)


def test_four_documents_are_refused():
    query, document, ids = batch(K=4)
    with pytest.raises(UserError, match=r"an example here has 4 documents: set config.data.negatives=2"):
        quadruplet(query, document, ids)


def tower_config(**changes):
    config = laptop.defaults()
    config.model.update(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=0, dropout=0.0)
    config.model.update(pooling="mean", tied=True, normalize=True)
    config.data.update(query_length=8, document_length=8, negatives=2)
    config.train.update(loss="quadruplet", margin=0.1, batch_size=4, temperature=1.0)
    config.update_from_flattened_dict(changes)
    return config


def test_one_tower_reads_the_four_sides_in_one_call(monkeypatch):
    config = tower_config()
    recipe, model = recipe_of(config), build_model(config, 50)
    random = np.random.default_rng(0)
    arrays = {"query": random.integers(1, 50, (4, 8)), "document": random.integers(1, 50, (4, 3, 8))}
    arrays |= {f"{side}_types": 0 * value for side, value in arrays.items()}
    arrays = jax.tree.map(jnp.asarray, {**arrays, "document_id": np.arange(12).reshape(4, 3)})

    shapes, encode = [], TwoTower.encode_queries

    def noted(self, text, key):
        shapes.append(text.ids_RL.shape)
        return encode(self, text, key)

    monkeypatch.setattr(TwoTower, "encode_queries", noted)

    def of(batch):
        return jax.jit(recipe.objective(bind(model)))(parameters_of(model), batch, jax.random.key(0))[0]

    cut = {name: jnp.pad(arrays[name][..., :6], ((0, 0), (0, 2))) for name in ("query", "query_types")}
    arrays |= cut
    apart = arrays | {name: value[..., :6] for name, value in cut.items()}  # of another length: two calls
    np.testing.assert_allclose(of(arrays), of(apart), rtol=1e-5)
    assert shapes == [(16, 8), (4, 6)]


def test_cosines_take_embeddings_of_length_1():
    with pytest.raises(UserError, match=r"config\.model\.normalize=True, which"):
        recipe_of(tower_config(**{"model.normalize": False})).check()


def test_how_often_quadruplets_are_drawn_is_not_known():
    changes = {"data.rates.quadruplets": 1.0, "train.loss": "in_batch_softmax", "train.margin": 1.0}
    with pytest.raises(UserError, match=r"config\.train\.log_q=True .*rates\.quadruplets=1 .*set .*log_q=False"):
        recipe_of(tower_config(**changes)).check()
    recipe_of(tower_config(**changes, **{"train.log_q": False})).check()
    recipe_of(tower_config(**{"data.rates.quadruplets": 1.0})).check()  # whose loss corrects for nothing


def test_distances_near_0_end_the_run():
    watched = Collapse(lambda step, metrics: None, DISTANCES, steps=100, warmup=10)
    watched(5, {"distance_positive": 0.0, "distance_simple": 0.5})
    for step in range(10, 30, 5):
        watched(step, {"distance_positive": 1e-5, "distance_simple": 1e-4})
        watched(step, {"validation/RR": 0.1})
    with pytest.raises(
        UserError, match=r"step 30: the distances .* near 0 since step 10: all texts have one embedding"
    ):
        watched(30, {"distance_positive": 1e-5, "distance_simple": 1e-4})


@pytest.mark.parametrize("resumed", [10, 20, 25])
def test_a_run_that_goes_on_ends_where_it_would_have_ended(resumed):
    """The lines before tell since when the distances are near 0."""
    lines = [(5, {"distance_positive": 0.5}), *((step, {"distance_positive": 1e-5}) for step in range(10, 31, 5))]
    before = [line for line in lines if line[0] <= resumed]
    watched = Collapse(lambda step, metrics: None, DISTANCES, steps=100, warmup=10, before=before)
    with pytest.raises(UserError, match=r"step 30: the distances .* near 0 since step 10"):
        for step, metrics in lines[len(before) :]:
            watched(step, metrics)

"""CoSENT and the squared error of cosines: against loops in float64, finite differences, and any mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh
from support.modules import assert_finite_differences

from retrieval.common.errors import UserError
from retrieval.training.objectives.scored_pairs import CoSENT, CosineMSE


def batch(B=16, E=5, seed=0):
    """Scores with ties, as those of people are."""
    random = np.random.default_rng(seed)
    query, document = random.normal(size=(2, B, E)).astype(np.float32)
    return query, document[:, None], (random.integers(0, 5, (B, 1)) / 4).astype(np.float32)


def cosines(query, document):
    query, document = np.asarray(query, np.float64), np.asarray(document, np.float64)[:, 0]
    return (query * document).sum(1) / np.linalg.norm(query, axis=1) / np.linalg.norm(document, axis=1)


def cosent_by_loops(query, document, score, temperature):
    cosine = cosines(query, document)
    terms = [
        np.exp((cosine[i] - cosine[j]) / temperature)
        for i in range(len(cosine))
        for j in range(len(cosine))
        if score[i, 0] < score[j, 0]
    ]
    return np.log(1 + np.sum(terms))


@pytest.mark.parametrize("temperature", [0.05, 1.0])
def test_cosent_is_that_of_the_loops(temperature):
    query, document, score = batch()
    loss, metrics = jax.jit(CoSENT(temperature))(query, document, {"teacher": score})
    assert loss.shape == (16,) and loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, cosent_by_loops(query, document, score, temperature), rtol=1e-5)
    expected = np.corrcoef(cosines(query, document), score[:, 0])[0, 1]
    np.testing.assert_allclose(metrics["correlation"], expected, rtol=1e-5)


def test_pairs_of_one_score_have_no_order():
    query, document, score = batch()

    @jax.jit
    def both(query, score):
        def mean(query):
            loss, metrics = CoSENT(temperature=0.05)(query, document, {"teacher": score})
            return loss.mean(), metrics

        return jax.value_and_grad(mean, has_aux=True)(query)

    (loss, metrics), gradient = both(query, 0 * score + 0.5)
    assert loss == 0 and not np.any(metrics["correlation"]) and not np.any(gradient)
    assert np.isfinite(both(0 * query, score)[1]).all()


def test_the_squared_error_is_that_of_numpy():
    query, document, score = batch()
    loss, _ = CosineMSE()(query, document, {"teacher": score})
    np.testing.assert_allclose(loss, np.square(cosines(query, document) - score[:, 0]), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loss", [CoSENT(), CosineMSE()])
def test_gradients_are_finite_differences(loss):
    query, document, score = batch(B=6, E=3)
    grads = jax.jit(jax.grad(lambda q, d: loss(q, d, {"teacher": jnp.asarray(score)})[0].mean(), (0, 1)))(
        query, document
    )
    plain = {
        CoSENT(): lambda q, d: cosent_by_loops(q, d, score, 1.0),
        CosineMSE(): lambda q, d: np.square(cosines(q, d) - score[:, 0]).mean(),
    }
    assert_finite_differences(grads, (query, document), plain[loss], 1e-5)


@pytest.mark.parametrize("loss", [CoSENT(), CosineMSE()])
def test_the_loss_is_the_same_on_any_mesh(loss):
    def scaled(scale, given):
        query, document, score = given
        loss_B, metrics = loss(scale * query, document, {"teacher": score})
        return loss_B.mean(), metrics

    assert_loss_same_on_any_mesh(scaled, jnp.float32(1.5), batch())


def test_scores_are_needed():
    with pytest.raises(UserError, match="the labelled examples have none"):
        CosineMSE()(jnp.ones((4, 3)), jnp.ones((4, 1, 3)), {})

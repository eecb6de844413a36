"""Training for documents as bits, against all scores at once in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh

from retrieval.training.objectives.binary_passages import binary_passages, signs

B, K, E = 8, 2, 6


def make_batch(B=B):
    random = np.random.default_rng(0)
    ids = random.integers(0, 20, (B, K)).astype(np.int32)
    query, document = (random.normal(size=shape).astype(np.float32) for shape in ((B, E), (B, K, E)))
    return query, document, ids, np.stack([ids[:, 0], np.roll(ids[:, 0], 1)], axis=1)


def by_numpy(query, document, ids, known, margin, soft):
    """The losses [B] and the gradients that signs pass through, in float64: those of tanh's argument."""
    flat = soft(document.reshape(-1, E))
    negative = ~(ids.reshape(1, -1, 1) == known[:, None]).any(axis=2)
    scores, bits = query @ flat.T / 2, soft(query) @ flat.T
    own, own_bits = (jnp.diagonal(x[:, ::K])[:, None] for x in (scores, bits))
    total = jnp.exp(own[:, 0]) + jnp.where(negative, jnp.exp(scores), 0).sum(axis=1)
    hinges = jnp.where(negative, jnp.maximum(margin - own_bits + bits, 0), 0)
    return jnp.log(total) - own[:, 0] + hinges.sum(axis=1) / negative.sum(axis=1)


def test_documents_as_bits_have_the_gradients_of_tanh():
    query, document, ids, known = make_batch()
    batch = {"document_id": ids, "positive_ids": known}
    loss = lambda q, d: binary_passages(q, d, batch, temperature=2.0, margin=3.0)[0].sum()  # noqa: E731
    value, gradients = jax.jit(jax.value_and_grad(loss, (0, 1)))(query, document)
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (query, document)]
        hard = lambda x: jnp.where(x >= 0, 1.0, -1.0)  # noqa: E731
        through = lambda x: jnp.tanh(x) + jax.lax.stop_gradient(hard(x) - jnp.tanh(x))  # noqa: E731
        reference = lambda q, d: by_numpy(q, d, ids, known, 3.0, through).sum()  # noqa: E731
        expected, wanted = jax.tree.map(np.asarray, jax.value_and_grad(reference, (0, 1))(*wide))
    assert value == pytest.approx(float(expected), rel=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), gradients, wanted)
    np.testing.assert_array_equal(signs(jnp.array([-2.0, -0.0, 0.0, 0.3])), [-1, 1, 1, 1])


def test_bits_on_any_mesh():
    def loss(scale, batch):
        query, document, ids, known = batch
        given = {"document_id": ids, "positive_ids": known}
        values, metrics = binary_passages(query * scale, document, given, margin=2.0)
        return values.mean(), (values, metrics)

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, E), make_batch(16))

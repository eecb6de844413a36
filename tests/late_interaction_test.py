"""MaxSim, its gradients and losses, and the model of late interaction."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_same_on_any_mesh
from support.tiny import make_config

from retrieval.common.errors import UserError
from retrieval.data.examples.packing import Packing, rows_for
from retrieval.methods.late_interaction.loss import MaxSimDistillation, MaxSimSoftmax
from retrieval.methods.late_interaction.maxsim import maxsim, own_scores
from retrieval.methods.late_interaction.model import token_vectors, with_mask
from retrieval.methods.late_interaction.token_masks import EXPANSION, IGNORED, UNATTENDED, Rules
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import check_recipe, recipe_of

B, K, A, L, V = 8, 2, 8, 12, 40
RULES = Rules(fill=4, skip=(7, 11))
NONE = {"data.query_prefix": "", "data.document_prefix": "", "data.titles": "pair"}


def reference(query_BAE, mask_BA, document_NLE, mask_NL):
    """By hand, float64."""
    scores = np.full((len(query_BAE), len(document_NLE)), -np.inf)
    for b, n in np.ndindex(scores.shape):
        if mask_NL[n].any():
            products = query_BAE[b][mask_BA[b]].astype(float) @ document_NLE[n][mask_NL[n]].T.astype(float)
            scores[b, n] = products.max(axis=1).sum()
    return scores


@pytest.fixture(scope="module")
def vectors():
    rng = np.random.default_rng(0)
    query, document = (rng.normal(size=shape).astype(np.float32) for shape in ((5, A, 4), (7, L, 4)))
    query, document = (x / np.linalg.norm(x, axis=-1, keepdims=True) for x in (query, document))
    masks = rng.random((5, A)) < 0.7, rng.random((7, L)) < 0.7
    masks[0][3], masks[1][2] = False, False  # a query and a document without a token
    return query, masks[0], document, masks[1]


def test_the_worked_example():
    query, document = jnp.array([[[1, 0], [0.6, 0.8]]]), jnp.array([[[0.8, 0.6], [0, 1], [1, 0]]])
    both, mask = jnp.ones((1, 2), bool), jnp.array([[True, True, False]])
    np.testing.assert_allclose(maxsim(query, both, document, mask), [[1.76]], atol=1e-6)
    np.testing.assert_allclose(maxsim(query, both, document, jnp.ones((1, 3), bool)), [[1.96]], atol=1e-6)
    of_query, of_document = jax.grad(lambda q, d: maxsim(q, both, d, mask).sum(), (0, 1))(query, document)
    np.testing.assert_allclose(of_query, [[[0.8, 0.6], [0.8, 0.6]]], atol=1e-6)
    np.testing.assert_allclose(of_document, [[[1.6, 0.8], [0, 0], [0, 0]]], atol=1e-6)
    negative, padded = jnp.array([[[-1, 0], [-0.8, -0.6], [0, 0]]]), jnp.array([[True, True, False]])
    np.testing.assert_allclose(maxsim(query, both, negative, padded), [[-1.4]], atol=1e-6)


@pytest.mark.parametrize("block", [pytest.param(1, marks=pytest.mark.long), 3, 100])
def test_blocks_change_nothing(vectors, block):
    query, mask_BA, document, mask_NL = vectors
    scores = maxsim(*map(jnp.asarray, vectors), block)
    np.testing.assert_allclose(scores, reference(*vectors), atol=1e-5)
    assert (scores[3, [0, 1, 3, 4, 5, 6]] == 0).all() and (scores[:, 2] == -jnp.inf).all()
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(5, 7)).astype(np.float32)).at[:, 2].set(0)

    def plain(q, d):
        products = jnp.where(mask_NL, jnp.einsum("bae,nle->banl", q, d), -1e30).max(axis=3)
        return (jnp.where(mask_BA[:, :, None], products, 0).sum(axis=1) * weights).sum()

    def streamed(q, d):
        return jnp.where(weights == 0, 0, maxsim(q, mask_BA, d, mask_NL, block) * weights).sum()

    expected, actual = (jax.grad(f, (0, 1))(jnp.asarray(query), jnp.asarray(document)) for f in (plain, streamed))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), actual, expected)


def test_no_array_of_all_products_is_made():
    def temporaries(block):
        shapes = [((64, 16, 8), "float32"), ((64, 16), "bool"), ((256, 32, 8), "float32"), ((256, 32), "bool")]
        given = [jax.ShapeDtypeStruct(*each) for each in shapes]
        step = jax.jit(jax.grad(lambda *given: maxsim(*given, block).sum(), (0, 2)))
        return step.lower(*given).compile().memory_analysis().temp_size_in_bytes

    assert temporaries(4) < temporaries(256) / 8


def test_own_scores_are_those_of_the_whole_batch(vectors):
    query, mask_BA, document, mask_NL = map(jnp.asarray, vectors)
    own = own_scores(query[:3], mask_BA[:3], document[:6].reshape(3, 2, L, 4), mask_NL[:6].reshape(3, 2, L))
    whole = maxsim(query[:3], mask_BA[:3], document[:6], mask_NL[:6])
    np.testing.assert_allclose(own, [whole[b, 2 * b : 2 * b + 2] for b in range(3)], atol=1e-6)


@pytest.mark.parametrize("others", ["mask", "mean", "negatives"])
def test_the_softmax_is_over_all_documents_of_the_batch(others):
    """Query 0 has the positives 5 and 9, of which 9 is row 1's negative; the document 5 is there twice."""
    ids = np.array([[5, 6], [7, 9], [8, 5]])
    positives = np.array([[5, 9], [7, 7], [8, 8]])
    scores = np.random.default_rng(0).normal(size=(3, 6)) * 3
    batch = {"document_id": jnp.asarray(ids), "positive_ids": jnp.asarray(positives)}
    loss, _ = MaxSimSoftmax(2.0, others)(jnp.asarray(scores, jnp.float32), batch)
    for b in range(3):
        known = {ids[b, 0]} if others == "negatives" else set(positives[b])
        is_positive = [id in known for id in ids.reshape(-1)]
        powers = np.exp(scores[b] / 2)
        negatives = powers[np.logical_not(is_positive)].sum()
        places = [n for n in range(6) if is_positive[n]] if others == "mean" else [2 * b]
        expected = np.mean([-np.log(powers[n] / (powers[n] + negatives)) for n in places])
        np.testing.assert_allclose(loss[b], expected, rtol=1e-5)


def test_distillation_and_the_softmax_beside_it():
    """Of the softmax the own negatives are no part, nor is the copy of query 0's positive."""
    ids, teacher = np.array([[5, 6], [7, 9], [8, 5]]), np.random.default_rng(1).normal(size=(3, 2))
    scores = np.random.default_rng(0).normal(size=(3, 6)) * 3
    batch = {"document_id": jnp.asarray(ids), "teacher": jnp.asarray(teacher, jnp.float32)}
    loss, metrics = MaxSimDistillation(2.0)(jnp.asarray(scores, jnp.float32), batch)
    for b in range(3):
        own, wanted = (np.exp(x) / np.exp(x).sum() for x in (scores[b, 2 * b : 2 * b + 2] / 2, teacher[b]))
        others = [n for n in range(6) if n // 2 != b and ids.reshape(-1)[n] != ids[b, 0]]
        powers = np.exp(scores[b] / 2)
        softmax = -np.log(powers[2 * b] / (powers[2 * b] + powers[others].sum()))
        expected = (wanted * np.log(wanted / own)).sum() + softmax
        np.testing.assert_allclose(loss[b], expected, rtol=1e-5)
    assert set(metrics) == {"recall@1", "spread"}


def test_masks_of_queries_and_documents():
    ids = np.array([[2, 7, 8, 3, -1, -1]])
    filled, mask = RULES.of_queries(ids)
    assert filled.tolist() == [[2, 7, 8, 3, 4, 4]] and mask.tolist() == [[1, 1, 1, 1, 2, 2]]
    assert Rules(-1, ()).of_queries(ids)[1].tolist() == [[1, 1, 1, 1, 0, 0]]
    assert RULES.of_documents(ids).tolist() == [[1, 0, 1, 1, 0, 0]]
    made = RULES.kind().make({"query": ids[0], "document": ids}, 3)
    assert made["query"].numpy().tolist() == filled[0].tolist()
    assert made["query_mask"].numpy().tolist() == mask[0].tolist()
    assert made["document_mask"].numpy().tolist() == [[1, 0, 1, 1, 0, 0]]


def late_config(**changes):
    sizes = {"data.query_length": A, "data.document_length": L, "train.batch_size": B, "model.embed_dim": 6}
    return make_config("colbert", **{"data.negatives": K - 1, **sizes, **changes})


@pytest.fixture(scope="module")
def batch():
    rng = np.random.default_rng(0)

    def texts(count, length):
        ids = rng.integers(5, V, (count, length)).astype(np.int32)
        return np.where(np.arange(length) < rng.integers(3, length + 1, count)[:, None], ids, -1)

    query, document = texts(B, A), texts(B * K, L).reshape(B, K, L)
    document[0, 1] = np.where(document[0, 1] >= 0, 7, -1)  # a document of nothing but tokens that do not count
    filled, mask = RULES.of_queries(query)
    return {
        "query": filled,
        "query_types": np.zeros_like(query),
        "query_mask": mask,
        "document": document,
        "document_types": np.zeros_like(document),
        "document_mask": RULES.of_documents(document),
        "document_id": np.arange(B * K, dtype=np.int32).reshape(B, K),
        "teacher": rng.normal(size=(B, K)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def model():
    return recipe_of(late_config()).build(V)


def packed(batch):
    """The batch with the documents of each example in a row of 24."""
    packing = Packing(1, {"document": rows_for(K, L, 1.0, 2 * L, "pack")})
    parts = [packing.pack({name: x[lane : lane + 1] for name, x in batch.items()})[0] for lane in range(B)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def step(model, loss, chunk_size=0):
    """From parameters and a batch to the loss and its gradients."""
    config = late_config(**{"train.loss": loss, "train.chunk_size": chunk_size})
    objective = recipe_of(config).objective(bind(model))

    def value(params, batch):
        loss_B, metrics = objective(params, batch, None)
        return loss_B.mean(), (loss_B, metrics["recall@1"])

    return jax.value_and_grad(value, has_aux=True)


@pytest.mark.parametrize(
    ("loss", "layout"),
    [
        pytest.param("maxsim_distillation", dict, marks=pytest.mark.long),
        pytest.param("multi_negative_nll", packed, marks=pytest.mark.long),
    ],
)
def test_a_step_is_the_same_on_eight_devices(batch, model, loss, layout):
    params = parameters_of(model)
    whole = assert_same_on_any_mesh(step(model, loss), params, layout(batch))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(whole))
    if layout is dict:
        chunked = jax.jit(step(model, loss, 4))(params, batch)
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), chunked, whole)


def test_packed_documents_give_the_same_vectors(batch, model):
    plain, rows = (token_vectors(model, given, "document", None, 0) for given in (batch, packed(batch)))
    mask = batch["document_mask"].reshape(B * K, L) != IGNORED
    np.testing.assert_allclose(rows[mask], plain[mask], atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(plain[mask], axis=-1), 1, atol=1e-5)


def test_padding_and_others_of_a_batch_change_nothing(batch, model):
    ids, mask = batch["query"], batch["query_mask"]

    @functools.partial(jax.jit, static_argnums=2)
    def embed(ids, mask, unattended=True):
        return model(with_mask(Text.from_ids(ids, jnp.zeros_like(ids)), mask, unattended), None)

    whole = embed(ids, mask)
    np.testing.assert_allclose(embed(ids[2:3], mask[2:3]), whole[2:3], atol=1e-5)
    row = int(np.flatnonzero((mask == EXPANSION).sum(axis=1) >= 2)[0])
    n = int((mask[row] != EXPANSION).sum())
    alone = embed(ids[row : row + 1, :n], mask[row : row + 1, :n])
    np.testing.assert_allclose(alone[0], whole[row, :n], atol=1e-5)  # the text does not see what fills it up
    fewer = embed(ids[row : row + 1, : n + 1], mask[row : row + 1, : n + 1])
    np.testing.assert_allclose(fewer[0, n], whole[row, n], atol=1e-5)  # nor does that see others like it
    assert np.abs(embed(ids, mask, unattended=False)[row, :n] - whole[row, :n]).max() > 1e-3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.embed_dim": 0}, "model.embed_dim=0 is no size of a token's vector"),
        ({"train.loss": "in_batch_softmax"}, "compares embeddings, and a model of late interaction gives the scores"),
        ({"data.negatives": 0, "train.batch_size": 1}, "negatives are the other examples of a batch"),
        ({"data.pack.query": 0.5}, "data.pack.query=0.5: a model of late interaction does not read it"),
        ({"recipe": "reranker", "train.loss": "two_way_nll", "model.late.skip": (), **NONE}, r"model.late.skip=\(\)"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_recipe(late_config(**changes))


def test_a_vocabulary_without_a_token_to_fill_with_is_refused():
    class Bare:
        mask_id = eos_id = -1
        tokens = ["a", "!", "b"]

    model = late_config().model
    with pytest.raises(UserError, match=r"fills queries up with \[MASK\].*has neither"):
        Rules.of(model, Bare())
    model.late.expansion = "none"
    assert Rules.of(model, Bare()) == Rules(-1, (1,)) and UNATTENDED == "unseen"

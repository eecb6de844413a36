"""A guide, hardness and more terms in the in-batch softmax, against all scores at once in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support.devices import assert_loss_same_on_any_mesh
from support.losses import in_batch_softmax
from support.tiny import make_config

from retrieval.errors import UserError
from retrieval.recipes.recipe import check_recipe, recipe_of
from retrieval.training.objectives.in_batch_softmax import TERMS

B, K, E, H = 8, 3, 6, 4
NONE = dict(
    mean=False,
    symmetric=False,
    groups=1,
    sizes=(),
    rule="",
    margin=0.0,
    guided="",
    guided_margin=0.0,
    terms=(),
    hardness=0.0,
    hardness_of="all",
)


def make_batch(B=B):
    """Embeddings, ids of few documents, known positives, and a guide's embeddings."""
    random = np.random.default_rng(0)
    ids = random.integers(0, 30, (B, K)).astype(np.int32)
    query, document, guide = (
        random.normal(size=shape).astype(np.float32) for shape in ((B, E), (B, K, E), (B, 1 + K, H))
    )
    guide /= np.linalg.norm(guide, axis=2, keepdims=True)
    return query, document, ids, np.stack([ids[:, 0], np.roll(ids[:, 0], 1)], axis=1), guide


def all_at_once(query, document, ids, known, guide, options):
    """The losses [B], of whole matrices of scores, and how many documents the guide leaves out [B]."""
    B, K, _ = document.shape
    flat_ids, own_document, group = ids.reshape(-1), np.arange(B * K) // K, np.arange(B) // (B // options["groups"])
    answers = (known[:, :, None] == flat_ids).any(axis=1)  # [B, N]: known positives
    asks = answers[:, ::K]  # [i, j]: the positive of j is one of i
    of_others = own_document[None] != np.arange(B)[:, None]
    other_query = ~np.eye(B, dtype=bool)
    # Of each term: scores of which sides, who may be a negative, and who would be a known positive.
    matrices = {
        "query_document": ("q", "d", np.arange(B * K)[None] != K * np.arange(B)[:, None], answers),
        "query_query": ("q", "q", other_query, asks),
        "document_document": ("p", "d", of_others, answers),
        "document_query": ("p", "q", other_query, asks.T),
    }

    def sides(q, d):
        return {"q": q, "d": d.reshape(B * K, -1), "p": d[:, 0]}

    def negatives(name, scores, limit, own_model):
        """Whom a matrix leaves as negatives."""
        left, right, may_be, positive = matrices[name]
        of = {"q": group, "d": np.repeat(group, K)}[right]
        counts = may_be & ~positive & (group[:, None] == of[None])
        if own_model:
            counts &= scores <= limit[:, None]
        guided_out = jnp.zeros_like(counts)
        if options["guided"]:
            given = sides(guide[:, 0], guide[:, 1:])
            guided = given[left] @ given[right].T
            own = (guide[:, 0] * guide[:, 1]).sum(axis=1)
            size = np.abs(own) if options["guided"] == "relative" else 1
            guided_out = counts & (guided > (own + options["guided_margin"] * size)[:, None])
        return counts & ~guided_out, guided_out.sum(axis=1)

    def softmax(names, q, d, own_name):
        given, total, left_out = sides(q, d), [], 0
        scores = {name: given[matrices[name][0]] @ given[matrices[name][1]].T for name in names}
        own_B = (q * d[:, 0]).sum(axis=1)
        limit = own_B + options["margin"] * (jnp.abs(own_B) if options["rule"] == "relative" else 1)
        for name in names:
            counts, of_guide = negatives(name, scores[name], limit, bool(options["rule"]))
            left_out = left_out + of_guide
            logits = scores[name] / 0.5
            if name == "query_document" and options["hardness"]:
                hard = ~of_others if options["hardness_of"] == "hard" else ~of_others | of_others
                logits += jnp.where(hard, options["hardness"] * jax.lax.stop_gradient(scores[name]), 0)
            total.append(jnp.where(counts, jnp.exp(logits), 0).sum(axis=1))
        total_B1 = sum(total)[:, None]
        positive = (~matrices[own_name][2]) if not options["mean"] else ~matrices[own_name][2] | matrices[own_name][3]
        of = {"q": group, "d": np.repeat(group, K)}[matrices[own_name][1]]
        positive &= group[:, None] == of[None]
        logits = scores[own_name] / 0.5
        losses = jnp.where(positive, jnp.log(jnp.exp(logits) + total_B1) - logits, 0)
        return losses.sum(axis=1) / positive.sum(axis=1), left_out

    loss = 0
    for size in options["sizes"] or (query.shape[1],):
        q, d = (x[..., :size] for x in (query, document))
        if options["sizes"]:
            q, d = (x / jnp.linalg.norm(x, axis=-1, keepdims=True) for x in (q, d))
        of_size, left_out = softmax(["query_document", *options["terms"]], q, d, "query_document")
        if options["symmetric"]:
            of_size = (of_size + softmax(["document_query"], q, d, "document_query")[0]) / 2
        loss += of_size
    return loss, left_out


def reference(query, document, *others, **options):
    """Losses, counts and the gradients of the weighted sum of the losses, in float64."""
    weight_B = np.arange(1, len(query) + 1)
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (query, document)]
        others = [x.astype(np.float64) if x.dtype == np.float32 else x for x in others]

        def value(q, d):
            loss, left_out = all_at_once(q, d, *others, options)
            return (loss * weight_B).sum(), (loss, left_out)

        (_, found), gradients = jax.value_and_grad(value, (0, 1), has_aux=True)(*wide)
        return jax.tree.map(np.asarray, (*found, gradients))


@functools.partial(jax.jit, static_argnames=("block", "options"))
def streaming(query, document, ids, known, guide, *, block, options):
    loss_B, metrics = in_batch_softmax(
        query,
        document,
        ids,
        None,
        temperature=0.5,
        symmetric=options["symmetric"],
        known=known,
        other_positives="mean" if options["mean"] else "mask",
        groups=options["groups"],
        matryoshka=options["sizes"],
        false_negatives=options["rule"],
        false_margin=options["margin"],
        guide=guide if options["guided"] else None,
        guide_rule=options["guided"] or "absolute",
        guide_margin=options["guided_margin"],
        terms=options["terms"],
        hardness=options["hardness"],
        hardness_of=options["hardness_of"],
        block=block,
    )
    weight_B = jnp.arange(1, len(query) + 1)
    return (loss_B * weight_B).sum(), (loss_B, metrics)


ALL = dict(
    mean=True,
    groups=2,
    sizes=(2, 6),
    rule="absolute",
    margin=0.4,
    guided="absolute",
    guided_margin=0.2,
    terms=TERMS,
    hardness=2.0,
    hardness_of="hard",
)
CASES = [
    (dict(guided="absolute", guided_margin=-0.1, symmetric=True), 512),
    (dict(guided="relative", guided_margin=0.5, sizes=(3, 6), groups=2), 5),
    (dict(hardness=1.5), 5),
    (dict(hardness=1.5, hardness_of="hard", sizes=(3, 6), symmetric=True), 512),
    (dict(terms=TERMS), 5),
    (dict(terms=("document_document",), guided="absolute", groups=2), 512),
    (dict(terms=("query_query",), rule="relative", margin=0.1), 512),
    (ALL, 7),
    (ALL, 512),
]


class Static(dict):
    """Options that `jit` takes for what the program depends on."""

    def __hash__(self):
        return hash(tuple(self.items()))


@pytest.mark.parametrize(("changes", "block"), CASES)
def test_losses_counts_and_gradients_are_those_of_all_scores_at_once(changes, block):
    batch, options = make_batch(), Static(NONE | changes)
    query, document, *others = batch
    expected, left_out, of_reference = reference(*batch, **options)
    step = jax.value_and_grad(lambda q, d: streaming(q, d, *others, block=block, options=options), (0, 1), has_aux=True)
    (_, (loss, metrics)), gradients = step(query, document)
    np.testing.assert_allclose(loss, expected, rtol=1e-5, atol=1e-5)
    for found, wanted in zip(gradients, of_reference):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
    assert ("masked_guide" in metrics) == bool(options["guided"])
    if options["guided"]:
        np.testing.assert_array_equal(metrics["masked_guide"], left_out)
        assert 0 < left_out.mean() < B * K / 2
    plain, _, _ = reference(*batch, **NONE | {name: options[name] for name in ("mean", "symmetric", "groups", "sizes")})
    assert np.abs(np.subtract(loss, plain)).max() > 0.01


def one_query(scores, **options):
    """The loss of one query: the positive's score is the first, all are cosines; its guide says the same."""
    scores = np.array(scores)
    query, document = np.array([[1.0, 0.0]]), np.stack([scores, np.sqrt(1 - scores**2)], axis=1)[None]
    ids = np.arange(len(scores), dtype=np.int32)[None]
    guide = np.concatenate([query[None], document], axis=1) if "guide_rule" in options else None
    return in_batch_softmax(query, document, ids, None, temperature=0.05, guide=guide, **options)


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({}, 2.545032),
        ({"guide_rule": "absolute", "guide_margin": 0.1}, 1.313352),
        ({"guide_rule": "absolute"}, 0.000335),
        ({"hardness": 9.0}, 9.651776),  # LLaVE
        ({"hardness": 5.0}, 6.452993),
        ({"hardness": 5.0, "hardness_of": "hard"}, 6.452993),
    ],
)
def test_one_query_by_hand(options, loss):
    (found,), _ = one_query([0.70, 0.75, 0.81, 0.30], **options)
    assert found == pytest.approx(loss, abs=1e-5)


def test_a_relative_margin_of_a_guide_is_of_the_size_of_the_positives_score():
    """-0.5 - 0.05 * 0.5 is -0.525, below -0.49; -0.5 * 0.95 would be above."""
    for negative, left_out in ((-0.49, 1), (-0.53, 0)):
        _, metrics = one_query([-0.5, negative], guide_rule="relative", guide_margin=-0.05)
        assert metrics["masked_guide"] == left_out


@pytest.mark.parametrize(
    ("options", "loss"),
    [
        ({}, 24.216274),
        ({"terms": ("query_query", "document_document")}, 24.534837),
        ({"hardness": 9.0}, 32.310322),
        ({"hardness": 5.0, "hardness_of": "hard"}, 25.315794),
        ({"hardness": 9.0, "terms": ("query_query", "document_document")}, 32.310417),
    ],
)
def test_the_losses_of_sentence_transformers(options, loss):
    """MultipleNegativesRankingLoss of version 6.2 with a scale of 20, in float64, on these four triples."""
    texts = np.cos(np.arange(36) ** 2 + 1).reshape(3, 4, 3)
    texts /= np.linalg.norm(texts, axis=2, keepdims=True)
    ids = np.arange(8, dtype=np.int32).reshape(4, 2)
    found, _ = in_batch_softmax(texts[0], np.stack(texts[1:], axis=1), ids, None, temperature=1 / 20, **options)
    assert found.mean() == pytest.approx(loss, abs=1e-4)


def test_two_queries_by_hand():
    query, document = np.array([[1, 0], [0.6, 0.8]]), np.array([[[0.8, 0.6]], [[0.0, 1]]])
    ids = np.arange(2, dtype=np.int32)[:, None]
    for terms, expected in (((), [0.000335, 1.783901]), (TERMS, [1.828419, 1.828419])):
        found, _ = in_batch_softmax(query, document, ids, None, temperature=0.1, terms=terms)
        np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_query_is_no_negative_of_itself_whatever_its_guide_says():
    """Its positive has the guide's highest score, so no margin would leave it out; one query alone has no negative."""
    query, ids = np.array([[0.6, 0.8]]), np.zeros((1, 1), np.int32)
    guide = np.ones((1, 2, 1))
    (loss,), metrics = in_batch_softmax(query, query[:, None], ids, None, guide=guide, terms=TERMS)
    assert loss == 0 and metrics["masked_guide"] == 0


def test_the_same_on_any_mesh():
    def loss(scale, batch):
        query, *others = batch
        value, found = streaming(query * scale, *others, block=7, options=Static(NONE | ALL))
        return value / 1000, found

    assert_loss_same_on_any_mesh(loss, jnp.linspace(0.5, 1.5, E), make_batch(16))


FIELDS = {
    "train.log_q": False,
    "train.temperature": 0.5,
    "train.guide": "a model",
    "train.guide_rule": "relative",
    "train.guide_margin": 0.2,
    "train.terms": ("query_query",),
    "train.hardness": 2.0,
}


def test_the_config_names_them():
    query, document, ids, _, guide = make_batch()
    config = make_config("ict", **FIELDS)
    loss = recipe_of(config).named_loss
    found, _ = jax.jit(loss)(query, document, {"document_id": ids, "guide": guide})
    options = NONE | dict(guided="relative", guided_margin=0.2, terms=("query_query",), hardness=2.0)
    _, (expected, _) = streaming(query, document, ids, ids[:, :1], guide, block=512, options=Static(options))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train.hardness": 5.0, "train.hardness_of": "hard"}, r"hard negatives, and config\.data\.negatives=0"),
        ({"train.terms": TERMS, "train.log_q": False, "train.symmetric": True}, "set one of them back"),
        ({"train.terms": TERMS}, r"set config\.train\.log_q=False"),
        ({"train.loss": "multi_label_margin", "train.terms": TERMS}, "is a part of config.train.loss=in_batch_softmax"),
    ],
)
def test_options_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(UserError, match=message):
        check_recipe(make_config("ict", **{"train.temperature": 1.0} | changes))

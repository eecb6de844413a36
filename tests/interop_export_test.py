"""Exported towers in the libraries that load them: the same embeddings and the same ranking as here.

Skipped where these are not installed; nothing is fetched.
"""

import numpy as np
import pytest
from support import exported
from support.packages import package

sentence_transformers = package("sentence_transformers")

# What a tower can have, each at least once.
MODELS = {
    "two": {"model.tied": False, "model.normalize": True, "model.pooling": "cls"},
    "tied": {"model.tied": True, "model.normalize": False, "model.pooling": "mean"},
    "plain": {"model.tied": False, "model.normalize": False, "model.pooling": "cls", "model.embed_dim": 0},
    "norm": {"model.tied": True, "model.normalize": True, "model.embed_norm": True},
    "long queries": {"model.tied": True, "data.query_length": 40, "data.document_length": 16},
    "prefixes": {"model.tied": True, "data.query_prefix": "the fox: ", "data.document_prefix": "a dog: "},
    "last, truncated": {"model.tied": True, "model.pooling": "last", "model.truncate_dim": 5, "model.normalize": True},
    "two, truncated": {
        "model.tied": False,
        "model.pooling": "weighted_mean",
        "model.truncate_dim": 5,
        "model.normalize": False,
    },
    "behind prefixes": {
        "model.tied": True,
        "model.pooling": "weighted_mean",
        "model.pool_from": (4, 4),
        "model.head": ("normalize", "dense:12:tanh:no_bias", "layer_norm", "dense:6:no_bias"),
        "model.embed_dim": 0,
        "data.query_prefix": "the fox: ",
        "data.document_prefix": "a dog: ",
    },
    "one type": {"model.tied": True, "model.type_vocab_size": 1, "model.layer_norm_epsilon": 1e-5},
}


@pytest.fixture(scope="module", params=MODELS)
def run(request, tmp_path_factory):
    run = exported.work_directory(tmp_path_factory.mktemp("run") / "run", **MODELS[request.param])
    exported.export(run)
    return run


@pytest.fixture(scope="module")
def ours(run):
    """Embeddings of the queries and of the documents."""
    return exported.embed(run, exported.QUERIES, exported.DOCUMENTS)


def as_pairs(documents):
    """As sentence-transformers takes documents: with their titles, where they have one."""
    return [(item.title, item.text) if item.title else item.text for item in documents]


def assert_same(theirs, ours):
    assert np.abs(theirs - ours).max() < 1e-5 * max(1, np.abs(ours).max())


def encode(model, run):
    """Without a word about lengths; truncated embeddings have length 1 there if one asks for it."""
    unit, documents = {"normalize_embeddings": run.config.model.normalize}, as_pairs(exported.DOCUMENTS)
    return model.encode_query(exported.QUERIES, **unit), model.encode_document(documents, **unit)


def test_sentence_transformers_embeds_and_ranks_the_same(run, ours):
    model = sentence_transformers.SentenceTransformer(str(run.folder / "export"), device="cpu")
    queries, documents = encode(model, run)
    assert_same(queries, ours[0])
    assert_same(documents, ours[1])
    scores = model.similarity(queries, documents).numpy()
    np.testing.assert_allclose(scores, ours[0] @ ours[1].T, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(np.argsort(-scores, axis=1), np.argsort(-(ours[0] @ ours[1].T), axis=1))


def test_queries_and_documents_are_cut_to_own_lengths(run):
    """Of one tower as of two, one text at a time and in batches, whichever of the lengths is the larger."""
    model = sentence_transformers.SentenceTransformer(str(run.folder / "export"), device="cpu")
    lengths = run.config.data.query_length, run.config.data.document_length
    words = "fox the dog sep ".split()
    texts = [" ".join(words[i % 4] for i in range(start, start + n)) for start in (0, 1) for n in range(1, 60)]
    candidates = [exported.Candidate(str(i), "", text) for i, text in enumerate(texts)]
    queries, documents = exported.embed(run, texts, candidates)
    unit = {"normalize_embeddings": run.config.model.normalize}
    assert_same(model.encode_query(texts, **unit), queries)
    assert_same(model.encode_document(texts, **unit), documents)
    assert_same(np.stack([model.encode_query(text, **unit) for text in texts[-3:]]), queries[-3:])
    cut = [model.preprocess(texts, task=task)["input_ids"].shape[1] for task in ("query", "document")]
    assert cut == list(lengths)

"""Folders of sparse vectors, and what sentence-transformers makes of them."""

import jax.numpy as jnp
import numpy as np
import pytest
from support.packages import package
from support.tiny import make_config

import retrieval
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.splade.folder import write
from retrieval.models.text import Text
from retrieval.recipes.recipe import recipe_of
from retrieval.search.text_batches import padded

library = package("sentence_transformers")

WORDS = [".", ",", "?", *"abcdefghij", "fox", "red", "eats", "grass", "the", "what"]
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
QUERIES = ["what eats the fox?", "a", "fox fox grass"]
TEXTS = ["The red fox eats grass.", "grass, a b c d e", "fox " * 60]


def rows(texts, length):
    ids = [VOCABULARY.single(VOCABULARY.encode(text), length) for text in texts]
    ids_BL = jnp.asarray(padded(ids, len(ids), length))
    return Text.from_ids(ids_BL, jnp.zeros_like(ids_BL))


def of_family(family, queries):
    """A model with random weights, and its config."""
    config = make_config("splade", **{"model.sparse_queries": queries, "model.hidden_size": 32, "model.family": family})
    model = recipe_of(config).build(len(VOCABULARY))
    random = np.random.default_rng(0)
    model.bias[...] = jnp.asarray(random.normal(size=len(VOCABULARY)).astype(np.float32))
    if queries == "idf":
        weights = random.normal(size=len(VOCABULARY)).astype(np.float32) + 1
        weights[[VOCABULARY.cls_id, VOCABULARY.sep_id]] = 0
        model.idf[...] = jnp.asarray(weights)
    return config, model


@pytest.mark.parametrize(("family", "queries"), [("bert", "encoder"), ("bert", "idf"), ("modernbert", "encoder")])
def test_vectors_are_those_of_the_library(tmp_path, family, queries):
    """What is written, and what the library saves in its own names of modules; with a router and without."""
    config, model = of_family(family, queries)
    (ours := tmp_path / "ours").mkdir()
    write(ours, model, config.data, VOCABULARY)
    theirs = library.SparseEncoder(str(ours), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    read = retrieval.load(tmp_path / "theirs")
    of_queries, of_documents = (
        x.to_dense().numpy() for x in (theirs.encode_query(QUERIES), theirs.encode_document(TEXTS))
    )
    for found, expected in (
        (model.encode_query(rows(QUERIES, config.data.query_length)), of_queries),
        (model.encode_document(rows(TEXTS, config.data.document_length)), of_documents),
        (read.encode_query(QUERIES).toarray(), of_queries),
        (read.encode_document(TEXTS).toarray(), of_documents),
    ):
        np.testing.assert_allclose(found, expected, atol=1e-5)
        assert (expected > 0).any()
    expected = theirs.similarity(theirs.encode_query(QUERIES[:1]), theirs.encode_document(TEXTS)).numpy()[0]
    for hit in read.index(TEXTS).search(QUERIES[0], 3):
        assert hit.score == pytest.approx(expected[int(hit.id)], abs=1e-4)

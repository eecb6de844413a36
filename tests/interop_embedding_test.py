"""Folders of transformers without modules, and what sentence-transformers makes of them."""

import numpy as np
import pytest
from support import embedder_folders
from support.packages import package

import retrieval

sentence_transformers = package("sentence_transformers")

TEXTS = ["the fox 7 was seen", "a", "Ünïcödé 東京 🦊", "the dog " * 20]


@pytest.mark.parametrize("make", [embedder_folders.qwen3, embedder_folders.modernbert])
@pytest.mark.parametrize("has_modules", [True, False])
def test_embeddings_are_those_of_the_library(tmp_path, make, has_modules):
    """A decoder's are of its last token, those of others the mean, whether the folder says so or not."""
    folder = make(tmp_path / "model")
    if not has_modules:
        embedder_folders.without_modules(folder)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    expected = theirs.encode(TEXTS, normalize_embeddings=True)
    assert np.allclose(retrieval.load(folder).encode_documents(TEXTS), expected, atol=1e-5)

"""Folders of transformers without modules, and what sentence-transformers makes of them."""

import numpy as np
import pytest
from support import embedder_folders

import retrieval

pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0, then .[interop]")
sentence_transformers = pytest.importorskip("sentence_transformers", reason="not installed: pip install .[interop]")

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

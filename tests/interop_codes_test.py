"""Codes of vectors that sentence-transformers makes: the same bytes here."""

import numpy as np
from support.packages import package

from retrieval.search.vector_codes import Form, ranges_of

quantization = package("sentence_transformers.util.quantization")

RNG = np.random.default_rng(0)
X = RNG.normal(size=(2000, 64)).astype(np.float32)
X[:, 5] = 0.25  # a dimension of one value
OTHERS = np.concatenate([1.3 * RNG.normal(size=(500, 64)).astype(np.float32), np.zeros((1, 64), np.float32)])


def test_int8_with_ranges_of_other_vectors():
    ranges = ranges_of(X)
    form = Form("int8", 64, ranges_2E=ranges)
    for vectors in (X, OTHERS):
        expected = quantization.quantize_embeddings(vectors, "int8", ranges=ranges)
        np.testing.assert_array_equal(form.encode(vectors), expected)
    calibrated = quantization.quantize_embeddings(OTHERS, "int8", calibration_embeddings=X)
    np.testing.assert_array_equal(form.encode(OTHERS), calibrated)


def test_bits():
    stored = Form("binary", 64).encode(OTHERS)
    np.testing.assert_array_equal(stored, quantization.quantize_embeddings(OTHERS, "ubinary"))
    signed = quantization.quantize_embeddings(OTHERS, "binary")
    np.testing.assert_array_equal(stored.astype(int) - 128, signed)

"""The cosine of random texts by length, with encoders that are known by heart."""

import numpy as np
import pytest

from configs import ict_bfs_wlp, seed_encoder
from retrieval.errors import UserError
from retrieval.evaluation.text_similarity import similarity_by_length
from retrieval.stages.similarity import default_lengths

# Text i is [CLS] = 1, then 10 + i again and again, then [SEP] = 2; its length is 8 + 8 * (i % 2).
TEXTS = [[1, *[10 + i] * (6 + 8 * (i % 2)), 2] for i in range(50)]


def axes(ids):
    """Every text at right angles to the others, some longer than others."""
    return np.eye(50)[ids[:, 1] - 10] * ids[:, 1:2]


def test_cosines_of_orthogonal_and_equal_texts():
    assert similarity_by_length(axes, TEXTS, [4, 8, 16], 200, 0) == {4: 0, 8: 0, 16: 0}
    same = similarity_by_length(lambda ids: ids[:, :1] * np.array([[3.0, 4.0]]), TEXTS, [8], 200, 0)
    assert same[8] == pytest.approx(1)


def test_the_mean_is_over_the_pairs():
    """Two kinds of texts, alike within and opposite between: of pairs of 50 texts, 24 of 49 are alike."""
    value = similarity_by_length(lambda ids: np.where(ids[:, 1:2] % 2, 1.0, -2.0), TEXTS, [8], 20_000, 0)[8]
    assert value == pytest.approx(24 / 49 - 25 / 49, abs=0.03)


def test_texts_are_cut_and_short_ones_left_out():
    seen = []

    def embed(ids):
        seen.append(ids)
        return axes(ids)

    similarity_by_length(embed, TEXTS, [5, 12], 500, 0)
    shapes = {ids.shape for ids in seen}
    assert shapes == {(32, 5), (32, 12)}
    assert all((ids[:, 0] == 1).all() and (ids[:, -1] == 2).all() and (ids[:, 1:-1] >= 10).all() for ids in seen)
    assert all((ids[:, 1] % 2 == 1).all() for ids in seen if ids.shape[1] == 12)


def test_the_same_seed_draws_the_same_pairs():
    def embed(ids):
        return np.random.default_rng(1).normal(size=(100, 3))[ids[:, 1]]

    values = [similarity_by_length(embed, TEXTS, [8], 50, seed)[8] for seed in (0, 0, 1)]
    assert values[0] == values[1] != values[2]


def test_too_few_texts_of_a_length():
    with pytest.raises(UserError, match="0 texts have 17 tokens, and pairs need two"):
        similarity_by_length(axes, TEXTS, [17], 10, 0)


def test_texts_of_the_default_lengths_exist():
    """Passages of at most 80 and 510 tokens, and [CLS] and [SEP]; documents have 96 and 512."""
    lengths = [
        default_lengths(config.data.document_length, config.prepare.longest_passage)
        for config in (ict_bfs_wlp.get_config("local"), seed_encoder.get_config())
    ]
    assert lengths == [[10, 20, 41, 82], [64, 128, 256, 512]]

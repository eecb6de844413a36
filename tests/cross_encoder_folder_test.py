"""Folders of cross-encoders: written and read again, and one that is refused."""

import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file
from support.modules import spread
from support.tiny_pairs import CONFIG, pairs, scores

from retrieval.common.errors import UserError
from retrieval.data.tokenizers.template import PairTemplate
from retrieval.methods.reranker.model import CrossEncoder, check_cross_encoder, load_cross_encoder, write_cross_encoder
from retrieval.models.encoder_folder import EncoderFolder


def loaded(folder):
    return load_cross_encoder(EncoderFolder.open(folder), CONFIG)


def written(folder, classes):
    model = spread(CrossEncoder(CONFIG, classes, rngs=nnx.Rngs(0)))
    write_cross_encoder(folder, model)
    return model


@pytest.mark.parametrize(("classes", "sigmoid"), [(1, True), (2, False)])
def test_the_scores_come_back(classes, sigmoid, tmp_path):
    model = spread(CrossEncoder(CONFIG, classes, sigmoid=sigmoid, rngs=nnx.Rngs(0)))
    write_cross_encoder(tmp_path, model)
    again = scores(loaded(tmp_path), pairs())
    assert np.ptp(again) > 0.1
    np.testing.assert_allclose(again, scores(model, pairs()), atol=1e-5)


@pytest.mark.parametrize(
    ("around", "query", "expected"),
    [
        (PairTemplate((2,), (3,), (3,)), [7], [2, 7, 3, 8, 9, 10, 3]),
        (PairTemplate((2,), (3, 3), (3,)), [7], [2, 7, 3, 3, 8, 9, 3]),
        (PairTemplate((), (3,), (3,)), [7], [7, 3, 8, 9, 10, 11, 3]),
        (PairTemplate(), [5, 6, 7, 7, 7], [5, 6, 7, 7, 8, 9, 10]),
    ],
)
def test_the_longer_of_a_pair_is_cut_first(around, query, expected):
    assert around.row(query, [8, 9, 10, 11], 7) == expected


def test_a_reranker_is_refused_before_its_weights_are_read(tmp_path, monkeypatch):
    """By the shapes at the beginning of the file: a run looks at them before its first stage."""
    monkeypatch.setattr(EncoderFolder, "_tensors", property(lambda folder: pytest.fail("reads the weights")))
    written(tmp_path, 1)
    check_cross_encoder(EncoderFolder.open(tmp_path))
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(tensors | {"classifier.bias": np.zeros(2, np.float32)}, tmp_path / "model.safetensors")
    with pytest.raises(UserError, match=r"classifier\.bias is \[2\], \[1\] is needed"):
        check_cross_encoder(EncoderFolder.open(tmp_path))

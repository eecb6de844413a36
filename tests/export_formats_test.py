"""Towers as functions of plain arrays, as ONNX has them; `handover_models_test` runs the files."""

import sys

import numpy as np
import pytest
from support import exported
from support.exported import VOCABULARY

import retrieval
from retrieval.common.errors import UserError
from retrieval.export import onnx_files
from retrieval.export.tower_folders import TrainedTowers
from retrieval.stages import export as stage

pytestmark = pytest.mark.usefixtures("one_device")
TEXTS = ["the fox", "a dog, the dog", "sep"]


def test_a_function_gives_the_embeddings_of_the_export(tmp_path):
    changes = {"model.tied": False, "model.normalize": True, "model.dtype": "bfloat16"}
    run = exported.work_directory(tmp_path / "run", **changes)
    model = retrieval.load(exported.export(run))
    towers = {tower.name: tower for tower in onnx_files.tower_functions(TrainedTowers.of(run))}
    inputs = onnx_files.arrays([VOCABULARY.single(VOCABULARY.encode(text), 40) for text in TEXTS])
    for name, encode in (("query", model.encode_query), ("document", model.encode_document)):
        np.testing.assert_allclose(towers[name].embed(*inputs)[0], encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("bert", r"needs the package .*onnx.*, which is not installed: pip install '\.\[onnx\]' && pip install --no-"),
        ("mpnet", "the family mpnet has a bias by distance"),
    ],
)
def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path, monkeypatch, family, message):
    monkeypatch.setitem(sys.modules, "jax2onnx", None)
    run = exported.work_directory(tmp_path / "run", **{"model.family": family, "export.onnx": True})
    with pytest.raises(UserError, match=message):
        stage.check(run)

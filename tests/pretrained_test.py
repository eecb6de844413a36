import re
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.models import encoder_tensors, tensor_files
from retrieval.models.architecture import BERT
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.transformer_config import TransformerConfig

"""BERT's weights: there and back, and those that do not fit."""

NAMES = TensorNames.of(BERT)
CONFIG = TransformerConfig(vocab_size=30, num_layers=2, hidden_size=8, num_heads=2, mlp_size=12, max_length=10)


@pytest.fixture(scope="module")
def params():
    """Of a masked language model: encoder and head."""
    model = nnx.eval_shape(lambda: MaskedLanguageModel(CONFIG, rngs=nnx.Rngs(0)))
    random = np.random.default_rng(0)
    shapes = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    return jax.tree.map(lambda leaf: random.normal(size=leaf.shape).astype(np.float32), shapes)


def head(params):
    return {name: value for name, value in params.items() if name != "encoder"}


def test_there_and_back_is_bitwise_equal(params):
    for part in (params["encoder"], head(params)):
        again = encoder_tensors.to_parameters(encoder_tensors.to_tensors(part, NAMES), part, NAMES, "here")
        jax.tree.map(np.testing.assert_array_equal, again, part)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t["embeddings.LayerNorm.bias"].fill(np.nan), "embeddings.LayerNorm.bias has values that are not fi"),
        (lambda t: t.clear(), "and 34 more"),
    ],
)
def test_tensors_that_do_not_fit_are_listed(params, change, message):
    tensors = encoder_tensors.to_tensors(params["encoder"], NAMES)
    change(tensors)
    with pytest.raises(UserError, match=message) as caught:
        encoder_tensors.to_parameters(tensors, params["encoder"], NAMES, "here")
    assert len(str(caught.value).splitlines()) <= 5 and not re.search("array|dtype", str(caught.value))


@pytest.mark.parametrize("name", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_without_torch_a_pytorch_file_must_be_converted(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch", None)
    (tmp_path / "part.bin").touch()
    (tmp_path / name).write_text('{"weight_map": {"a": "part.bin"}}')
    with pytest.raises(
        UserError, match=r"\.bin: PyTorch's format needs torch: pip install '\.\[interop\]', or save it as model.s"
    ):
        tensor_files.read(tmp_path)

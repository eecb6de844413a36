"""BERT's folders against what PyTorch and transformers made of them (`golden/make.py`), without either."""

import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import REPOSITORY
from flax import nnx
from safetensors.numpy import load_file
from support.bert_folders import load

from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER
from retrieval.models import encoder_tensors
from retrieval.models.architecture import BERT
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.pooling import first, mean
from retrieval.models.text import Text

GOLDEN = REPOSITORY / "tests" / "golden"
MODELS = ("bert", "bert_sharded", "bert_bfloat16", "bert_old_names", "roberta", "distilbert")


def expected_of(name, kind):
    values = load_file(GOLDEN / name / "expected.safetensors")
    found = {key.removeprefix(f"{kind}/"): value for key, value in values.items() if key.startswith(f"{kind}/")}
    if "ids" in found:
        found["ids"] = np.where(found["ids"] == (1 if name == "roberta" else 0), FILLER, found["ids"])
    return found


def texts(expected):
    return Text.from_ids(*(jnp.asarray(expected[name], jnp.int32) for name in ("ids", "types")))


@nnx.jit
def encode(model, text):
    return model.encoder(text, dropout_key=None)


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.long) if n.startswith("bert_s") else n for n in MODELS]
)
def test_hidden_states_poolings_and_logits_are_those_of_pytorch(name):
    model = load(GOLDEN / name)
    for kind in ("padded", "long"):
        expected = expected_of(name, kind)
        text, real = texts(expected), expected["ids"] >= 0
        hidden = encode(model, text)
        np.testing.assert_allclose(hidden[real], expected["hidden"][real], rtol=0, atol=1e-5)
        np.testing.assert_allclose(first(hidden, text), expected["cls"], rtol=0, atol=1e-5)
        np.testing.assert_allclose(mean(hidden, text), expected["mean"], rtol=0, atol=1e-5)
        if "logits" in expected:
            logits = np.asarray(nnx.jit(lambda model, hidden: model.scores(model.transformed(hidden)))(model, hidden))
            np.testing.assert_allclose(logits[real], expected["logits"][real], rtol=0, atol=2e-5)


def test_gradients_are_those_of_pytorch():
    expected, model = expected_of("bert", "padded"), load(GOLDEN / "bert")
    graphdef, params = nnx.split(model.encoder)
    text = texts(expected)

    def total(params):
        hidden = nnx.merge(graphdef, params)(text, dropout_key=None)
        return jnp.where(text.segments_RL[:, :, None] != 0, jnp.sin(hidden), 0).sum()

    gradient = encoder_tensors.to_tensors(nnx.to_pure_dict(jax.jit(jax.grad(total))(params)), TensorNames.of(BERT))
    wanted = expected_of("bert", "gradient")
    assert gradient.keys() == {name for name in wanted if not name.startswith("pooler")}
    for name, value in gradient.items():
        np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-4, err_msg=name)


def test_fewer_positions_are_the_first_ones():
    expected = expected_of("bert", "short")
    hidden = encode(load(GOLDEN / "bert", max_length=6), texts(expected))
    np.testing.assert_allclose(hidden, expected["hidden"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["bert_sharded", "bert"])
def test_a_damaged_folder_is_refused(tmp_path, name):
    """Cut anywhere, a file of weights is no other model."""
    shutil.copytree(GOLDEN / name, tmp_path / name)
    weights = EncoderFolder.open(tmp_path / name).files[-1]
    content = weights.read_bytes()
    for size in (0, 7, len(content) // 2, len(content) - 1):
        weights.write_bytes(content[:size])
        with pytest.raises(UserError, match=re.escape(weights.name)):
            load(tmp_path / name)
    weights.unlink()
    with pytest.raises(UserError, match=r"no weights there|cannot be read"):
        load(tmp_path / name)

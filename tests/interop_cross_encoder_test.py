"""Cross-encoders in sentence-transformers: the same scores as here, there and back.

Skipped where it is not installed; nothing is fetched.
"""

import json
import os

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support.modules import spread

from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.methods.reranker.model import CrossEncoder, load_cross_encoder, write_cross_encoder
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_TF"] = "0"  # transformers 4 would take our TensorFlow, and miss a package
torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0, then .[interop]")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install .[interop]")
sentence_transformers = pytest.importorskip(
    "sentence_transformers", reason="sentence-transformers is not installed: pip install .[interop]"
)
WORDS = "where do zebras live they graze on grassland in africa and lions sleep there ?".split()
VOCABULARY = WordPiece([*SPECIAL_TOKENS, *WORDS])
CONFIG = TransformerConfig(
    vocab_size=len(VOCABULARY), num_layers=2, hidden_size=16, num_heads=2, mlp_size=24, max_length=16
)
PAIRS = [
    ("where do zebras live?", "zebras graze on grassland in africa"),
    ("where do zebras live?", "lions sleep"),
    ("do lions sleep?", "they live there and there and there and there and there and there"),
]


def texts():
    encoded = [[VOCABULARY.encode(text) for text in pair] for pair in PAIRS]
    ids = np.full((len(PAIRS), 16), -1, np.int32)
    types = np.zeros_like(ids)
    for row, (query, passage) in enumerate(encoded):
        pair = VOCABULARY.pair(query, passage, 16)
        ids[row, : len(pair)], types[row, len(query) + 2 : len(pair)] = pair, 1
    return Text.from_ids(jnp.asarray(ids), jnp.asarray(types))


@pytest.mark.parametrize("classes", [1, 2])
def test_sentence_transformers_gives_the_same_scores(classes, tmp_path):
    model = spread(CrossEncoder(CONFIG, classes, rngs=nnx.Rngs(0)), size=0.2)
    write_cross_encoder(tmp_path, model)
    VOCABULARY.save(tmp_path / "vocab.txt")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=16).save_pretrained(tmp_path)
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    ours = model.scores(texts())
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(theirs.predict(PAIRS), ours, rtol=0, atol=1e-5)
    ranked = theirs.rank(PAIRS[0][0], [passage for _, passage in PAIRS[:2]])
    assert [result["corpus_id"] for result in ranked] == np.argsort(-np.asarray(ours[:2])).tolist()


@pytest.mark.parametrize("activation", ["Identity", "Sigmoid", "LogSigmoid", None])
@pytest.mark.parametrize("saved", [False, True], ids=["version 4", "version 5"])
def test_a_folder_of_theirs_gives_the_same_scores(activation, saved, tmp_path):
    """Version 4 writes into config.json what it makes of the logit, and version 5 into a file of its own."""
    write_cross_encoder(tmp_path, spread(CrossEncoder(CONFIG, 1, rngs=nnx.Rngs(0)), size=0.2))
    VOCABULARY.save(tmp_path / "vocab.txt")
    transformers.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=16).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": f"torch.nn.{activation}"} if activation else {}
    (tmp_path / "config.json").write_text(json.dumps(config))
    theirs = sentence_transformers.CrossEncoder(str(tmp_path), device="cpu")
    if saved:
        theirs.save_pretrained(str(tmp_path / "saved"))
    ours = load_cross_encoder(EncoderFolder.open(tmp_path / "saved" if saved else tmp_path), CONFIG).scores(texts())
    assert np.ptp(ours) > 0.01
    np.testing.assert_allclose(ours, theirs.predict(PAIRS), rtol=0, atol=1e-5)

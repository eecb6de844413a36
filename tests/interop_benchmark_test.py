"""The peers' train step: both passes of the loss that caches gradients are in the type that was asked for.

Skipped where sentence-transformers is not installed; nothing is fetched.
"""

import os

import numpy as np
import pytest

os.environ["HF_HUB_OFFLINE"] = "1"
torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0, then .[interop]")
pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed: pip install .[interop]")

from benchmarks.peers import towers, train_step  # noqa: E402

TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.mark.parametrize("chunk", [0, 4])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_pass_has_the_asked_type(tmp_path, monkeypatch, chunk, dtype):
    generator = np.random.default_rng(0)
    query, document = (generator.integers(1, len(TOKENS), shape).astype(np.int32) for shape in ((8, 6), (8, 1, 12)))
    types = dict(query_types=np.zeros_like(query), document_types=np.zeros_like(document))
    np.savez(tmp_path / "pairs.npz", query=query, document=document, **types)
    (tmp_path / "vocab.txt").write_text("\n".join(TOKENS))
    seen, build = [], towers.build

    def watched(*args, **settings):
        model = build(*args, **settings)
        layer = next(module for name, module in model.named_modules() if name.endswith("intermediate.dense"))
        layer.register_forward_hook(lambda _, __, output: seen.append(output.dtype))
        return model

    monkeypatch.setattr(towers, "build", watched)
    model = dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, dropout=0.1, embed_dim=8)
    config = dict(
        model=model,
        data=dict(query_length=6, document_length=12),
        train=dict(temperature=0.05, learning_rate=1e-3, clip_norm=1.0),
    )
    settings = dict(config=config, vocabulary=str(tmp_path / "vocab.txt"), dtype=dtype, chunk=chunk)
    turn = train_step.prepare(settings | dict(pairs=str(tmp_path / "pairs.npz"), batch=8, batches=1))
    row = turn()
    assert row["tokens/s"] > 0 and row["device"] == ""
    passes = 2 * 2 if chunk else 1  # two chunks of each side, and each a second time in the backward pass
    assert seen == [getattr(torch, dtype)] * 2 * passes

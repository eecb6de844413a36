"""Encoding: rows in their order whatever the batches, resumable to the shard, damage noticed."""

import numpy as np
import pytest

from retrieval.errors import UserError
from retrieval.search import encode

RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(1, 99, RNG.integers(1, 71)).tolist() for _ in range(101)]
IDS = [f"d{i}" for i in range(101)]


class Embed:
    """Sum, length and first token of a row: padding does not change them. Keeps the shapes it was called with."""

    def __init__(self):
        self.shapes = []

    def __call__(self, ids):
        self.shapes.append(ids.shape)
        return np.stack([ids.sum(1), (ids > 0).sum(1), ids[:, 0]], axis=1)


def run(folder, embed, texts=TEXTS, ids=IDS):
    encode.encode(
        folder,
        "candidates",
        ids,
        lambda a, b: texts[a:b],
        embed,
        shard_size=40,
        batch_tokens=256,
        longest=70,
        multiple=8,
    )
    return encode.load(folder, "candidates")


def test_rows_come_back_in_order(tmp_path):
    embed = Embed()
    embeddings, ids = run(tmp_path, embed)
    assert ids == IDS and embeddings.dtype == np.float32
    np.testing.assert_array_equal(embeddings, [[sum(t), len(t), t[0]] for t in TEXTS])
    assert max(length for _, length in embed.shapes) == 70  # not 96: no row is longer than the longest text
    assert len(set(embed.shapes)) <= 5 and all(rows % 8 == 0 for rows, _ in embed.shapes)


def test_finished_shards_are_not_encoded_again(tmp_path):
    run(tmp_path, Embed())
    (tmp_path / "candidates-00001-of-00003.npy").unlink()
    embed = Embed()
    embeddings, _ = run(tmp_path, embed)
    np.testing.assert_array_equal(embeddings[:, 1], [len(t) for t in TEXTS])
    assert len(embed.shapes) < 10


def test_an_interrupted_shard_is_not_half_there(tmp_path):
    def fail(ids):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, fail)
    assert not list(tmp_path.glob("*.npy"))


def test_missing_and_damaged_shards_are_named(tmp_path):
    run(tmp_path, Embed())
    path = tmp_path / "candidates-00001-of-00003.npy"
    data = path.read_bytes()
    path.write_bytes(data[:100])
    with pytest.raises(UserError, match=r"00001-of-00003\.npy: damaged"):
        encode.load(tmp_path, "candidates")
    path.unlink()
    with pytest.raises(UserError, match="2 shards of 'candidates'"):
        encode.load(tmp_path, "candidates")


def test_embeddings_that_are_not_finite_are_refused(tmp_path):
    with pytest.raises(UserError, match="not finite"):
        run(tmp_path, lambda ids: np.full((len(ids), 3), np.nan))


def test_no_text_at_all(tmp_path):
    embeddings, ids = run(tmp_path, Embed(), [], [])
    assert len(embeddings) == 0 and ids == []

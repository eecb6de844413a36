import threading

import jax
import numpy as np
import pytest
from support.tiny import make_config

from retrieval.common.runtime import devices
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, build_towers
from retrieval.runs.fitting import validation
from retrieval.search.encoding import encode_any
from retrieval.search.exact import ExactIndex
from retrieval.search.text_batches import batches, padded

"""Batches of texts: few shapes, so few programs; and one program at a time on a GPU."""

LENGTHS = np.random.default_rng(0).integers(3, 281, 4000).tolist()


def size_of(batch_tokens):
    return lambda length: max(1, batch_tokens // length)


@pytest.mark.parametrize(("texts", "batch_tokens"), [(121, 1 << 14), (4000, 1 << 14), (4000, 1 << 18), (1, 256)])
def test_every_text_is_in_one_batch_and_no_batch_is_spare(texts, batch_tokens):
    rows, size = [[place + 1] * length for place, length in enumerate(LENGTHS[:texts])], size_of(batch_tokens)
    made = list(batches(rows, size, 288))
    assert sorted(place for places, _ in made for place in places) == list(range(texts))
    for places, ids_BL in made:
        np.testing.assert_array_equal(ids_BL, padded([rows[place] for place in places], *ids_BL.shape))
        assert len(ids_BL) == size(ids_BL.shape[1])
    tokens = sum(288 * batch_tokens // 288 for _ in made)
    assert tokens <= 1.3 * sum(map(len, rows)) + 4 * batch_tokens


def test_texts_that_fit_into_one_batch_are_one():
    rows = [[1] * length for length in range(1, 65)]
    [(places, ids_BL)] = batches(rows, size_of(64 * len(rows)), 64)
    assert len(places) == 64 and ids_BL.shape == (64, 64)


def test_forty_short_texts_are_one_small_batch():
    shapes = []
    encode_any([[1, 2]] * 40, lambda ids: shapes.append(ids.shape) or np.zeros((len(ids), 2)), 1 << 18, 512, 1)
    assert shapes == [(64, 16)]


def test_a_shorter_length_goes_nowhere_where_it_would_need_a_batch_more():
    rows = [[1] * 16] * 15 + [[1] * 32] * 7
    assert [ids_BL.shape for _, ids_BL in batches(rows, size_of(256), 32)] == [(16, 16), (8, 32)]


class _Vocabulary(list):
    sep_id = 3


def test_a_validation_compiles_few_programs_and_no_later_one_any(monkeypatch):
    """On an H200 the first one of 121 queries took 46 seconds, for it compiled a program for each length."""
    config = make_config(**{"encode.batch_tokens": 1 << 16, "data.query_length": 64, "data.document_length": 288})
    config.model.unroll = 12
    queries = {f"q{n}": [2] * (1 + n % 64) for n in range(121)}
    candidates = {str(n): [[2] * length] for n, length in enumerate(LENGTHS[:200])}
    qrels = {f"q{n}": {str(n): 1} for n in range(121)}
    pool = validation.Pool(queries, candidates, qrels, {})
    monkeypatch.setattr(validation, "check", lambda config: None)
    monkeypatch.setattr(validation.examples, "labelled", lambda config: True)
    monkeypatch.setattr(validation, "_labelled_pool", lambda run, vocabulary: pool)
    shapes, unrolled = [], []
    for name in ("encode_query", "encode_document"):
        real = getattr(TwoTower, name)

        def traced(self, text, key, real=real):
            shapes.append(text.ids_RL.shape)
            unrolled.append(self.query_tower.encoder.config.unroll)
            return real(self, text, key)

        monkeypatch.setattr(TwoTower, name, traced)
    vocabulary = _Vocabulary(range(300))
    run = type("Run", (), {"config": config})
    validate = validation.make(run, vocabulary, local_mesh(config))
    first = validate(parameters_of(build_towers(config, 300)))
    assert len(shapes) == len(set(shapes)) == 2 and set(unrolled) == {1}
    config.seed = 1
    assert validate(parameters_of(build_towers(config, 300))) != first
    assert len(shapes) == 2


def test_a_gpu_runs_one_program_at_a_time(monkeypatch):
    """Two threads at once crashed the process on an H200: XLA recorded the kernels of both as one graph."""
    config = make_config()
    params = parameters_of(build_towers(config, 300))
    index = ExactIndex(np.eye(8, dtype=np.float32))
    embedders = [Embedder(config, _Vocabulary(range(300)), local_mesh(config)).queries(params) for _ in range(2)]
    ids_BL, entered = np.full((8, 16), 2, np.int32), []

    class Observed:
        lock = threading.Lock()

        def __enter__(self):
            assert self.lock.acquire(blocking=False), "a program within another one"
            entered.append(None)

        def __exit__(self, *_):
            self.lock.release()

    monkeypatch.setattr(devices, "_ONE", Observed())
    for backend, held in (("tpu", 0), ("gpu", 3)):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        for embed in embedders:
            embed(ids_BL)
        index.search(np.eye(8), 2)
        assert len(entered) == held

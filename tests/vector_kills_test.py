"""SIGKILLs in training, encoding and search of late interaction and of sparse vectors: the run ends as a whole one.

    .venv/bin/python -m pytest -m long tests/vector_kills_test.py

The runs of `late_run_test` and `splade_run_test` are killed once while they encode.
"""

from random import Random

import pytest
from support.killed_stages import assert_same, is_struck, without
from support.tiny import execute, make_run

from retrieval.runtime import artefacts

pytestmark = pytest.mark.long

CHANGES = {
    "split.set": "reqa",
    "split.ratio": 0.5,
    "split.validation": 0.25,
    "split.shards": 2,
    "data.query_prefix": "",
    "data.document_prefix": "",
    "data.negatives": 0,
    "train.steps": 8,
    "train.batch_size": 8,
    "loop.checkpoint_every": 2,
    "loop.validate_every": 4,
    "encode.corpus": False,
    "late.depth": 5,
    "late.exact": True,
    "late.stored": "residual2",
    "encode.shard_size": 5,
}
BEFORE = ("prepare", "sets", "pairs", "index")
STAGES = {"colbert": ("train", "tokens", "maxsim"), "splade": ("train", "sparse", "evaluate")}
LANDMARKS = {
    "train": ("checkpoints/2", "checkpoints/4", "checkpoints/6"),
    "tokens": ("tokens/reqa/candidates-00001-of-*.npy", "tokens/reqa/candidates.codec.npz"),
    "maxsim": ("stages/tokens.json",),
    "sparse": ("sparse/reqa/candidates-00001-of-*.npz",),
    "evaluate": ("stages/sparse.json",),
}


@pytest.fixture(scope="module", params=STAGES)
def whole(request, inputs, tmp_path_factory):
    """A run that nothing has happened to, and the stages of its method."""
    folder, stages = tmp_path_factory.mktemp(request.param) / "run", STAGES[request.param]
    first = BEFORE if "evaluate" in stages else (*BEFORE, "evaluate")
    run = make_run(request.param, inputs, folder, **CHANGES, stages=(*first, *stages))
    execute(run)
    return run, stages


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_killed_stage_ends_as_a_whole_one(whole, place, tmp_path):
    run, stages = whole
    later = stages[place:]
    copy = without(run, tmp_path / "run", later)
    assert is_struck(copy, run, later, LANDMARKS[later[0]][0])
    execute(copy, *later)
    assert_same(copy, run, later)


@pytest.mark.parametrize("seed", range(3))
def test_a_run_that_is_killed_over_and_over(whole, seed, tmp_path):
    (run, stages), random = whole, Random(seed)
    copy = without(run, tmp_path / "run", stages)
    moments = [mark for stage in stages for mark in LANDMARKS[stage]]
    hits = sum(is_struck(copy, run, stages, mark, random.uniform(0, 0.3)) for mark in moments)
    execute(copy, *stages)
    assert hits >= len(moments) / 2
    assert_same(copy, run, stages)
    assert max(int(path.name) for path in artefacts.checkpoints(copy.folder).iterdir()) == CHANGES["train.steps"]

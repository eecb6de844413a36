"""Tiny runs: every test that makes a run shrinks an experiment of configs/ by this one config."""

import importlib

from conftest import REPOSITORY

from retrieval.data.corpora.passages import Limits
from retrieval.data.shards import prepared_corpus
from retrieval.runs.pipeline import preflight, runner
from retrieval.runs.pipeline.run import Run
from support import small_pipelines  # noqa: F401

# Each lane and file makes a graph of TensorFlow, which takes most of the time of so few steps.
TINY = {
    "prepare": dict(shards=2, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5, workers=1),
    "data": dict(query_length=16, document_length=48, lanes=1, shuffle_buffer=64),
    "split": dict(shards=2),
    "model": dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, matmul_dtype="dtype"),
    "train": dict(steps=4, batch_size=16),
    "loop": dict(log_every=2, checkpoint_every=2),
    "encode": dict(batch_tokens=1024, shard_size=50),
}
# Compiled in a third of a transformer's time: for tests of what is around the model.
CHEAP = {"model.encoder": "bow_mlp"}

# What `prepare` does with these, for tests that have no run.
SETTINGS = prepared_corpus.Settings(
    vocabulary=None, vocab_size=300, num_shards=4, limits=Limits(longest=60, shortest=10, least=5), chunk_bytes=30 << 20
)


def make_config(name="ict_bfs_wlp", size="local", **changes):
    """An experiment, tiny; `changes` are of dotted fields."""
    config = importlib.import_module(f"configs.{name}").get_config(size)
    for group, values in TINY.items():
        config[group].update(values)
    config.update_from_flattened_dict(changes)
    return config


def make_run(name, inputs, folder, **changes):
    """A run of an experiment on the toy corpus, with its questions as the evaluation set."""
    source = {"corpus": str(inputs / "dump.xml"), "sets.pydocs": False, "sets.reqa": str(inputs / "squad.json")}
    return Run(make_config(name, **source | changes), folder, REPOSITORY / "requirements.lock")


def fine_tuning(inputs, pretrained, folder, /, **changes):
    """Half of the 24 toy questions to train on, 3 of these to validate on."""
    changes = {"base": str(pretrained), "train.init_from": str(pretrained), "corpus": "", **changes}
    half = {"split.ratio": 0.5, "split.validation": 0.25, "train.batch_size": 8, "loop.validate_every": 2}
    return make_run("reqa", inputs, folder, **(half | changes))


def as_flags(**changes):
    """The arguments of retrieval.main that make an experiment tiny, with `changes` of dotted fields."""
    fields = {f"{group}.{name}": value for group, values in TINY.items() for name, value in values.items()}
    return [f"--config.{name}={value}" for name, value in (fields | changes).items()]


def execute(run, *names):
    """Does some stages of a run in this process, or those of its config, without the checks before them."""
    runner.open_run(run)
    for name in names or run.config.stages:
        runner.run_stage(run, name)


def complete(run):
    """Checks a run and does its stages, as the program would; the run."""
    preflight.check(run, run.config.stages)
    execute(run)
    return run

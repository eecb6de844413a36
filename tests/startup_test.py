"""What is imported before a command can answer: mistakes on the command line, and `--help`, take a second."""

import subprocess
import sys

import pytest
from conftest import REPOSITORY

import retrieval

HEAVY = {"tensorflow", "seqio", "jax", "flax", "orbax", "optax", "scipy", "matplotlib", "clu"}


def modules_of(*arguments):
    """The exit code, the text, and the first names of all modules that a command imports."""
    command = [sys.executable, "-X", "importtime", *arguments]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    lines = result.stderr.splitlines()
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    text = "\n".join(line for line in lines if not line.startswith("import time:"))
    return result.returncode, result.stdout + text, modules


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 0, "retrieval.main search --workdir="),
        (["--version"], 0, f"retrieval {retrieval.__version__}"),
        (["--help"], 0, "config.train.steps=100000"),
        (["--config=dpr", "--config.train.stepz=3"], 2, "did you mean config.train.steps"),
        (["--config=dpt"], 2, "did you mean --config=configs/dpr.py"),
        (["--config=dpr", "--workdir=/tmp/x", "--config.train.steps=-3"], 2, "a whole number of at least 0 is needed"),
    ],
)
def test_a_mistake_is_answered_without_heavy_imports(arguments, code, message):
    returned, text, modules = modules_of("-m", "retrieval.main", *arguments)
    assert returned == code and message in text
    assert not modules & HEAVY


def test_tables_load_without_tensorflow():
    code, text, modules = modules_of("-c", "from retrieval.runs.pipeline.stage import STAGES; dict(STAGES)")
    assert code == 0, text
    assert not modules & {"tensorflow", "seqio", "matplotlib", "clu", "ir_measures"}

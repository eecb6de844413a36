"""What is imported before a command can answer: mistakes on the command line, and `--help`, are told at once."""

import json
import os
import subprocess
import sys

import pytest
from conftest import REPOSITORY

import retrieval
from retrieval.config import experiment, fields, source_cache

HEAVY = {"tensorflow", "seqio", "jax", "flax", "orbax", "optax", "scipy", "matplotlib", "clu"}


def modules_of(home, *arguments):
    """The exit code, the text, and the first names of all modules that a command imports."""
    result = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_CACHE_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    lines = result.stderr.splitlines()
    modules = {line.rpartition("|")[2].strip().partition(".")[0] for line in lines if line.startswith("import time:")}
    told = "\n".join(line for line in lines if not line.startswith("import time:"))
    return result.returncode, result.stdout + told, modules


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """A cache as the first command after a change leaves it."""
    home = tmp_path_factory.mktemp("cache")
    assert modules_of(home, "-m", "retrieval.main", "--help")[0] == 0
    assert modules_of(home, "-m", "retrieval.main", "--config=dpr", "--config.train.stepz=3")[0] == 2
    return home


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ([], 0, "retrieval.main search --workdir="),
        (["--version"], 0, f"retrieval {retrieval.__version__}"),
        (["--help"], 0, "config.train.steps=100000"),
        (["--config=dpr", "--config.train.stepz=3"], 2, "did you mean config.train.steps"),
        (["--config=dpr", "--workdir=/tmp/x", "--config.train.steps=-3"], 2, "a whole number of at least 0 is needed"),
        (["--config=own", "--workdir=/tmp/x", "--config.corpus=/no/docs"], 2, "no such file or folder, in config.corp"),
    ],
)
def test_a_mistake_is_told_without_heavy_imports(warm, arguments, code, told):
    returned, text, modules = modules_of(warm, "-m", "retrieval.main", *arguments)
    assert returned == code and told in text
    assert not modules & HEAVY


def test_only_files_that_a_stage_will_read_are_missed(warm):
    script = """
from ml_collections import ConfigDict
from retrieval.config import experiment
for is_new, base, stage in (
    (False, "", "prepare"), (True, ".", "prepare"), (True, "", "sets"), (True, "no/base", "sets"), (True, "", "prepare")
):
    try:
        experiment.check_early(ConfigDict({"corpus": "no/dump.xml", "base": base}), is_new, ["train", stage])
        print("right")
    except Exception as error:
        print(error)
"""
    code, text, _ = modules_of(warm, "-c", script)
    told = text.splitlines()
    assert code == 0 and told[:3] == ["right"] * 3, text
    assert "no/base: no such file or folder, in config.base" in told[3] and "in config.corpus" in told[4]


def test_help_ends_quietly_with_its_reader(warm):
    command = f"{sys.executable} -m retrieval.main --help | true"
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_CACHE_HOME": str(warm)},
        capture_output=True,
        text=True,
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_fields_and_tables_load_without_tensorflow(tmp_path):
    script = "from retrieval.config import experiment; experiment.load_fields()"
    code, text, modules = modules_of(tmp_path, "-c", script)
    assert code == 0, text
    assert not modules & {"tensorflow", "seqio", "matplotlib", "clu", "ir_measures"}


def test_kept_defaults_are_those_that_are_declared(warm):
    experiment.load_fields()
    (path,) = warm.glob("retrieval/*/fields.json")
    kept = {name: fields.with_tuples(value) for name, value in json.loads(path.read_text())["value"].items()}
    house = {name: field.default for name, field in fields.declared().items() if name in kept}
    assert kept == house and all(type(value) is type(house[name]) for name, value in kept.items())


def test_kept_kinds_fit_what_is_declared(warm):
    experiment.load_fields()
    (path,) = warm.glob("retrieval/*/kinds.json")
    kept = {name: fields.kind_of(data) for name, data in json.loads(path.read_text())["value"].items()}
    values = ("", "x", "in_batch_softmax", 0, 1, -1, 0.5, 2.5, True, (), (1, 2), (0,), ("a",), None, 1e30, "2x2")
    for name, kind in kept.items():
        declared = fields.declared()[name].kind
        assert kind.needed == declared.needed
        assert [kind.fits(value) for value in values] == [declared.fits(value) for value in values], name
    assert len(kept) > 0.8 * len(fields.declared())


def test_a_changed_source_remakes_the_cache(tmp_path, monkeypatch):
    package = tmp_path / "package"
    package.mkdir()
    source = package / "losses.py"
    source.write_text("one")
    monkeypatch.setattr(source_cache, "PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert source_cache.cached("fields", lambda: [1]) == [1]
    assert source_cache.cached("fields", lambda: [2]) == [1]
    source.write_text("three")
    assert source_cache.cached("fields", lambda: [3]) == [3]
    (package / "new.py").write_text("")
    assert source_cache.cached("fields", lambda: [4]) == [4]
    (kept,) = (tmp_path / "cache").rglob("fields.json")
    kept.write_text("{")
    assert source_cache.cached("fields", lambda: [5]) == [5]  # a damaged file is as none


def test_without_a_cache_it_is_made_each_time(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert source_cache.cached("fields", lambda: 1) == 1
    assert source_cache.cached("fields", lambda: 2) == 2

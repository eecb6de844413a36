"""The wheel, installed and used outside of the repository."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support import toy_corpus

import retrieval

SOURCES = ("retrieval", "configs", "setup.py", "pyproject.toml", "requirements.lock", "LICENSE", "MANIFEST.in")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built of a copy, for it leaves a folder behind."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in SOURCES:
        copy = shutil.copytree if (REPOSITORY / name).is_dir() else shutil.copy
        copy(REPOSITORY / name, source / name)
    pip("wheel", "--no-deps", "--no-build-isolation", "--no-index", f"--wheel-dir={target}", str(source))
    (path,) = target.glob("*.whl")
    return path


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


def environment(folder, wheel, *options):
    """A new environment with the wheel; its programs."""
    venv.create(folder, with_pip=False)
    pip("--python", str(folder / "bin" / "python"), "install", *options, str(wheel))
    return folder / "bin"


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory):
    """The packages that it needs are those of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    programs = environment(folder, wheel, "--no-deps", "--no-index")
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "tested.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return programs


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    passages = {"d0": "the quick fox", "d1": "a slow snail", "d2": "the blue whale"}
    toy_corpus.write_set(tmp_path / "toy", passages, {"q": "which whale is blue"}, {"q": "d2"})
    return tmp_path


def call(*command):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    variables["XDG_CACHE_HOME"] = str(Path(command[0]).parent / "cache")
    done = subprocess.run(list(map(str, command)), env=variables, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def test_a_wheel_holds_configs_and_the_lock(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {path.relative_to(REPOSITORY).as_posix() for path in (REPOSITORY / "configs").rglob("*.py")}
    assert {f"retrieval/{name}" for name in ours} <= names
    assert {"retrieval/requirements.lock", "retrieval/py.typed", "retrieval/serving/page/page.js"} <= names
    data = (path for kind in ("toml", "txt") for path in (REPOSITORY / "retrieval").rglob(f"*.{kind}"))
    assert {path.relative_to(REPOSITORY).as_posix() for path in data} <= names
    assert not any(name.startswith(("tests/", "configs/")) for name in names)
    assert wheel.name == f"retrieval_jax-{retrieval.__version__}-py3-none-any.whl"  # another project is "retrieval"


def test_an_installed_program_runs_in_any_folder(programs, elsewhere):
    code = "from retrieval.configs import bm25\n\n\ndef get_config(size):\n    return bm25.get_config(size)\n"
    (elsewhere / "mine.py").write_text(code)
    done = call(programs / "retrieval", "--config=mine.py:paper", "--config.sets.beir=toy", "--workdir=run")
    assert done.returncode == 0, done.stderr
    rows = json.loads((elsewhere / "run" / "results.json").read_text())
    assert {row["value"] for row in rows if row["metric"] == "RR"} == {1.0}

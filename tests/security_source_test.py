"""The source has nothing in it that runs data: no pickle, no eval, no shell, no archive that leaves its folder."""

import ast
import re
import subprocess
import sys

from conftest import REPOSITORY

# What a call must say, by the end of its name. The linter refuses whole modules and functions (pyproject.toml).
NEEDED = {"np.load": "allow_pickle=False", "np.save": "allow_pickle=False", "torch.load": "weights_only=True"}
UNPACKING = ("extractall", "extract", "read_pickle")


def findings(source):
    """Calls that would unpickle, or unpack an archive."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.module in ("numpy", "torch"):
            yield from (a.name for a in node.names if a.name in ("load", "save"))
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("load", "save", *UNPACKING)
        ):
            name, options = ast.unparse(node.func), [f"{word.arg}={ast.unparse(word.value)}" for word in node.keywords]
            if node.func.attr in UNPACKING or (name in NEEDED and NEEDED[name] not in options):
                yield f"line {node.lineno}: {name}"


def test_the_source_unpickles_and_unpacks_nothing():
    rooms = ("retrieval", "configs", "launch", "benchmarks")
    sources = [path for room in rooms for path in (REPOSITORY / room).rglob("*.py")]
    assert len(sources) > 80
    found = {str(path): list(findings(path.read_text(encoding="utf-8"))) for path in sources}
    assert not {path: lines for path, lines in found.items() if lines}


def test_the_scan_finds():
    calls = ("np.load('x')", "np.load('x', allow_pickle=True)", "from numpy import load", "zip('x').extractall()")
    assert all(list(findings(call)) for call in calls) and not list(findings("np.load('x', allow_pickle=False)"))


def test_the_linter_refuses_what_runs_data():
    source = ["import pickle", "import tarfile", "eval('1')", "import subprocess", "subprocess.run('x', shell=True)"]
    command = [sys.executable, "-m", "ruff", "check", "--quiet", "--output-format=concise"]
    command += ["--stdin-filename=retrieval/new.py", "-"]
    done = subprocess.run(command, input="\n".join(source), cwd=REPOSITORY, capture_output=True, text=True)
    lines = set(re.findall(r":(\d+):\d+: (?:TID251|S\d+)\b", done.stdout))
    assert lines == {"1", "2", "3", "5"}, done.stdout + done.stderr


def test_no_script_evaluates_a_string():
    """The one `bash -c` has a text of its own, and gets the user's words as arguments."""
    scripts = sorted((REPOSITORY / "launch").glob("*.sh"))
    assert len(scripts) > 5
    for path in scripts:
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        assert not re.search(r"(^|[;&|({]\s*|\s)(eval|source \$|\. \$)(\s|$)", code), path
        for found in re.finditer(r"\b(?:ba|da|z)?sh -c (.)", code):
            assert found[1] == "'", path

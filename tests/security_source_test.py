"""The source has nothing in it that runs data: no pickle, no eval, no shell, no archive that leaves its folder."""

import ast
import re

import pytest
from conftest import REPOSITORY

FORBIDDEN = {
    **dict.fromkeys(("pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"), "pickles"),
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"), "runs text"),
    **dict.fromkeys(("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"), "a shell"),
    **dict.fromkeys(("asyncio.create_subprocess_shell", "pty.spawn", "code.interact"), "a shell"),
    **dict.fromkeys(("yaml.load", "yaml.unsafe_load", "yaml.full_load", "jsonpickle"), "makes objects"),
    **dict.fromkeys(("pandas.read_pickle", "numpy.lib.npyio.load", "flax.serialization.from_bytes"), "makes objects"),
    **dict.fromkeys(
        ("shutil.unpack_archive", "tarfile", "xml.etree", "xml.dom", "xml.sax.parse", "xml.sax.make_parser"),
        "follows what it reads",
    ),
}
METHODS = {"extractall": "leaves its folder", "extract": "leaves its folder", "read_pickle": "pickles"}


def findings(source):
    """What a file must not do: line and reason."""
    tree = ast.parse(source)
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
            yield from ((node.lineno, why) for a in node.names if (why := reason(a.name)))
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
            yield from ((node.lineno, why) for a in node.names if (why := reason(f"{node.module}.{a.name}")))
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute) and (why := reason(full_name(node, names))):
            yield node.lineno, why
        if isinstance(node, ast.Call):
            yield from ((node.lineno, why) for why in call(node, full_name(node.func, names)))


def full_name(node, names):
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    return f"{full_name(node.value, names)}.{node.attr}" if isinstance(node, ast.Attribute) else "?"


def reason(name):
    parts = name.split(".")
    return next(
        (FORBIDDEN[".".join(parts[:n])] for n in range(1, len(parts) + 1) if ".".join(parts[:n]) in FORBIDDEN), None
    )


def call(node, name):
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if name == "numpy.load" and getattr(keywords.get("allow_pickle"), "value", None) is not False:
        yield "numpy.load without allow_pickle=False"
    if name == "numpy.save" and getattr(keywords.get("allow_pickle"), "value", None) is not False:
        yield "numpy.save without allow_pickle=False"
    if name == "torch.load" and getattr(keywords.get("weights_only"), "value", None) is not True:
        yield "torch.load without weights_only=True"
    if "shell" in keywords:
        yield "a shell"
    if isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
        yield METHODS[node.func.attr]


SOURCES = [
    path for room in ("retrieval", "configs", "launch", "benchmarks") for path in (REPOSITORY / room).rglob("*.py")
]


def test_the_source_has_none_of_what_runs_data():
    assert len(SOURCES) > 80
    found = {str(path): list(findings(path.read_text(encoding="utf-8"))) for path in SOURCES}
    assert not {path: lines for path, lines in found.items() if lines}


# fmt: off
FOUND = [
    "import pickle", "from pickle import loads as read", "import dill as d", "from joblib import load",
    "import os as o\no.system('x')", "from os import popen", "eval('1')", "run = exec",
    "import subprocess\nsubprocess.run('x', shell=True)", "import yaml\nyaml.load('x')",
    "import numpy as np\nnp.load('x')", "import numpy as np\nnp.load('x', allow_pickle=True)",
    "from numpy import load\nload('x', mmap_mode='r')", "import zipfile\nzipfile.ZipFile('x').extractall()",
    "import torch\ntorch.load('x')", "import torch\ntorch.load('x', weights_only=False)",
    "import xml.etree.ElementTree as ET", "import tarfile",
]
# fmt: on


@pytest.mark.parametrize("source", FOUND)
def test_the_scan_finds(source):
    assert list(findings(source))


def test_the_scan_lets_good_code_pass():
    good = (
        "import numpy as np, re, subprocess\nnp.load('x', allow_pickle=False)\nre.compile('x')\nsubprocess.run(['x'])"
    )
    assert not list(findings(good))


def test_no_script_evaluates_a_string():
    """The one `bash -c` has a text of its own, and gets the user's words as arguments."""
    scripts = sorted((REPOSITORY / "launch").glob("*.sh"))
    assert len(scripts) > 5
    for path in scripts:
        code = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
        assert not re.search(r"(^|[;&|({]\s*|\s)(eval|source \$|\. \$)(\s|$)", code), path
        for found in re.finditer(r"\b(?:ba|da|z)?sh -c (.)", code):
            assert found[1] == "'", path


def test_no_document_names_the_host_of_a_package_index():
    """A mirror may stand in its place: the documents say "the package index"."""
    names = re.compile(r"\bpypi\.(org|python)|pythonhosted\.org|\bosv\.dev|\bindex-url\b", re.IGNORECASE)
    endings = {".md", ".py", ".sh", ".lock", ".toml", ".yaml"}
    rooms = [REPOSITORY / room for room in ("retrieval", "configs", "launch", "benchmarks", "docs", "tests")]
    paths = [path for room in rooms for path in room.rglob("*")] + list(REPOSITORY.glob("*"))
    texts = [path for path in paths if path.is_file() and path.suffix in endings]
    assert REPOSITORY / "SECURITY.md" in texts and len(texts) > 200
    assert not [str(path) for path in texts if names.search(path.read_text(encoding="utf-8"))]

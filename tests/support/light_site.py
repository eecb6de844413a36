"""Processes that can import what `pip install retrieval-jax` brings, and nothing else."""

import ast
import os
import re
import subprocess
import sys
from importlib import metadata

from conftest import REPOSITORY
from packaging.requirements import Requirement


def _required(extras):
    """What `setup.py` asks for."""
    calls = [node for node in ast.walk(ast.parse((REPOSITORY / "setup.py").read_text())) if isinstance(node, ast.Call)]
    (values,) = [
        {each.arg: each.value for each in call.keywords} for call in calls if ast.unparse(call.func) == "setup"
    ]
    of_extras = ast.literal_eval(values["extras_require"])
    return [*ast.literal_eval(values["install_requires"]), *(name for extra in extras for name in of_extras[extra])]


def closure(*extras):
    """The distributions that `setup.py` asks for, and those that they require."""
    found, left = {}, [(Requirement(name), {""}) for name in _required(extras)]
    while left:
        requirement, given = left.pop()
        if requirement.marker and not any(requirement.marker.evaluate({"extra": extra}) for extra in given):
            continue
        name, wanted = re.sub(r"[-_.]+", "-", requirement.name).lower(), {"", *requirement.extras}
        if not wanted <= found.get(name, set()):
            found[name] = wanted | found.get(name, set())
            left += [(Requirement(each), found[name]) for each in metadata.requires(name) or []]
    return set(found)


def make(folder, *extras):
    """Fills a folder to import from, with links to these distributions."""
    for name in closure(*extras):
        distribution = metadata.distribution(name)
        for top in {path.parts[0] for path in distribution.files or []} - {"..", "__pycache__"}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
    return folder


def python(site, *arguments, **options):
    """A started process that imports from that folder and the repository."""
    variables = os.environ | {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{site}", "XLA_FLAGS": ""}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-S", *arguments], env=variables, text=True, **pipes, **options)

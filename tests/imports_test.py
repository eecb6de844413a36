"""Rooms do not import each other, those that need no TensorFlow do not import it, and an answer takes a second."""

import ast
import functools
import graphlib
import os
import re
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY
from support import children

import retrieval
from retrieval.runs.pipeline.stage import ADOPT, STAGES, TRAIN

ROOMS = ("data", "models", "training", "search", "evaluation")
# Each layer imports those below it, never one above. Files at the top of the package are programs.
LAYERS = (("common", "config"), ROOMS, ("recipes",), ("runs",), ("api", "serving", "export"), ("stages",), ("methods",))
RUNS = ("pipeline", "weights", "ranking", "fitting", "pairs")  # a room imports those before it
RUN = REPOSITORY / "retrieval" / "runs" / "pipeline" / "run.py"
SHARED = ("retrieval.common", "retrieval.config.fields", "retrieval.config.tree")


@functools.cache
def imports(path):
    """What a file imports, within functions too; not what only a type checker reads."""
    imported, unread = [], [ast.parse(path.read_text(encoding="utf-8"))]
    while unread:
        node = unread.pop()
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            imported += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        unread += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
    return imported


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_itself_and_the_shared_files(room):
    files = list((REPOSITORY / "retrieval" / room).rglob("*.py"))
    assert len(files) > 2
    for path in files:
        for name in imports(path):
            if name.startswith("retrieval."):
                allowed = name.startswith(f"retrieval.{room}") or name.startswith(SHARED)
                assert allowed, f"{path.name} imports {name}"


def test_fields_name_no_method_and_import_no_other_file():
    tree = (REPOSITORY / "retrieval" / "config" / "tree.py").read_text(encoding="utf-8")
    assert "retrieval.methods." not in tree
    of_fields = set(imports(REPOSITORY / "retrieval" / "config" / "fields.py"))
    assert not {name for name in of_fields if name.startswith("retrieval.config")}


def test_methods_stand_on_the_trunk_alone():
    """A method imports no other method, and the trunk imports none."""
    joins = []
    for path in (REPOSITORY / "retrieval").rglob("*.py"):
        parts = path.relative_to(REPOSITORY / "retrieval").parts
        own = f"retrieval.methods.{parts[1]}" if parts[0] == "methods" and len(parts) > 2 else "nothing"
        found = {name for name in imports(path) if name.startswith("retrieval.methods.") and not name.startswith(own)}
        joins += [f"{path.name} imports {name}" for name in found]
    assert not joins


def graph():
    """The modules of the package that each of them imports, within functions too."""
    files = {path: path.relative_to(REPOSITORY) for path in (REPOSITORY / "retrieval").rglob("*.py")}
    modules = {".".join(file.with_suffix("").parts).removesuffix(".__init__"): path for path, file in files.items()}
    return {name: {other for other in imports(path) if other in modules} for name, path in modules.items()}


def test_nothing_imports_itself_by_way_of_others():
    """`prepare` raises what lies in a circle."""
    graphlib.TopologicalSorter(graph()).prepare()


def test_training_meets_no_stage_that_comes_before_it():
    """What its data has to be, those stages' own `check_reader` says."""
    modules = graph()
    reached, new = set(), {"retrieval.stages.train"}
    while new:
        reached |= new
        new = set().union(*map(modules.__getitem__, new)) - reached
    others = {f"retrieval.stages.{name}" for name in ("mine", "pairs", "prepare", "sets")}
    assert others < modules.keys() and not others & reached


def layer(module):
    """The number of a module's layer; programs and their studies are above all others."""
    room = module.split(".")[1]
    return next((number for number, rooms in enumerate(LAYERS) if room in rooms), len(LAYERS))


def test_no_layer_imports_one_above():
    for name, imported in graph().items():
        above = [other for other in imported if other != "retrieval" and layer(other) > layer(name)]
        assert name == "retrieval" or not above, f"{name} imports {above}"


def test_rooms_import_each_other_one_way():
    edges = {
        (name.split(".")[1], other.split(".")[1])
        for name, imported in graph().items()
        for other in imported
        if name.count(".") > 1 and other.count(".") > 1
    }
    assert not {(one, two) for one, two in edges if one < two and (two, one) in edges}


def test_rooms_of_runs_import_those_before_them():
    for number, room in enumerate(RUNS):
        later = tuple(f"retrieval.runs.{other}" for other in RUNS[number + 1 :])
        for path in (REPOSITORY / "retrieval" / "runs" / room).glob("*.py"):
            assert not [name for name in imports(path) if name.startswith(later)], path


def test_the_pipeline_names_no_stage():
    """What it has to know of one is a property of `Stage`, which the stage's own file says; `Run` has their outputs."""
    for path in set((REPOSITORY / "retrieval" / "runs" / "pipeline").glob("*.py")) - {RUN}:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose]
        names = set(STAGES) - {TRAIN, ADOPT}  # the two that give a model, which all others read by one name
        named = [text for text in texts for name in names if re.search(rf"^{name}$|'{name}'|--stage={name}", text)]
        assert not named, f"{path.name}: {named}"


def test_no_other_command_has_the_flags_of_a_run():
    """A process has one table of flags: those of a module that is imported are taken, and would be ignored."""
    importing = {path.name for path in (REPOSITORY / "retrieval").rglob("*.py") if "retrieval.main" in imports(path)}
    assert importing == {"one_run.py"}


def test_no_test_imports_another():
    """What tests share is in `tests/support`."""
    paths = list((REPOSITORY / "tests").rglob("*.py"))
    tests = {path.stem for path in paths if path.stem.endswith("_test")}
    for path in paths:
        assert not tests & {name.partition(".")[0] for name in imports(path)}, path


MODULES = """
    retrieval.data.tokenizers.vocab retrieval.evaluation.metrics retrieval.data.sets.reqa retrieval.training.losses
    retrieval.data.shards.prepared_corpus retrieval.search.bm25 retrieval.search.exact retrieval.models.two_tower
""".split()
# bm25s starts JAX's devices when it is imported, and BM25, which reads its lists of words, does without any.
LIGHT = {
    "from retrieval.config.fields import declared; assert 'model.classes' in declared()": {
        "jax",
        "numpy",
        "tensorflow",
    },
    f"import {', '.join(MODULES)}; list(retrieval.search.bm25.ENGLISH.of(['some words']))": {"tensorflow", "bm25s"},
    "from retrieval.runs.pipeline.stage import STAGES; dict(STAGES)": {"tensorflow", "seqio", "matplotlib", "clu"},
}


@pytest.mark.parametrize("program", LIGHT)
def test_what_is_light_imports_nothing_that_takes_long(program):
    code, text, modules = modules_of("-c", program)
    assert code == 0, text
    assert not modules & LIGHT[program]


TRAINING = """import atexit, sys
sys.path.append("tests")
from retrieval import main
from support import small_pipelines
atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("retrieval"))))
main.program()
"""


@pytest.mark.long
def test_a_training_has_in_memory_what_its_config_names(prepared, tmp_path):
    """Of methods their fields, and the task whose pairs `prepare` has counted."""
    shutil.copytree(prepared, tmp_path / "run")
    command = [sys.executable, "-c", TRAINING, "--stage=train", f"--workdir={tmp_path / 'run'}"]
    command += ["--config.model.encoder=bow_mlp", "--config.train.steps=1"]
    environment = os.environ | {"XLA_FLAGS": children.XLA_FLAGS}
    names = subprocess.check_output(command, cwd=REPOSITORY, env=environment, text=True).split()
    of_methods = [name for name in names if name.startswith("retrieval.methods.") and name.count(".") > 2]
    assert [name for name in of_methods if not name.endswith(".fields")] == ["retrieval.methods.mlm.task"]
    assert len(names) <= 230, sorted(names)


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
        ([], 0, "retrieval search"),
        (["--version"], 0, f"retrieval {retrieval.__version__}"),
        (["--help=fields"], 0, "config.train.steps=100000"),
        (["--config=dpr", "--config.train.stepz=3"], 2, "did you mean config.train.steps"),
        (["--config=dpr", "--workdir=/tmp/x", "--config.train.steps=-3"], 2, "a whole number of at least 0 is needed"),
    ],
)
def test_a_mistake_is_answered_without_heavy_imports(arguments, code, message):
    returned, text, modules = modules_of("-m", "retrieval.main", *arguments)
    assert returned == code and message in text
    assert not modules & HEAVY

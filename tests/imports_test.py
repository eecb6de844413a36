"""The rooms of the house do not import each other, and those that need no TensorFlow do not import it."""

import ast
import functools
import graphlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from retrieval.runs.pipeline.stage import STAGES

ROOMS = ("data", "models", "training", "search", "evaluation")
RUN = REPOSITORY / "retrieval" / "pipeline" / "run.py"
NO_ROOMS = "config.fields config.tree errors files libraries parsing registry runtime terminal"
SHARED = tuple(f"retrieval.{name}" for name in NO_ROOMS.split())


@functools.cache
def imports(path):
    """The modules that a file imports, and what it takes of them, as if these were modules too."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
    return found


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_itself_and_the_shared_files(room):
    files = list((REPOSITORY / "retrieval" / room).rglob("*.py"))
    assert len(files) > 2
    for path in files:
        for name in imports(path):
            if name.startswith("retrieval."):
                allowed = name.startswith(f"retrieval.{room}") or name.startswith(SHARED)
                assert allowed, f"{path.name} imports {name}"


def test_fields_name_no_method_and_load_nothing_that_takes_long():
    tree = (REPOSITORY / "retrieval" / "config" / "tree.py").read_text(encoding="utf-8")
    assert "retrieval.methods." not in tree
    of_fields = set(imports(REPOSITORY / "retrieval" / "config" / "fields.py"))
    assert not {name for name in of_fields if name.startswith("retrieval.config")}
    program = (
        "import sys; from retrieval.config.fields import declared; assert 'model.classes' in declared();"
        "assert not {'jax', 'numpy', 'flax', 'tensorflow'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, cwd=REPOSITORY)


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
    others = {f"retrieval.stages.{name}" for name in ("mine", "pairs", "prepare", "sets", "labelled_groups")}
    assert others < modules.keys() and not others & reached


def test_the_shared_files_stand_on_no_room():
    """Rooms stand on the files beside them and on `runtime`; recipes, stages, studies, runs and programs join rooms."""
    rooms = tuple(f"retrieval.{room}" for room in ROOMS)
    shared = [
        path
        for path in (REPOSITORY / "retrieval").glob("*.py")
        if path.name not in ("compare.py", "main.py", "reference.py", "study.py")
    ]
    below = [path for room in ("parsing", "runtime") for path in (REPOSITORY / "retrieval" / room).glob("*.py")]
    for path in [*shared, *below]:
        assert not any(name.startswith(rooms) for name in imports(path)), path


def test_the_pipeline_names_no_stage():
    """What it has to know of one is a property of `Stage`, which the stage's own file says; `Run` has their outputs."""
    for path in set((REPOSITORY / "retrieval" / "pipeline").glob("*.py")) - {RUN}:
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant) and id(node) not in prose]
        named = [text for text in texts for name in STAGES if re.search(rf"^{name}$|'{name}'|--stage={name}", text)]
        assert not named, f"{path.name}: {named}"


def test_only_the_commands_run_stages():
    for path in (REPOSITORY / "retrieval").rglob("*.py"):
        if not {"stages", "api", "methods", "main.py", "study.py", "mine.py"} & set(path.parts):
            assert not any(name.startswith("retrieval.stages") for name in imports(path)), path


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


# Lightest first: what one of them imports is there for those behind it too.
MODULES = (
    "retrieval.data.tokenizers.vocab",
    "retrieval.evaluation.metrics",
    "retrieval.data.sets.reqa",
    "retrieval.data.shards.prepared_corpus",
    "retrieval.search.bm25",
    "retrieval.search.exact",
    "retrieval.training.losses",
    "retrieval.models.two_tower",
)
IMPORT = """
import importlib, sys
for module in sys.argv[1:]:
    importlib.import_module(module)
    if module == "retrieval.search.bm25":
        list(sys.modules[module].ENGLISH.of(["a text of words"]))
    print(module, *{"tensorflow", "bm25s"} & sys.modules.keys())
"""


def test_tensorflow_and_bm25s_are_imported_only_where_needed():
    """bm25s starts JAX's devices when it is imported, and BM25, which reads its lists of words, does without any."""
    said = subprocess.check_output([sys.executable, "-c", IMPORT, *MODULES], cwd=REPOSITORY, text=True)
    assert said.splitlines() == list(MODULES)


TRAINING = """import atexit, sys
from retrieval import main
atexit.register(lambda: print(*(name for name in sys.modules if name.startswith("retrieval"))))
main.program()
"""


def test_a_training_has_in_memory_what_its_config_names(prepared, tmp_path):
    """Of methods their fields, and the task whose pairs `prepare` has counted."""
    shutil.copytree(prepared, tmp_path / "run")
    command = [sys.executable, "-c", TRAINING, "--stage=train", f"--workdir={tmp_path / 'run'}"]
    names = subprocess.check_output(command, cwd=REPOSITORY, text=True).split()
    of_methods = [name for name in names if name.startswith("retrieval.methods.") and name.count(".") > 2]
    assert [name for name in of_methods if not name.endswith(".fields")] == ["retrieval.methods.mlm.task"]
    assert len(names) <= 230, sorted(names)

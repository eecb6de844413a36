"""Eight CPU devices, of which all modules but some see one, and what they share: a corpus, and real data."""

import ctypes
import functools
import gc
import gzip
import logging
import os
import pathlib
import pickle
from importlib import metadata

import pytest
from support import children

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit what follows
    os.environ["XLA_FLAGS"] = (
        os.environ.get("XLA_FLAGS", "") + f" --xla_force_host_platform_device_count=8 {children.XLA_FLAGS}"
    )
    # Many tests compile the same small programs, and so does the next call.
    kept = pathlib.Path(__file__).resolve().parents[1] / ".jax_cache" / metadata.version("jaxlib")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(kept))
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    # Most of a small step's time goes into tracing it, a tenth of that into noting where its operations were written.
    os.environ.setdefault("JAX_TRACEBACK_IN_LOCATIONS_LIMIT", "0")
else:
    from support import small_pipelines  # noqa: F401

import jax
from support import toy_corpus

from retrieval.common import files
from retrieval.data.shards import local_runner
from retrieval.evaluation import display

# Else the pools of `prepare_test` would wait for workers that import TensorFlow; those of the runs of `faults_test` do.
local_runner._START = children.FORK_SERVER

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

# Modules that are about meshes, or about what is said of eight devices.
_EIGHT_DEVICES = frozenset(
    f"{name}_test"
    for name in (
        *("artefacts", "exact", "index_shards", "kmeans", "loop", "mistakes"),
        *("inference", "packing", "plan", "pod", "pod_search", "pod_store", "refresh", "scann", "sharding"),
        *("source_runs", "tasks", "transformer"),
        *("optimizers", "training_length", "vector_codes"),
    )
)


# Tests of these start copies of a process, whose imports take seconds: one worker has them all, and makes it once.
_OF_COPIES = ("faults", "manual", "plugins", "prepare", "registry", "serving")
# They come first, then the longest of the others: else one of them would be at work alone in the end.
_FIRST = [*_OF_COPIES, *"tasks source_runs seq2seq encoders splade_run lora_run end_to_end early_loss".split()]
_FIRST += "store_runs embedding more_steps module_folder refresh sharding readme reader_run reranker_run".split()


@pytest.fixture(scope="session")
def shared_data() -> pathlib.Path:
    """The folder of real data; a test that asks for it is skipped where there is none."""
    folder = pathlib.Path(os.environ.get("RETRIEVAL_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real data at {folder}; set RETRIEVAL_TEST_DATA to its folder")
    return folder


@pytest.fixture(scope="session")
def inputs(tmp_path_factory) -> pathlib.Path:
    """The folder of a dump and of SQuAD's questions on it, to be read only."""
    return toy_corpus.write_inputs(tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="module")
def prepared(inputs):
    """A work directory whose corpus and sets are made, to be copied."""
    return _prepared(inputs)


@functools.cache
def _prepared(inputs):
    """Made within a module, whose fixtures spare it processes and devices."""
    from support.tiny import execute, make_run

    folder = inputs.with_name("prepared") / "run"
    execute(make_run("ict_bfs_wlp", inputs, folder), "prepare", "sets")
    return folder


def write(path, text):
    """Writes a text or bytes, compressed where the name says so."""
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def run_here(name, tasks, function, workers, total=None):
    """`local_runner.run_tasks` without its processes; functions and arguments are what these would get."""
    for output, arguments in tasks:
        if not output.exists():
            task, arguments = pickle.loads(pickle.dumps((function, arguments)))
            task(output, *arguments)


@pytest.fixture(scope="module", autouse=True)
def pools():
    """None: most of the time for a small corpus goes into starting them. `prepare_test` has them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_runner, "run_tasks", run_here)
        yield


@pytest.fixture(scope="module", autouse=True)
def devices(request):
    """One, but in modules about meshes: runs on one take two thirds of the time."""
    names = vars(request.module)
    is_of_a_mesh = "assert_same_on_any_mesh" in names or "assert_loss_same_on_any_mesh" in names
    if request.module.__name__ not in _EIGHT_DEVICES and not is_of_a_mesh:
        request.getfixturevalue("one_device")


@pytest.fixture(scope="module")
def one_device():
    """One of the eight."""
    with pytest.MonkeyPatch.context() as patch:
        first = jax.devices()[:1]
        patch.setattr(jax, "devices", lambda *_, **__: first)
        patch.setattr(jax, "local_devices", lambda *_, **__: first)
        patch.setattr(jax, "device_count", lambda *_: 1)
        yield


@pytest.fixture(scope="module", autouse=True)
def plots():
    """Empty ones: most of the time for a small report goes into drawing. Those that look at plots have them."""

    def save(folder, canvas, title):
        name = display.file_name(title)
        files.write_text(folder / "plots" / f"{name}.png", "")
        return f"![{name}](plots/{name}.png)"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(display, "save", save)
        yield


@pytest.fixture(scope="module", autouse=True)
def memory():
    """A worker that holds much gives the programs of the modules before away, which few modules after ask for."""
    yield
    state = pathlib.Path("/proc/self/statm")
    if state.exists() and int(state.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 1.5e9:
        jax.clear_caches()
        gc.collect()
        getattr(ctypes.CDLL(None), "malloc_trim", int)(0)


@pytest.fixture(autouse=True)
def own_log():
    """What a program that a test runs in this process does to the log ends with the test."""
    log = logging.getLogger("retrieval")
    before = log.handlers, log.propagate, log.level
    yield
    log.handlers, log.propagate, level = before
    log.setLevel(level)


@pytest.fixture
def own_table(monkeypatch):
    """A function that gives a table other entries for a test, or its own to add to."""

    def own(table, entries=None):
        house = dict(table.items())  # registered before others take their place
        monkeypatch.setattr(table, "_entries", house if entries is None else entries)
        monkeypatch.setattr(table, "_modules", {})

    return own


def pytest_collection_modifyitems(items):
    """In the order in which workers take them."""
    place = {f"{name}_test": number for number, name in enumerate(_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Files stay whole, for their tests share what is dear to make, and are taken in the order of collection."""
    from xdist.scheduler import LoadFileScheduling

    class Files(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            return "copies" if pathlib.Path(file).stem.removesuffix("_test") in _OF_COPIES else file

    if config.option.dist == "loadfile":
        config.option.loadscopereorder = False
        return Files(config, log)


def pytest_collection_finish():
    """What is imported by now stays, so the collector need not look at it whenever a traced program goes."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)

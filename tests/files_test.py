"""Files are whole or not there; errors name the file."""

import contextlib
import errno
import itertools
import json
import os
import resource
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import REPOSITORY, write
from support import tiny

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.libraries import figures
from retrieval.common.parsing import foreign_json, text_files
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import json_array
from retrieval.data.shards import tfrecords
from retrieval.runs.pipeline import runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage


def test_an_interrupted_write_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    with pytest.raises(KeyboardInterrupt), files.atomic(path) as temporary:
        temporary.write_text("new, but hal")
        raise KeyboardInterrupt
    assert path.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["a.txt"]


@contextlib.contextmanager
def no_file_above(size):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def save_array(path):
    with path.open("wb") as file:
        np.save(file, np.zeros(100_000))


WRITERS = {
    "text": lambda path: path.write_text("a" * 100_000),
    "array": save_array,
    "records": lambda path: tfrecords.deal(((0, bytes(9_000)) for _ in range(30)), path, 2, "pairs"),
    "rows": lambda path: files.write_rows(path, (10, 1000), [np.zeros((10, 1000))]),
    "plot": lambda path: figures.Figure().savefig(path, format="png"),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_disk_that_takes_no_more_is_named_with_the_path(tmp_path, kind):
    with pytest.raises(OSError) as failed, no_file_above(1_000), files.atomic(tmp_path / "a") as temporary:
        WRITERS[kind](temporary)
    # NumPy says only that less was written than was to be.
    assert failed.value.errno in (errno.EFBIG, errno.ENOSPC)
    assert "/a" in failed.value.filename or "-a" in failed.value.filename
    assert not list(tmp_path.iterdir())


def test_a_file_of_rows_grows_with_its_parts(tmp_path):
    """Mapped memory has the whole length from the beginning, and a full disk is met too late for an error."""
    rows = np.arange(6_000.0).reshape(6, 1000)

    def parts():
        for start in (0, 2, 4):
            assert next(tmp_path.iterdir()).stat().st_size < 1_000 + 4_000 * start
            yield rows[start : start + 2]

    files.write_rows(tmp_path / "a.npy", rows.shape, parts())
    found = files.read_array(tmp_path / "a.npy", "")
    np.testing.assert_array_equal(found, rows.astype(np.float32), strict=True)


def test_a_full_disk_without_a_path_is_named_with_the_folder(tmp_path, monkeypatch, own_table):
    """Where a stage or a library writes plainly: in the run's folder, in one of `scratch`, or in the system's."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(files.tempfile, "tempdir", None)
    run = Run(tiny.make_config("bm25"), tmp_path / "run", REPOSITORY / "requirements.lock")

    def fill(run):
        with (run.folder / "out").open("wb", buffering=0) as file, no_file_above(1_000):
            while True:
                file.write(bytes(2_000))

    def fill_scratch(*given):
        with files.scratch(*given) as folder:
            (folder / "sub").mkdir()
            fill(SimpleNamespace(folder=folder))

    own_table(STAGES, {"filling": Stage(fill, writes=("out",))})
    runner.open_run(run)
    for fails, place in ((lambda: runner.run_stage(run, "filling"), run.folder), (fill_scratch, tmp_path)):
        with pytest.raises(OSError) as failed:
            fails()
        assert (failed.value.errno, failed.value.filename) == (errno.EFBIG, str(place))


def test_json_errors_name_the_file_and_the_place(tmp_path):
    path = tmp_path / "a.json"
    with pytest.raises(UserError, match=r"a\.json: no such file"):
        files.read_json(path)
    path.write_text('{"a": 1,\n oops}')
    with pytest.raises(UserError, match=r"a\.json: not valid JSON .*line 2"):
        files.read_json(path)
    path.write_text('{"a": [{"b": 1, "b": 2}]}')
    with pytest.raises(UserError, match=r"a\.json: not valid JSON .*'b' is there twice"):
        files.read_json(path)


@pytest.mark.parametrize("number", ["9" * 5000, "1" + 400 * "0", "1e999", "-1e999", "NaN", "-Infinity"])
def test_numbers_that_no_float_holds_are_refused(tmp_path, number):
    path = write(tmp_path / "a.json", f'[{{"a": {number}}}]')
    for read in (
        files.read_json,
        lambda path: foreign_json.parse(path.read_bytes(), str(path)),
        lambda path: list(json_array.read(path)),
    ):
        with pytest.raises(UserError, match=r"a\.json.*: not valid JSON"):
            read(path)


def test_what_is_no_file_is_refused_and_not_waited_for(tmp_path):
    """A shell's process substitution is such a pipe too."""
    os.mkfifo(tmp_path / "pipe")
    reads = [
        files.read_json,
        lambda path: list(text_files.lines(path)),
        text_files.whole,
        lambda path: source_paths.existing([path]),
        lambda path: source_paths.checked("config.pairs.files", [str(path)], None),
    ]
    for read in reads:
        for path in (tmp_path / "pipe", Path("/dev/zero")):
            with pytest.raises(UserError, match="a pipe, a device or a socket cannot be read twice"):
                read(path)


def test_no_flipped_bit_of_a_manifest_hides_a_file(tmp_path):
    """`a` and `c` are a bit apart: a flip makes two names one, of which JSON's readers keep the last."""
    for name in ("a", "c"):
        (tmp_path / name).write_text(name)
    files.write_manifest(tmp_path)
    manifest = tmp_path / "manifest.json"
    before = manifest.read_bytes()
    for place, bit in itertools.product(range(len(before)), range(8)):
        after = before[:place] + bytes([before[place] ^ 1 << bit]) + before[place + 1 :]
        manifest.write_bytes(after)
        with contextlib.suppress(UserError):
            files.verify_manifest(tmp_path, "")
            assert json.loads(after) == json.loads(before), after


def test_a_file_is_reread_when_size_or_time_changes(tmp_path, monkeypatch):
    for name in ("a", "b"):
        (tmp_path / "folder" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "folder" / name).write_text(name)
    before, read = files.describe(tmp_path / "folder"), []
    sha256 = files._sha256
    monkeypatch.setattr(files, "_sha256", lambda path: read.append(path.name) or sha256(path))
    assert files.describe(tmp_path / "folder", before) == before and read == []
    os.utime(tmp_path / "folder" / "a", (1, 1))
    after = files.describe(tmp_path / "folder", before)
    assert read == ["a"]
    contents = [[(file["name"], file["sum"]) for file in described] for described in (before, after)]
    assert contents[0] == contents[1] and [name for name, _ in contents[0]] == ["a", "b"]
    assert files.describe(tmp_path / "folder" / "a")[0]["name"] == "a"

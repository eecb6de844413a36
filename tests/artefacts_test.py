"""Work directories on a store while machines die. A stage is stood in for by files, training by numbers."""

import itertools
import json

import pytest
from support import toy_store
from support.toy_store import URL, contents

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts

pytest_plugins = ["support.machines_of_a_store"]
pytestmark = pytest.mark.usefixtures("free_leases")

TOPS = ("refreshed", "metrics", "made")


def small_run(copy, last):
    """Step n adds n and logs it, and every second one refreshes what the next ones are made from; two are kept."""
    copy.get(TOPS)
    folder, log = copy.folder, copy.folder / "metrics" / "train.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    versions = sorted((folder / "refreshed").glob("*"), key=lambda path: int(path.name))
    first, total = 0, 0
    if versions:
        files.verify_manifest(versions[-1], "none")
        first, total = int(versions[-1].name), int((versions[-1] / "state").read_text())
    log.parent.mkdir(exist_ok=True)
    log.write_text("".join(f"{line}\n" for line in lines[:first]))
    assert len(lines) >= first
    for step in range(first + 1, last + 1):
        total += step
        with log.open("a") as file:
            file.write(f"{step} {total}\n")
        if step % 2 == 0:
            copy.put(["metrics"])
            sealed(folder / "refreshed" / str(step), str(total))
            for old in sorted((folder / "refreshed").glob("*"), key=lambda path: int(path.name))[:-2]:
                files.remove(old)
            copy.put(["refreshed"])
    files.write_text(folder / "made" / "result", str(total))
    copy.put(TOPS)
    return first


def sealed(folder, content):
    with files.atomic(folder) as part:
        part.mkdir()
        (part / "state").write_text(content)
        files.write_manifest(part)


def small_run_on(name, machine, last=8):
    machine(name)
    with artefacts.opened(URL) as copy:
        files.write_json(copy.folder / "config.json", {})
        copy.put(["config.json"])
        first = small_run(copy, last)
    return copy.folder, first


@pytest.fixture
def unsynced(monkeypatch):
    """Hundreds of small runs, in none of which the power fails."""
    monkeypatch.setattr(files, "_sync", lambda path: None)


@pytest.mark.parametrize("disk", ["new", "old", "same"])
def test_a_machine_may_die_at_any_store_operation(disk, tmp_path, machine, unsynced):
    """At every single operation; the next machine has an empty disk, one with an older state, or the same."""
    toy_store.bucket(tmp_path / "whole")
    wanted = contents(small_run_on("whole", machine)[0], TOPS)
    deaths = 0
    for count in itertools.count(step=1 if disk == "new" else 3):
        bucket = toy_store.bucket(tmp_path / f"bucket-{count}")
        if disk == "old":
            small_run_on(f"{count}-new", machine, last=4)
        left = iter(range(count))
        bucket.fails = lambda *_, left=left: OSError("the machine is gone") if next(left, None) is None else None
        try:
            small_run_on(f"{count}-dies", machine)
        except UserError as error:
            assert "the machine is gone" in str(error)
            deaths += 1
        bucket.fails = lambda *_: None
        if next(left, None):
            break
        whole = [name.split("/")[3] for name in bucket.names() if name.endswith("manifest.json")]
        folder, first = small_run_on(f"{count}-{'dies' if disk == 'same' else 'new'}", machine)
        assert first >= max(map(int, whole), default=0)
        assert contents(folder, TOPS) == wanted, count
        there = {name.removeprefix("bucket/run/"): bucket.path(name).read_bytes() for name in bucket.names()}
        assert {name: there[name] for name in there if name.startswith(TOPS)} == wanted, count
    assert deaths > (35 if disk == "new" else 8)


def test_what_is_half_copied_is_left_out_and_removed(bucket, machine):
    small_run_on("one", machine, last=4)
    bucket.path("bucket/run/refreshed/6/state").write_text("half")
    folder, first = small_run_on("two", machine, last=4)
    assert first == 4 and not (folder / "refreshed" / "6").exists()
    assert not [name for name in bucket.names() if "refreshed/6" in name]


def test_a_disk_gets_only_what_differs_and_overwrites_nothing_newer(bucket, machine):
    """Neither records nor what stages have written, also where the disk is of the machine that went on afterwards."""
    folder, _ = small_run_on("one", machine, last=6)
    small_run_on("two", machine, last=8)
    bucket.path("bucket/run/stages/evaluate.json").write_text("2")
    files.write_json(folder / "stages" / "evaluate.json", 1)
    files.write_json(folder / "stages" / "gone.json", 1)
    bucket.log.clear()
    folder, first = small_run_on("one", machine, last=8)
    assert first == 8 and sorted(path.name for path in (folder / "refreshed").iterdir()) == ["6", "8"]
    assert contents(folder, ["stages"]) == {"stages/evaluate.json": b"2"}
    read = [name for kind, name in bucket.log if kind == "read"]
    assert "bucket/run/refreshed/8/state" in read and "bucket/run/refreshed/6/state" not in read
    assert "refreshed" not in str([name for kind, name in bucket.log if kind == "write"])


def test_records_that_another_machine_has_changed_are_named(bucket, machine):
    """What is here of their stages goes, if that is not finished."""
    for name, text in {"one": "same", "two": "old", "three": "here"}.items():
        machine("first")
        with artefacts.opened(URL) as copy:
            files.write_json(copy.folder / "config.json", {})
            files.write_json(copy.folder / "stages" / f"{name}.json", text)
            copy.put(["config.json", "stages"])
    files.write_json(copy.folder / "stages" / "two.json", "another")
    bucket.path("bucket/run/stages/three.json").unlink()
    with artefacts.opened(URL) as copy:
        assert copy.changed == {"stages/two.json", "stages/three.json"}
    assert json.loads((copy.folder / "stages" / "two.json").read_text()) == "old"

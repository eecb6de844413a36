"""A work directory and its copy on a store, while machines die. Training is stood in for by additions."""

import itertools
import json
import re
import shutil
import time

import pytest
from support import toy_store
from support.toy_store import URL, contents, dies_at

from retrieval import files
from retrieval.errors import UserError
from retrieval.runtime import mirror
from retrieval.runtime.mirror import Follower
from retrieval.stages.train import FOLLOWED

pytest_plugins = ["support.machines_of_a_store"]
pytestmark = pytest.mark.usefixtures("free_leases")


def small_run(copy, last):
    """Training in small: step n adds n, every second step is saved with the version of its data, two are kept."""
    copy.bring(FOLLOWED)
    folder, checkpoints = copy.folder, copy.folder / "checkpoints"
    steps = sorted(int(path.name) for path in checkpoints.glob("*"))
    for step in steps:
        files.verify_manifest(checkpoints / str(step), "")
    first, total = (steps[-1], int((checkpoints / str(steps[-1]) / "state").read_text())) if steps else (0, 0)
    keep_two(checkpoints)
    keep_two(folder / "refreshed")
    log = folder / "metrics" / "train.jsonl"
    log.parent.mkdir(exist_ok=True)
    lines = log.read_text().splitlines() if log.exists() else []
    log.write_text("".join(f"{line}\n" for line in lines[:first]))
    assert len(lines) >= first
    follower = Follower(copy, FOLLOWED)
    follower.wait()
    for step in range(first + 1, last + 1):
        version, total = folder / "refreshed" / str(step // 4), total + step
        if not version.exists():
            sealed(version, f"of step {step // 4 * 4}")
        assert json.loads((version / "manifest.json").read_text())
        with log.open("a") as file:
            file.write(f"{step} {total}\n")
        if step % 2 == 0:
            follower.wait()
            sealed(checkpoints / str(step), str(total))
            keep_two(checkpoints)
            keep_two(version.parent)
    follower.wait()
    return first


def keep_two(folder):
    for old in sorted(folder.glob("*"), key=lambda path: int(path.name))[:-2]:
        files.remove(old)


def sealed(folder, content):
    with files.atomic(folder) as part:
        part.mkdir()
        (part / "state").write_text(content)
        files.write_manifest(part)


def small_run_on(name, machine, last=8):
    machine(name)
    with mirror.opened(URL) as copy:
        files.write_json(copy.folder / "config.json", {})
        copy.put("config.json")
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
    wanted = contents(small_run_on("whole", machine)[0], FOLLOWED)
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
        sealing = re.compile(r"bucket/run/checkpoints/(\d+)/manifest.json")
        copied = [int(found[1]) for kind, name in bucket.log if kind == "write" and (found := sealing.fullmatch(name))]
        folder, first = small_run_on(f"{count}-{'dies' if disk == 'same' else 'new'}", machine)
        assert first >= max(copied, default=0)
        assert contents(folder, FOLLOWED) == wanted, count
        there = {name.removeprefix("bucket/run/"): bucket.path(name).read_bytes() for name in bucket.names()}
        assert {name: there[name] for name in there if name.startswith(FOLLOWED)} == wanted, count
    assert deaths > (35 if disk == "new" else 8)


def test_what_is_half_copied_is_left_out_and_removed(bucket, machine):
    small_run_on("one", machine, last=4)
    bucket.path("bucket/run/checkpoints/6/state").write_text("half")
    folder, first = small_run_on("two", machine, last=4)
    assert first == 4 and not (folder / "checkpoints" / "6").exists()
    assert not [name for name in bucket.names() if "checkpoints/6" in name]


@pytest.mark.parametrize("damaged", ["state", "manifest.json"])
@pytest.mark.parametrize("folder", ["refreshed/1", "checkpoints/2"])
def test_a_damaged_copy_is_replaced_when_made_again(folder, damaged, bucket, machine):
    """Not before; and where it is not made again, nothing of it stays."""
    disk, _ = small_run_on("one", machine, last=4)
    there, state = bucket.path(f"bucket/run/{folder}/{damaged}"), (disk / folder / "state").read_text()
    good = there.read_bytes()
    there.write_bytes(b"[")
    for again, step in ((True, "6"), (False, "8")):
        machine(f"to-{step}")
        bucket.log.clear()
        with mirror.opened(URL) as copy:
            copy.bring(FOLLOWED)
            with copy.following(FOLLOWED) as follower:
                assert not [name for kind, name in bucket.log if kind == "write" and f"/{folder}/" in name]
                if again:
                    sealed(copy.folder / folder, state)
                else:
                    files.remove(copy.folder / folder)
                sealed(copy.folder / "checkpoints" / step, "the next")
                follower.wait()
        if again:
            assert there.read_bytes() == good
            there.write_bytes(b"[")
    assert not [name for name in bucket.names() if f"/{folder}/" in name]


@pytest.mark.parametrize("also_there", [False, True])
def test_a_checkpoint_damaged_on_the_disk_is_restored(bucket, machine, also_there):
    disk, _ = small_run_on("one", machine, last=4)
    path, there = disk / "checkpoints" / "4" / "state", bucket.path("bucket/run/checkpoints/4/state")
    good = path.read_text()
    path.write_text("damaged")
    if also_there:
        there.write_text("damaged")
    with mirror.opened(URL) as copy:
        copy.bring(FOLLOWED)
    assert path.read_text() == there.read_text() == ("damaged" if also_there else good)


def test_a_checkpoint_that_has_gone_from_the_disk_is_restored(bucket, machine):
    """A cleaner of /tmp deletes by age, and the best checkpoint may be the oldest."""
    disk, _ = small_run_on("one", machine, last=4)
    shutil.rmtree(disk / "checkpoints" / "2")
    with mirror.opened(URL) as copy:
        copy.bring(["metrics"])  # which reads none
        assert not (disk / "checkpoints" / "2").exists()
        copy.bring(FOLLOWED)
        copy.up(FOLLOWED)
    assert (disk / "checkpoints" / "2" / "state").exists() and "bucket/run/checkpoints/2/state" in bucket.names()


def test_an_older_disk_gets_only_what_differs(bucket, machine):
    small_run_on("one", machine, last=6)
    small_run_on("two", machine, last=8)
    bucket.log.clear()
    folder, first = small_run_on("one", machine, last=8)
    assert first == 8 and sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["6", "8"]
    read = [name for kind, name in bucket.log if kind == "read"]
    assert "bucket/run/checkpoints/8/state" in read and "bucket/run/checkpoints/6/state" not in read


def test_what_hosts_have_exchanged_goes_up_once(bucket, machine):
    with mirror.opened(URL) as copy:
        for name, text in {"one": "1", "two": "2", "three": "3"}.items():
            files.write_json(copy.folder / "made" / name, text)
        copy.give(["made/one", "made/two"])
        files.write_json(copy.folder / "made" / "two", "anew")
        copy.up(["made"])
        (copy.folder / "made" / "one").unlink()
        copy.up(["made"])
    written = [name.rpartition("/")[2] for kind, name in bucket.log if kind == "write" and "/made/" in name]
    assert sorted(written) == ["one", "three", "three", "two", "two", "two"]
    assert [name for name in bucket.names() if "/made/" in name] == ["bucket/run/made/three", "bucket/run/made/two"]


def test_newer_records_of_another_machine_stay(bucket, machine):
    """A disk with the newest checkpoint has older records than the store all the same."""
    for name, value in (("one", 1), ("two", 2)):
        folder, _ = small_run_on(name, machine)
        with mirror.opened(URL) as copy:
            copy.bring(FOLLOWED)
            (folder / "stages").mkdir(exist_ok=True)
            files.write_json(folder / "stages" / "evaluate.json", value)
            copy.put("stages/evaluate.json")
    folder, first = small_run_on("one", machine)
    assert first == 8 and files.read_json(folder / "stages" / "evaluate.json") == 2
    with bucket.path("bucket/run/stages/evaluate.json").open() as file:
        assert json.load(file) == 2


def test_an_old_disk_overwrites_nothing_newer_on_the_store(bucket, machine):
    """From a snapshot of the machine that went on afterwards."""
    folder, _ = small_run_on("one", machine, last=4)
    before = shutil.copytree(folder, folder.with_name("snapshot"))
    small_run_on("one", machine, last=8)
    shutil.rmtree(folder)
    before.rename(folder)
    folder, first = small_run_on("one", machine, last=8)
    assert first == 8 and sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["6", "8"]
    assert bucket.path("bucket/run/checkpoints/8/manifest.json").exists()


def test_a_failed_background_copy_ends_the_run(bucket, machine, tmp_path, monkeypatch):
    monkeypatch.setattr(mirror, "_POLL", 0.01)
    with mirror.opened(URL) as copy, copy.following(FOLLOWED) as follower:
        bucket.fails = dies_at("write", "checkpoints/2/")
        sealed(copy.folder / "checkpoints" / "2", "1")
        with pytest.raises(UserError, match=r"checkpoints/2/state: cannot be written \(the machine is gone\)"):
            for _ in range(1000):
                follower.check()
                time.sleep(0.01)
        with pytest.raises(UserError, match="the machine is gone"):
            follower.wait()

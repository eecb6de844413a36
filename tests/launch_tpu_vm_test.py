"""The launch script of TPU VMs."""

import os
import signal
import subprocess

import pytest
from support.workplace import MALLOC, NASTY, PLACE, TRAINING, UP, Workplace

pytest_plugins = ["support.launching"]

CREATE = ["queued-resources list", "queued-resources create", "queued-resources describe"]
COPY_AND_INSTALL = ["tpu-vm scp", "ssh prepare", "ssh prepare"]
ATTEMPT = [*CREATE, *COPY_AND_INSTALL, "ssh run"]
DELETE = ["queued-resources list", "queued-resources delete", "tpu-vm list"]
LOOK = ["queued-resources describe", "tpu-vm describe"]


def test_create_waits_until_the_slice_is_there(work):
    work.answer("queued-resources describe", {"out": "WAITING_FOR_RESOURCES"}, {"code": 1}, {"out": "ACTIVE"})
    done = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    assert work.argv("queued-resources create") == [
        [
            *["gcloud", "compute", "tpus", "queued-resources", "create", "run-1", "--node-id=run-1"],
            *["--accelerator-type=v3-32", "--runtime-version=tpu-ubuntu2204-base", "--project=p", "--zone=z"],
        ]
    ]
    assert work.keys() == [*CREATE[:2], *["queued-resources describe"] * 3]
    assert "run-1: WAITING_FOR_RESOURCES\n" in done.stderr and "run-1: ACTIVE\n" in done.stderr
    assert "costs money until it is deleted, with: launch/tpu_vm.sh delete --name=run-1" in done.stderr


@pytest.mark.parametrize(
    "create, states, arguments, message",
    [
        (
            {},
            ["PROVISIONING", "FAILED", "message: no capacity"],
            [],
            "message: no capacity\nerror: run-1 is FAILED, see",
        ),
        ({}, ["WAITING"], ["--timeout=0"], "error: run-1 is still WAITING after --timeout=0"),
    ],
)
def test_a_request_that_fails_is_explained_and_deleted(work, create, states, arguments, message):
    work.answer("queued-resources create", create)
    work.answer("queued-resources describe", *({"out": state} for state in states))
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", *arguments, code=2).stderr
    assert message in err and work.keys()[-3:] == DELETE
    assert not (work.root / "queued-resources").exists()


def test_nothing_is_made_where_something_may_be(work):
    (work.root / "queued-resources").write_text("run-1")
    assert "run-1 exists already" in work.fails("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    assert work.keys() == ["queued-resources list"]


def test_interrupted_in_the_queue_nothing_is_left(work):
    work.answer("queued-resources describe", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("queued-resources describe")
    os.killpg(process.pid, signal.SIGTERM)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == 143 and "deleting run-1, which is not finished\n" in err
    assert work.keys()[-3:] == DELETE and not (work.root / "queued-resources").exists()


def test_interrupted_while_asking_the_request_is_finished_then_deleted(work):
    work.answer("queued-resources create", {"until": "release"})
    process = work.start("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    work.wait_for("queued-resources create")
    os.killpg(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGTERM)
    work.touch("release")
    process.communicate(timeout=10)
    assert process.returncode in (130, 143)
    assert work.keys() == [*CREATE[:2], *DELETE] and not (work.root / "queued-resources").exists()


def test_a_deletion_that_fails_is_said(work):
    work.answer("queued-resources create", {"code": 1})
    work.answer("queued-resources delete", {"code": 1})
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", code=2).stderr
    assert "could not be deleted; do it with: launch/tpu_vm.sh delete --name=run-1 --project=p --zone=z\n" in err


def test_up_from_nothing_to_a_run(work):
    work.add_hosts(2)
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("main", {"out": "step 1: loss 0.5"})
    done = work.run("tpu_vm.sh", "up", *UP, *NASTY)
    assert [call["key"] for call in work.calls() if call["argv"][0] == "gcloud"] == ATTEMPT
    assert all({"--worker=all", "--project=p", "--zone=z"} <= set(argv) for argv in work.argv("ssh run", "tpu-vm scp"))
    assert "--ssh-flag=-oServerAliveInterval=30" in work.argv("ssh run")[0]
    assert [(call["host"], call["environment"]) for call in work.calls("main")] == [
        ("host0", MALLOC),
        ("host1", MALLOC),
    ]
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost"]] * 2
    assert done.stdout.count("step 1: loss 0.5\n") == 2
    assert "costs money" in done.stderr
    tpu = ["--quiet", "--disable-pip-version-check", "-c", ".venv/pins.txt", "gcsfs", "jax[tpu]==0.9.7"]
    assert work.argv("pip").count(["python", "-m", "pip", "install", *tpu]) == 2


def test_what_is_copied_is_the_last_commit(work):
    work.add_hosts(1)
    (work.repository / "setup.py").write_text("changed")
    err = work.run("tpu_vm.sh", "copy", *PLACE).stderr
    assert "not committed" in err
    assert (work.root / "hosts/host0/retrieval/setup.py").read_text() == ""
    assert os.access(work.root / "hosts/host0/retrieval/launch/worker.sh", os.X_OK)


def test_a_copy_takes_the_place_of_the_one_before(work):
    work.add_hosts(1)
    there = work.root / "hosts/host0/retrieval"
    for name in ("retrieval/tables/renamed.py", "launch/old.sh", ".hidden/x", ".venv/bin/python", "run/log"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).touch()
    work.run("tpu_vm.sh", "copy", *PLACE)
    assert (there / ".venv/bin/python").exists() and (there / "run/log").exists()
    assert sorted(path.name for path in there.iterdir()) == [
        *(".gitignore", ".venv", "launch", "requirements.lock", "run", "setup.py")
    ]
    assert not (there / "launch/old.sh").exists() and (there / "launch/worker.sh").exists()


def states(*outs: str) -> list[dict]:
    return [{"out": out} for out in outs]


@pytest.mark.parametrize(
    "arguments, resource, node, failures, code, keys, message",
    [
        (
            *([], states("ACTIVE", "ACTIVE", "SUSPENDING", "ACTIVE"), states("READY"), {"ssh run": [255, 0]}),
            *(0, [*ATTEMPT, *LOOK, LOOK[0], *DELETE, *ATTEMPT], "starting again, 1 of at most 10 times\n"),
        ),
        (
            *(["--retries=2"], states("ACTIVE"), [], {"ssh run": [75]}),
            *(75, [*ATTEMPT, *DELETE, *ATTEMPT, *DELETE, *ATTEMPT], "not started again: --retries=2\n"),
        ),
    ],
    ids=["preempted", "the exit code says so, too often"],
)
def test_up_starts_again(work, arguments, resource, node, failures, code, keys, message):
    work.answer("queued-resources describe", *resource)
    work.answer("tpu-vm describe", *node)
    for key, codes in failures.items():
        work.answer(key, *({"code": code} for code in codes))
    assert message in work.run("tpu_vm.sh", "up", *arguments, *UP, code=code).stderr
    assert work.keys() == keys


@pytest.mark.parametrize(
    "resource, failing, codes, keys",
    [
        (states("ACTIVE"), "ssh run", [1], [*ATTEMPT, *LOOK * 5]),
        (states("ACTIVE"), "ssh prepare", [0, 2], ATTEMPT[:-1]),
    ],
    ids=["an error of the run", "a step before it"],
)
def test_up_does_not_start_again(work, resource, failing, codes, keys):
    work.answer("queued-resources describe", *resource)
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer(failing, *({"code": code} for code in codes))
    err = work.run("tpu_vm.sh", "up", *UP, code=codes[-1]).stderr
    assert work.keys() == keys and "starting again" not in err and "launch/tpu_vm.sh delete" in err


def test_an_interrupted_run_is_kept(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh run", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("ssh run")
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == 130 and work.keys() == ATTEMPT
    assert "follow it with: launch/tpu_vm.sh attach --name=run-1 --project=p --zone=z\n" in err
    assert (
        "delete it" not in err and "deleted, with: launch/tpu_vm.sh delete --name=run-1 --project=p --zone=z\n" in err
    )
    with pytest.raises(ProcessLookupError):
        os.kill(work.calls("ssh run")[0]["pid"], 0)


def test_attach_gives_a_runs_exit_code_again(work):
    work.add_hosts(2)
    prepare(work)
    work.answer("main", {"out": "first"}, {"out": "second", "code": 9})
    done = work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=9)
    assert done.stdout == "first\nsecond\n"
    assert work.run("tpu_vm.sh", "attach", *PLACE, code=9).stdout == "first\nsecond\n"
    assert len(work.calls("main")) == 2


def test_a_detached_run_is_followed_later(work):
    work.add_hosts(1)
    prepare(work)
    work.answer("main", {"until": "release", "out": "done", "code": 3})
    assert work.run("tpu_vm.sh", "run", "--detach", *PLACE, "--", *TRAINING).stdout == ""
    work.wait_for("main")
    refused = work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=2).stderr
    assert "error: a run is going on on this host" in refused
    work.touch("release")
    assert work.run("tpu_vm.sh", "attach", *PLACE, code=3).stdout == "done\n"
    assert len(work.calls("main")) == 1


def test_a_command_that_gcloud_repeats_starts_no_second_run(work):
    work.add_hosts(1)
    prepare(work)
    work.answer("main", {"code": 4})
    work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=4)
    command = next(a for a in work.argv("ssh run")[0] if a.startswith("--command=")).removeprefix("--command=")
    host = work.root / "hosts/host0"
    again = subprocess.run(["bash", "-c", command], cwd=host, env={**work.environment, "HOME": str(host)})
    assert again.returncode == 4 and len(work.calls("main")) == 1
    work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=4)
    assert len(work.calls("main")) == 2


def test_a_run_needs_an_installation(work):
    work.add_hosts(1)
    work.run("tpu_vm.sh", "copy", *PLACE)
    assert "there is no .venv on this host" in work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=2).stderr
    assert "nothing was started on this host" in work.run("tpu_vm.sh", "attach", *PLACE, code=2).stderr


def test_status_and_delete(work):
    for kind in ("queued-resources", "tpu-vm", "slice-stays"):
        (work.root / kind).write_text("run-1")
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"out": "READY HEALTHY"})
    assert work.run("tpu_vm.sh", "status", *PLACE).stdout == "ACTIVE\nREADY HEALTHY\n"
    work.answer("queued-resources delete", {"code": 7}, {"code": 0})
    work.run("tpu_vm.sh", "delete", *PLACE, code=7)
    work.run("tpu_vm.sh", "delete", *PLACE)
    assert work.keys() == [*LOOK, *DELETE[:2], *DELETE, "tpu-vm delete"] and not (work.root / "tpu-vm").exists()
    assert {"run-1", "--force", "--quiet"} <= set(work.argv("queued-resources delete")[0])


def prepare(work: Workplace) -> None:
    work.run("tpu_vm.sh", "copy", *PLACE)
    work.run("tpu_vm.sh", "install", *PLACE)

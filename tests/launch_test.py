"""The launch scripts against stand-ins for gcloud, xpk and Slurm, which note their arguments and answer as told.

No cloud is reached. The stand-in of `gcloud … ssh` runs its command in one folder per host, that of sbatch runs the
job, so what is quoted here is unquoted by a real shell there.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support.workplace import SCRIPTS, Workplace, make_repository

MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
NASTY = [
    '--query=it\'s "so" $HOME `id` \\ ; & *',
    "--config.note=two\nlines\tand é",
    "--empty=",
    "--config.steps=(1, 2)",
]
TRAINING = ["--config=configs/mlm.py", "--workdir=/mnt/bucket/run"]
PLACE = ["--name=run-1", "--project=p", "--zone=z"]
UP = [*PLACE, "--type=v3-32", "--", *TRAINING]


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def work(tmp_path: Path, repository: Path) -> Workplace:
    return Workplace(tmp_path, repository)


CREATE = ["queued-resources list", "queued-resources create", "queued-resources describe"]
COPY_AND_INSTALL = ["tpu-vm scp", "ssh prepare", "ssh prepare"]
ATTEMPT = [*CREATE, *COPY_AND_INSTALL, "ssh run"]
DELETE = ["queued-resources list", "queued-resources delete", "tpu-vm list"]
LOOK = ["queued-resources describe", "tpu-vm describe"]


# On TPU VMs


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
    "arguments, runtime",
    [
        (["--type=v5litepod-16", "--spot"], "v2-alpha-tpuv5-lite"),
        (["--type=v6e-8", "--spot"], "v2-alpha-tpuv6e"),
        (["--type", "v9-8", "--runtime", "mine"], "mine"),
    ],
)
def test_a_type_has_a_usual_runtime(work, arguments, runtime):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.run("tpu_vm.sh", "create", *PLACE, *arguments)
    [argv] = work.argv("queued-resources create")
    assert f"--runtime-version={runtime}" in argv and ("--spot" in argv) == ("--spot" in arguments)


@pytest.mark.parametrize(
    "create, states, arguments, message",
    [
        ({"code": 1}, [], [], "error: gcloud could not ask for run-1"),
        (
            {},
            ["PROVISIONING", "FAILED", "message: no capacity"],
            [],
            "message: no capacity\nerror: run-1 is FAILED, see",
        ),
        ({}, ["SUSPENDED", "message: gone"], [], "message: gone\nerror: run-1 is SUSPENDED, see above"),
        ({}, ["WAITING"], ["--timeout=0"], "error: run-1 is still WAITING after --timeout=0"),
    ],
)
def test_a_request_that_fails_is_explained_and_deleted(work, create, states, arguments, message):
    work.answer("queued-resources create", create)
    work.answer("queued-resources describe", *({"out": state} for state in states))
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", *arguments, code=2).stderr
    assert message in err and work.keys()[-3:] == DELETE
    assert not (work.root / "queued-resources").exists()


@pytest.mark.parametrize("code, message", [(0, "run-1 exists already"), (1, "could not list")])
def test_nothing_is_made_where_something_may_be(work, code, message):
    (work.root / "queued-resources").write_text("run-1")
    work.answer("queued-resources list", {"code": code})
    assert message in work.fails("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    assert work.keys() == ["queued-resources list"]


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_interrupted_in_the_queue_nothing_is_left(work, sent, code):
    work.answer("queued-resources describe", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("queued-resources describe")
    os.killpg(process.pid, sent)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == code and "deleting run-1, which is not finished\n" in err
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
    tpu = ["--quiet", "--disable-pip-version-check", "-c", ".venv/pins.txt", "jax[tpu]==0.9.7"]
    assert work.argv("pip").count(["python", "-m", "pip", "install", *tpu]) == 2


def test_what_is_copied_is_the_last_commit(work):
    work.add_hosts(1)
    (work.repository / "setup.py").write_text("changed")
    err = work.run("tpu_vm.sh", "copy", *PLACE).stderr
    assert "not committed" in err
    assert (work.root / "hosts/host0/retrieval/setup.py").read_text() == ""
    assert os.access(work.root / "hosts/host0/retrieval/launch/worker.sh", os.X_OK)


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
            *([], states("ACTIVE"), [{"code": 1}, {"out": "PREEMPTED"}], {"tpu-vm scp": [1, 0]}),
            *(0, [*ATTEMPT[:4], *LOOK, *LOOK, *DELETE, *ATTEMPT], "starting again"),
        ),
        ([], states("ACTIVE"), [], {"ssh run": [75, 0]}, 0, [*ATTEMPT, *DELETE, *ATTEMPT], "starting again"),
        (
            *(["--retries=2"], states("ACTIVE"), [], {"ssh run": [75]}),
            *(75, [*ATTEMPT, *DELETE, *ATTEMPT, *DELETE, *ATTEMPT], "not started again: --retries=2\n"),
        ),
    ],
    ids=["preempted", "preempted while it is set up", "the exit code says so", "too often"],
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
        (states("ACTIVE", "SUSPENDED"), "ssh run", [2], ATTEMPT),
        (states("ACTIVE"), "ssh run", [1], [*ATTEMPT, *LOOK * 5]),
        (states("ACTIVE"), "ssh prepare", [0, 2], ATTEMPT[:-1]),
    ],
    ids=["wrong arguments", "an error of the run", "a step before it"],
)
def test_up_does_not_start_again(work, resource, failing, codes, keys):
    work.answer("queued-resources describe", *resource)
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer(failing, *({"code": code} for code in codes))
    err = work.run("tpu_vm.sh", "up", *UP, code=codes[-1]).stderr
    assert work.keys() == keys and "starting again" not in err and "launch/tpu_vm.sh delete" in err


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_is_kept(work, sent, code):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh run", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("ssh run")
    process.send_signal(sent)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == code and work.keys() == ATTEMPT
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


def test_a_machine_that_stops_lets_the_program_save(work):
    work.add_hosts(1)
    prepare(work)
    work.answer("main", {"until": "never", "term": 75})
    process = work.start("tpu_vm.sh", "run", *PLACE, "--", *TRAINING)
    work.wait_for("main")
    os.killpg(os.getpgid(work.calls("main")[0]["pid"]), signal.SIGTERM)
    process.communicate(timeout=10)
    assert process.returncode == 75


def test_a_run_needs_an_installation(work):
    work.add_hosts(1)
    work.run("tpu_vm.sh", "copy", *PLACE)
    assert "there is no .venv on this host" in work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=2).stderr
    assert "nothing was started on this host" in work.run("tpu_vm.sh", "attach", *PLACE, code=2).stderr


def test_a_host_without_the_right_python_gets_one(work):
    tools = work.root / "tools"
    tools.mkdir()
    for name in ("bash", "env", "cat", "cut", "dirname", "sed", "sha256sum", "cp"):
        (tools / name).symlink_to(shutil.which(name))
    (work.root / "bin/python3.11").rename(work.root / "python3.11")
    (work.root / "bin/sudo").write_text(f'#!/bin/bash\necho "$*"; cp {work.root}/python3.11 {work.root}/bin/\n')
    (work.root / "bin/sudo").chmod(0o755)
    work.environment["PATH"] = f"{work.root / 'bin'}:{tools}"
    out = work.run("worker.sh", "install").stdout
    assert "--yes install python3.11 python3.11-venv\n" in out
    assert (work.repository / ".venv/bin/python").exists()


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


def test_project_and_zone_come_from_gcloud(work):
    work.answer("config project", {"out": "mine"})
    work.answer("config compute/zone", {"out": "here"})
    work.run("tpu_vm.sh", "status", "--name=run-1")
    assert {"--project=mine", "--zone=here"} <= set(work.argv("tpu-vm describe")[0])


def prepare(work: Workplace) -> None:
    work.run("tpu_vm.sh", "copy", *PLACE)
    work.run("tpu_vm.sh", "install", *PLACE)


# On GKE


def test_a_workload_on_gke(work):
    work.run(
        "gke.sh", "run", "--cluster=c", "--slices=2", "--retries=3", *PLACE, "--type=v5litepod-16", "--", *TRAINING
    )
    [argv] = work.argv("xpk")
    tree = next(a for a in argv if a.startswith("--script-dir=")).removeprefix("--script-dir=")
    assert argv[:-1] == [
        *["xpk", "workload", "create", "--cluster=c", "--project=p", "--zone=z", "--workload=run-1"],
        *["--tpu-type=v5litepod-16", "--num-slices=2", "--max-restarts=3", "--restart-on-exit-codes=75"],
        *["--termination-grace-period-seconds=120", "--base-docker-image=python:3.11", f"--script-dir={tree}"],
    ]
    assert sorted(p.name for p in Path(tree, "launch").iterdir()) == sorted(SCRIPTS)


def test_the_command_of_a_workload_installs_and_runs(work):
    tree = work.root / "home/.cache/retrieval/run-1"
    tree.mkdir(parents=True)
    (tree / "old").touch()
    work.run("gke.sh", "run", "--cluster=c", *PLACE, "--type=v5litepod-16", "--", *TRAINING, *NASTY)
    assert not (tree / "old").exists()
    options = dict(a.split("=", 1) for a in work.argv("xpk")[0] if a.startswith("--"))
    assert "\n" not in options["--command"]  # xpk puts it into one line of YAML
    work.answer("pip", {"code": 1}, {"code": 0})
    work.answer("main", {"code": 75})
    command = f"({options['--command']}) & PID=$!; wait $PID; exit $?"  # as xpk does
    assert work.run_on(tree, command) == 1 and not work.calls("main")
    shutil.rmtree(tree / ".venv")
    assert work.run_on(tree, command) == 75
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost"]]
    assert "jax[tpu]==0.9.7" in work.argv("pip")[-1]


def test_a_workload_from_an_image_that_has_everything(work):
    work.run("gke.sh", "run", "--cluster=c", "--image=i:1", *PLACE, "--type=v5litepod-16", "--", *TRAINING)
    [argv] = work.argv("xpk")
    assert argv[-2:] == [
        "--docker-image=i:1",
        "--command=exec env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "
        f"python -m retrieval.main {' '.join(TRAINING)} --multihost",
    ]
    assert not any(a.startswith(("--script-dir", "--base-docker-image")) for a in argv)


def test_status_and_delete_of_a_workload(work):
    place = ["--cluster=c", "--project=p", "--zone=z"]
    work.run("gke.sh", "status", "--name=run-1", *place)
    work.answer("xpk", {"code": 6})
    work.run("gke.sh", "delete", "--name=run-1", *place, code=6)
    assert work.argv("xpk") == [
        ["xpk", "workload", "list", *place, "--filter-by-job=run-1"],
        ["xpk", "workload", "delete", *place, "--workload=run-1", "--force"],
    ]


# Under Slurm

SLURM = ["--name=run-1", "--nodes=2", "--gpus=4"]
SHARED = ["--config=configs/mlm.py", "--workdir=/shared/run"]


@pytest.fixture
def slurm(work: Workplace) -> Workplace:
    tool = work.repository / ".venv/bin/python"
    work.add_tool(tool)
    work.answer("squeue", {"out": "RUNNING"})
    return work


def test_a_job_is_submitted_and_keeps_its_arguments(slurm):
    slurm.run("slurm.sh", "run", *SLURM, "--partition=gpu", "--time", "1-00", "--", *SHARED, *NASTY)
    [argv] = slurm.argv("sbatch")
    assert argv == [
        *["sbatch", "--job-name=run-1", "--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4", "--cpus-per-task=8"],
        *["--requeue", "--signal=B:TERM@60", "--open-mode=append", "--output=runs/slurm/run-1-%j.log"],
        *[f"--chdir={slurm.repository}", "--partition=gpu", "--time=1-00"],
        *["launch/slurm.sh", "job", "4", "100", *SHARED, *NASTY, "--multihost"],
    ]
    assert (slurm.repository / "runs/slurm").is_dir()
    assert slurm.argv("srun")[0][:3] == ["srun", "--kill-on-bad-exit=0", "--wait=60"]
    [main] = slurm.calls("main")
    assert main["argv"] == ["python", "-m", "retrieval.main", *SHARED, *NASTY, "--multihost"]
    assert main["environment"] == MALLOC | {
        "JAX_LOCAL_DEVICE_IDS": "0,1,2,3",
        "SRUN_CPUS_PER_TASK": "8",
        "XLA_CLIENT_MEM_FRACTION": "0.9",
    }
    assert not slurm.calls("scontrol")


def test_one_node_is_one_process(slurm):
    slurm.run("slurm.sh", "run", "--name=run-1", "--", *SHARED)
    assert slurm.argv("main") == [["python", "-m", "retrieval.main", *SHARED]]
    assert slurm.calls("main")[0]["environment"]["JAX_LOCAL_DEVICE_IDS"] == "0"


@pytest.mark.parametrize(
    "code, state, requeued",
    [
        *((75, {"out": "RUNNING"}, True), (2, {"out": "RUNNING"}, False), (0, {"out": "RUNNING"}, False)),
        *((75, {"out": "COMPLETING"}, False), (75, {"out": "CANCELLED"}, False), (75, {"code": 1}, True)),
    ],
)
def test_only_the_restart_code_queues_a_job_again(slurm, code, state, requeued):
    """And only that of a job which nobody has cancelled, as far as can be known."""
    slurm.answer("main", {"code": code})
    slurm.answer("squeue", state)
    slurm.run("slurm.sh", "run", *SLURM, "--", *SHARED)
    assert slurm.argv("scontrol") == ([["scontrol", "requeue", "7"]] if requeued else [])
    assert (slurm.root / "job_code").read_text() == str(code)


def test_a_job_is_not_queued_for_ever(slurm):
    slurm.answer("main", {"code": 75})
    slurm.environment["SLURM_RESTART_COUNT"] = "3"
    assert "not queued again: --retries=3" in slurm.run("slurm.sh", "run", "--retries=3", *SLURM, "--", *SHARED).stderr
    assert not slurm.calls("scontrol")
    slurm.run("slurm.sh", "run", "--retries=4", *SLURM, "--", *SHARED)
    assert slurm.calls("scontrol")


def test_slurms_warning_reaches_the_program(slurm):
    slurm.answer("main", {"until": "never", "term": 75})
    slurm.environment |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    script = shutil.copy(slurm.repository / "launch/slurm.sh", slurm.root / "slurm_script")
    job = subprocess.Popen(
        ["bash", script, "job", "4", "100", *SHARED], cwd=slurm.repository, env=slurm.environment, stderr=-1
    )
    slurm.wait_for("main")
    job.send_signal(signal.SIGTERM)  # B: the shell alone
    job.communicate(timeout=10)
    assert job.returncode == 75 and slurm.argv("scontrol") == [["scontrol", "requeue", "7"]]


def test_status_and_delete_of_a_job(slurm):
    for action in ("status", "delete"):
        slurm.run("slurm.sh", action, "--name=run-1")
    user = subprocess.run(["id", "-un"], capture_output=True, text=True).stdout.strip()
    assert slurm.argv() == [[tool, "--name=run-1", f"--user={user}"] for tool in ("squeue", "scancel")]


# Dry runs, help and errors

EVERYTHING = {
    "tpu_vm.sh": [
        *[["create", *PLACE, "--type=v3-8"], ["copy", *PLACE], ["install", *PLACE], ["run", *PLACE, "--", *TRAINING]],
        *[["attach", *PLACE], ["up", *UP], ["status", *PLACE], ["delete", *PLACE]],
    ],
    "gke.sh": [
        ["run", "--cluster=c", *PLACE, "--type=v6e-8", "--", *TRAINING],
        *[["status", "--cluster=c", *PLACE], ["delete", "--cluster=c", *PLACE]],
    ],
    "slurm.sh": [["run", *SLURM, "--", *SHARED], ["status", "--name=run-1"], ["delete", "--name=run-1"]],
}


@pytest.mark.parametrize("script, arguments", [(s, a) for s, calls in EVERYTHING.items() for a in calls])
def test_a_dry_run_only_prints_what_it_would_do(slurm, script, arguments):
    def lines(argv: list[str]) -> list[list[str]]:
        out = slurm.run(script, *argv).stdout
        return [without_id(shlex.split(line)) for line in out.splitlines()]

    before = sorted(slurm.root.rglob("*"))
    printed = lines([arguments[0], "--dry-run", *arguments[1:], *(NASTY[:1] if "--" in arguments else [])])
    assert not slurm.calls() and sorted(slurm.root.rglob("*")) == before
    slurm.answer("queued-resources describe", {"out": "ACTIVE"})
    if arguments[0] == "delete":
        for kind in ("queued-resources", "tpu-vm", "slice-stays"):
            (slurm.root / kind).write_text("run-1")
    lines([*arguments, *(NASTY[:1] if "--" in arguments else [])])
    tools = ("gcloud", "xpk", "sbatch", "squeue", "scancel")
    done = [without_id(argv) for argv in slurm.argv() if argv[0] in tools]
    assert [line for line in printed if line[0] in tools] == done and done


def without_id(argv: list[str]) -> list[str]:
    return [re.sub(r"start \d+-\d+ ", "start ID ", argument) for argument in argv]


@pytest.mark.parametrize("script", EVERYTHING)
def test_help(work, script):
    out = work.run(script, "--help").stdout
    source = (REPOSITORY / "launch" / script).read_text()
    options = re.findall(r"\[([a-z-]+)\]=", source[source.index("declare -A") : source.index("\n)\n")])
    assert len(options) > 5 and all(f"--{name}" in out for name in options)
    assert work.run(script, "status", "--help").stdout == out and not work.calls()


RUN = {
    "tpu_vm.sh": ["run", *PLACE],
    "gke.sh": ["run", "--cluster=c", *PLACE, "--type=v5litepod-16"],
    "slurm.sh": ["run", "--name=run-1"],
}


@pytest.mark.parametrize("script", RUN)
@pytest.mark.parametrize(
    "training, message",
    [
        ([], "nothing to run: the arguments of retrieval.main go after --"),
        (["--"], "nothing to run"),
        (["--", "--config=c"], "--workdir is missing among the arguments after --"),
        (["--", "--config=c", "--workdir"], "--workdir is missing among"),
    ],
)
def test_what_is_to_be_run_is_checked(slurm, script, training, message):
    assert message in slurm.fails(script, *RUN[script], *training)
    assert not slurm.calls()


ON_A_SLICE = ["tpu_vm.sh", "up", *PLACE]
ON_GKE = ["gke.sh", *RUN["gke.sh"][:-1]]
NODES = ["slurm.sh", "run", "--name=run-1", "--nodes=2"]


@pytest.mark.parametrize(
    "command, workdir, message",
    [
        (["tpu_vm.sh", *RUN["tpu_vm.sh"]], "runs/mine", "another folder on every host"),
        ([*ON_GKE, "--type=v6e-8"], "runs/mine", "another folder on every host"),
        ([*ON_GKE, "--type=v6e-4"], "gs://", "such as gs://BUCKET/RUN"),
        (NODES, "/tmp/run", "must be where all nodes see it"),
        (NODES, "/dev/shm/run", "must be where all nodes see it"),
    ],
)
def test_every_host_needs_the_work_directory(slurm, command, workdir, message):
    for given in ([f"--workdir={workdir}"], ["--workdir", workdir]):
        assert message in slurm.fails(*command, "--", *given)
    assert not slurm.calls()


@pytest.mark.parametrize(
    "command",
    [
        [*ON_A_SLICE, "--type=v5litepod-8"],
        [*ON_A_SLICE, "--type=v3-32"],
        [*ON_GKE, "--type=v6e-4", "--slices=2"],
        NODES[:3],
        NODES,
    ],
)
def test_any_number_of_hosts_may_have_a_store(slurm, command):
    done = slurm.run(*command, "--dry-run", "--", "--workdir=gs://bucket/run")
    assert "--workdir=gs://bucket/run" in done.stdout and "warning: --workdir" not in done.stderr


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_vm.sh", [], "an action is missing: create, copy, install, run, attach, up, status, delete"),
        ("tpu_vm.sh", ["destroy"], "unknown action 'destroy'; known: create, copy"),
        ("slurm.sh", ["up"], "unknown action 'up'; known: run, status, delete"),
        ("gke.sh", ["status", "--clutser=c"], "unknown option '--clutser'; known: --base-image --cluster --dry-run"),
        ("gke.sh", ["status", "--$(id)=c"], "unknown option '--$(id)'"),
        ("gke.sh", ["status", "name"], "unknown option 'name'"),
        ("tpu_vm.sh", ["status"], "--name is missing: 'status' needs it"),
        ("tpu_vm.sh", ["status", "--name="], "--name is missing"),
        ("tpu_vm.sh", ["status", "--name"], "--name needs a value, such as --name=VALUE"),
        ("tpu_vm.sh", ["status", "--name", "--zone=z"], "--name needs a value"),
        ("tpu_vm.sh", ["status", "--name=a/../b"], "--name='a/../b': small letters, digits and dashes"),
        ("tpu_vm.sh", ["create", *PLACE], "--type is missing: 'create' needs it"),
        ("tpu_vm.sh", ["create", *PLACE, "--type=v9-8"], "no runtime version is known for --type=v9-8"),
        ("tpu_vm.sh", ["create", *PLACE, "--spot=3"], "--spot takes no value, not '3'"),
        ("tpu_vm.sh", ["up", *PLACE, "--retries=-1", "--type=v3-8"], "--retries='-1': a whole number of at least 0"),
        ("tpu_vm.sh", ["up", "--detach", *UP], "--detach is for 'run'"),
        (
            "tpu_vm.sh",
            ["status", "--name=a", "--zone=z"],
            "no project is set: give --project=PROJECT, or 'gcloud config",
        ),
        ("tpu_vm.sh", ["status", "--name=a", "--project=p"], "no zone is set: give --zone=ZONE, or 'gcloud config set"),
        ("gke.sh", ["status", "--name=a"], "--cluster is missing"),
        ("gke.sh", ["run", "--name=a", "--cluster=c"], "--type is missing"),
        ("gke.sh", ["run", "--name=a", "--cluster=c", "--slices=0"], "--slices='0': a whole number of at least 1"),
        ("slurm.sh", ["run", "--name=a", "--nodes=two"], "--nodes='two': a whole number of at least 1 is needed"),
        ("slurm.sh", ["run", "--name=a", "--", "--workdir=/w"], "there is no .venv"),
    ],
)
def test_errors(work, script, arguments, message):
    assert work.fails(script, *arguments).startswith(f"error: {message}")
    assert not work.calls("queued-resources create", "xpk", "sbatch")


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_vm.sh", ["status", *PLACE], "gcloud not found: install the Google Cloud CLI"),
        ("gke.sh", ["status", "--cluster=c", *PLACE], "xpk not found: install it with 'pip install xpk'"),
        ("slurm.sh", ["status", "--name=a"], "sbatch not found: it comes with Slurm"),
    ],
)
def test_a_tool_that_is_missing(work, script, arguments, message):
    work.environment["PATH"] = str(system_tools(work))
    assert work.fails(script, *arguments).startswith(f"error: {message}")


def system_tools(work: Workplace) -> Path:
    """A folder of the commands that the scripts use, without those that happen to be installed beside them."""
    tools = work.root / "tools"
    tools.mkdir()
    for name in ("bash", "env", "cat", "dirname", "grep", "id", "paste", "sed", "sort", "git"):
        (tools / name).symlink_to(shutil.which(name))
    return tools

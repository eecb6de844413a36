"""The launch scripts, beside stand-ins for the tools of the clouds.

No cloud is reached. The stand-ins for gcloud, xpk and Slurm note their arguments and answer as told. That of
`gcloud … ssh` runs its command in one folder per host, that of sbatch runs the job, so what is quoted here is unquoted
by a real shell there.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from support.workplace import MALLOC, NASTY, PLACE, SCRIPTS, SHARED, SLURM, TRAINING, UP, Workplace, make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def work(tmp_path: Path, repository: Path) -> Workplace:
    return Workplace(tmp_path, repository)


@pytest.fixture
def slurm(work: Workplace) -> Workplace:
    work.add_tool(work.repository / ".venv/bin/python")
    work.answer("squeue", {"out": "RUNNING"})
    return work


DAY = [*PLACE, "--data=launch", "--out=results"]
ACTIONS = [("tpu_vm.sh", ["up", *UP]), ("slurm.sh", ["run", *SLURM, "--", *SHARED])]


@pytest.mark.parametrize("script, arguments", ACTIONS)
def test_a_dry_run_only_prints_what_it_would_do(slurm, script, arguments):
    def lines(argv: list[str]) -> list[list[str]]:
        out = slurm.run(script, *argv).stdout
        return [without_id(shlex.split(line)) for line in out.splitlines()]

    before = sorted(slurm.root.rglob("*"))
    printed = lines([arguments[0], "--dry-run", *arguments[1:], *(NASTY[:1] if "--" in arguments else [])])
    assert not slurm.calls() and sorted(slurm.root.rglob("*")) == before
    slurm.answer("queued-resources describe", {"out": "ACTIVE"})
    lines([*arguments, *(NASTY[:1] if "--" in arguments else [])])
    tools = ("gcloud", "xpk", "sbatch", "squeue", "scancel")
    done = [without_id(argv) for argv in slurm.argv() if argv[0] in tools]
    assert [line for line in printed if line[0] in tools] == done and done


def without_id(argv: list[str]) -> list[str]:
    return [re.sub(r"start \d+-\d+ ", "start ID ", argument) for argument in argv]


@pytest.mark.parametrize(("calls", "code"), [([0, 3], 3), ([0, 0], 0)])
def test_an_environment_that_fails_is_not_taken_for_whole(work, calls, code):
    """In a shell without `set -e`, as README.md has it: pip finds that packages do not fit."""
    work.answer("pip", *({"code": each} for each in calls))
    assert work.run_on(work.repository, "source launch/environment.sh") == code
    assert (work.repository / ".venv/installed").exists() == (code == 0)


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_vm.sh", ["destroy"], "unknown action 'destroy'; known: create, copy"),
        ("gke.sh", ["status", "--clutser=c"], "unknown option '--clutser'; known: --base-image --cluster --dry-run"),
        ("tpu_vm.sh", ["status", "--name=a/../b"], "--name='a/../b': small letters, digits and dashes"),
    ],
)
def test_errors(work, script, arguments, message):
    assert work.fails(script, *arguments).startswith(f"error: {message}")
    assert not work.calls("queued-resources create", "xpk", "sbatch")


CREATE = ["queued-resources list", "queued-resources create", "queued-resources describe"]
COPY_AND_INSTALL = ["tpu-vm scp", "ssh prepare", "ssh prepare"]
ATTEMPT = [*CREATE, *COPY_AND_INSTALL, "ssh run"]
DELETE = ["queued-resources list", "queued-resources delete", "tpu-vm list"]
LOOK = ["queued-resources describe", "tpu-vm describe"]


def test_interrupted_in_the_queue_nothing_is_left(work):
    work.answer("queued-resources describe", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("queued-resources describe")
    os.killpg(process.pid, signal.SIGTERM)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == 143 and "deleting run-1, which is not finished\n" in err
    assert work.keys()[-3:] == DELETE and not (work.root / "queued-resources").exists()


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


@pytest.mark.parametrize("code", [0, 9])
def test_a_days_machine_is_deleted_however_it_ended(work, code):
    work.add_hosts(1)
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("benchmarks.accelerator", {"code": code})
    done = work.run("tpu_day.sh", "up", *DAY)
    keys = [call["key"] for call in work.calls() if call["argv"][0] == "gcloud"]
    assert keys == [*CREATE, *COPY_AND_INSTALL, "tpu-vm scp", "tpu-vm scp", "ssh prepare", "tpu-vm scp", *DELETE]
    [argv] = work.argv("benchmarks.accelerator")
    assert argv[1:] == ["-m", "benchmarks.accelerator", "--data=../packed", "--out=../results", "--minutes=40"]
    assert "8 chips x $1.20 x 55 minutes: $8.80 at most\n" in done.stderr
    assert ("the works ended early" in done.stderr) == bool(code)


def test_what_a_day_costs(work):
    assert work.run("tpu_day.sh", "cost", "--type=v3-8", "--minutes=30").stdout == (
        "4 chips x $2.20 x 45 minutes: $6.60 at most\n"
    )
    assert "v5litepod-8 or v3-8" in work.fails("tpu_day.sh", "cost", "--type=v3-32")
    assert "no such folder" in work.fails("tpu_day.sh", "up", *PLACE, "--data=none", "--out=results")


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


def test_an_error_of_the_run_does_not_start_it_again(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer("ssh run", {"code": 1})
    err = work.run("tpu_vm.sh", "up", *UP, code=1).stderr
    assert work.keys() == [*ATTEMPT, *LOOK * 5] and "starting again" not in err and "launch/tpu_vm.sh delete" in err


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


def prepare(work: Workplace) -> None:
    work.run("tpu_vm.sh", "copy", *PLACE)
    work.run("tpu_vm.sh", "install", *PLACE)


def test_a_workload_on_gke(work):
    work.run(
        "gke.sh", "run", "--cluster=c", "--slices=2", "--retries=3", *PLACE, "--type=v5litepod-16", "--", *TRAINING
    )
    [argv] = work.argv("xpk")
    tree = next(a for a in argv if a.startswith("--script-dir=")).removeprefix("--script-dir=")
    assert argv[:-1] == [
        *["xpk", "workload", "create", "--cluster=c", "--project=p", "--zone=z", "--workload=run-1"],
        *["--tpu-type=v5litepod-16", "--num-slices=2", "--max-restarts=3", "--restart-on-exit-codes=75"],
        *["--termination-grace-period-seconds=15", "--base-docker-image=python:3.11", f"--script-dir={tree}"],
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
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost", "--grace=12"]]
    assert "jax[tpu]==0.9.7" in work.argv("pip")[-1]


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


@pytest.mark.parametrize(
    "code, state, requeued",
    [(75, {"out": "RUNNING"}, True), (2, {"out": "RUNNING"}, False), (75, {"out": "CANCELLED"}, False)],
)
def test_only_the_restart_code_queues_a_job_again(slurm, code, state, requeued):
    """And only that of a job which nobody has cancelled, as far as can be known."""
    slurm.answer("main", {"code": code})
    slurm.answer("squeue", state)
    slurm.run("slurm.sh", "run", *SLURM, "--", *SHARED)
    assert slurm.argv("scontrol") == ([["scontrol", "requeue", "7"]] if requeued else [])
    assert (slurm.root / "job_code").read_text() == str(code)


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

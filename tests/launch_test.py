"""The launch scripts, beside stand-ins for the tools of the clouds.

No cloud is reached. The stand-ins for gcloud, xpk and Slurm note their arguments and answer as told. That of
`gcloud … ssh` runs its command in one folder per host, that of sbatch runs the job, so what is quoted here is unquoted
by a real shell there.
"""

import fcntl
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.workplace import MALLOC, NASTY, PLACE, SCRIPTS, SHARED, SLURM, TRAINING, UP, Workplace, make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def work(tmp_path, repository):
    return Workplace(tmp_path, repository)


@pytest.fixture
def slurm(work):
    work.add_tool(work.repository / ".venv/bin/python")
    work.answer("squeue", {"out": "RUNNING"})
    return work


DAY = [*PLACE, "--data=launch", "--out=results"]
TOOLS = ("gcloud", "xpk", "sbatch", "squeue", "scancel")
ACTIONS = [("tpu_vm.sh", ["up", "--keep", *UP]), ("slurm.sh", ["run", *SLURM, "--", *SHARED])]


@pytest.mark.parametrize("script, arguments", ACTIONS)
def test_a_dry_run_only_prints_what_it_would_do(slurm, script, arguments):
    def without_ids(calls) -> list[list[str]]:
        return [[re.sub(r"start \d+-\d+ ", "start ID ", part) for part in argv] for argv in calls if argv[0] in TOOLS]

    before, (action, *others) = sorted(slurm.root.rglob("*")), [*arguments, NASTY[0]]
    printed = slurm.run(script, action, "--dry-run", *others).stdout.splitlines()
    assert not slurm.calls() and sorted(slurm.root.rglob("*")) == before
    slurm.answer("queued-resources describe", {"out": "ACTIVE"})
    slurm.run(script, action, *others)
    done = without_ids(slurm.argv())
    assert without_ids(map(shlex.split, printed)) == done and done


@pytest.mark.parametrize(("calls", "code"), [([0, 3], 3), ([0, 0], 0)])
def test_an_environment_that_fails_is_not_taken_for_whole(work, calls, code):
    """In a shell without `set -e`, as README.md has it: pip finds that packages do not fit."""
    work.answer("pip", *({"code": each} for each in calls))
    assert work.run_on(work.repository, "source launch/environment.sh") == code
    assert (work.repository / ".venv/installed").exists() == (code == 0)


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_vm.sh", ["destroy"], "unknown action 'destroy'; known: check, stage, create"),
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


def active(work: Workplace, hosts: int = 1) -> None:
    work.add_hosts(hosts)
    work.answer("queued-resources describe", {"out": "ACTIVE"})


def gcloud(work: Workplace) -> list[str]:
    return [call["key"] for call in work.calls() if call["argv"][0] == "gcloud"]


def test_interrupted_in_the_queue_nothing_is_left(work):
    work.answer("queued-resources describe", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("queued-resources describe")
    os.killpg(process.pid, signal.SIGTERM)
    err = process.communicate(timeout=10)[1]
    assert process.returncode == 143 and "deleting run-1, which is not finished\n" in err
    assert work.keys()[-3:] == DELETE and not (work.root / "queued-resources").exists()


def test_up_from_nothing_to_a_run(work):
    active(work, 2)
    work.answer("main", {"out": "step 1: loss 0.5"})
    done = work.run("tpu_vm.sh", "up", "--keep", *UP, *NASTY)
    assert gcloud(work) == ATTEMPT and "worker.sh watch" not in str(work.argv("ssh prepare"))
    assert all({"--worker=all", "--project=p", "--zone=z"} <= set(argv) for argv in work.argv("ssh run", "tpu-vm scp"))
    assert "--ssh-flag=-oServerAliveInterval=30" in work.argv("ssh run")[0]
    hosts = [(call["host"], call["environment"]) for call in work.calls("main")]
    assert hosts == [("host0", MALLOC), ("host1", MALLOC)]
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost"]] * 2
    assert done.stdout.count("step 1: loss 0.5\n") == 2 and "costs money" in done.stderr
    tpu = ["--quiet", "--disable-pip-version-check", "-c", ".venv/pins.txt", "gcsfs", "jax[tpu]==0.9.7"]
    assert work.argv("pip").count(["python", "-m", "pip", "install", *tpu]) == 2


@pytest.mark.parametrize("code", [pytest.param(0, marks=pytest.mark.long), 9])
def test_a_days_machine_is_deleted_however_it_ended(work, code):
    active(work)
    work.answer("benchmarks.accelerator", {"code": code})
    done = work.run("tpu_day.sh", "up", *DAY)
    copies = ["tpu-vm scp", "tpu-vm scp", "ssh prepare", "tpu-vm scp"]
    assert gcloud(work) == [*CREATE, *COPY_AND_INSTALL, *copies, *DELETE]
    [argv] = work.argv("benchmarks.accelerator")
    assert argv[1:] == ["-m", "benchmarks.accelerator", "--data=../packed", "--out=../results", "--minutes=40"]
    assert "8 chips x $1.20 x 55 minutes: $8.80 at most\n" in done.stderr
    assert ("the works ended early" in done.stderr) == bool(code)
    assert "v5litepod-8 or v3-8" in work.fails("tpu_day.sh", "cost", "--type=v3-32")
    assert "no such folder" in work.fails("tpu_day.sh", "up", *PLACE, "--data=none", "--out=results")


@pytest.mark.parametrize(
    "arguments, resource, node, codes, keys, message",
    [
        (
            *([], ["ACTIVE", "ACTIVE", "SUSPENDING", "ACTIVE"], ["READY"], [255, 0]),
            *([*ATTEMPT, *LOOK, LOOK[0], *DELETE, *ATTEMPT, *DELETE], "starting again, 1 of at most 10 times\n"),
        ),
        (["--retries=2"], ["ACTIVE"], [], [75], [*ATTEMPT, *DELETE] * 3, "not started again: --retries=2\n"),
    ],
    ids=["preempted", "the exit code says so, too often"],
)
def test_up_starts_again(work, arguments, resource, node, codes, keys, message):
    work.answer("queued-resources describe", *({"out": out} for out in resource))
    work.answer("tpu-vm describe", *({"out": out} for out in node))
    work.answer("ssh run", *({"code": code} for code in codes))
    assert message in work.run("tpu_vm.sh", "up", *arguments, *UP, code=codes[-1]).stderr
    assert work.keys() == keys


@pytest.mark.parametrize("options, code, last", [([], 1, DELETE), (["--keep"], 1, []), ([], 255, [])])
def test_an_error_of_the_run_ends_it_and_its_slice(work, options, code, last):
    """But for a connection that is lost: the run may go on."""
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer("ssh run", {"code": code})
    err = work.run("tpu_vm.sh", "up", *options, *UP, code=code).stderr
    assert work.keys() == [*ATTEMPT, *LOOK * (0 if code == 2 else 5), *last] and "starting again" not in err
    assert ("launch/tpu_vm.sh delete" in err) == (not last)


def test_a_config_that_would_not_run_makes_no_slice(work):
    work.add_tool(work.repository / ".venv/bin/python")
    work.answer("main", {"code": 2})
    assert "nothing was created" in work.run("tpu_vm.sh", "up", *UP, code=2).stderr
    assert work.keys() == ["main"]
    [argv] = work.argv("main")
    assert argv[1:4] == ["-m", "retrieval.main", TRAINING[0]] and argv[-1] == "--check"
    assert "/mnt/bucket/run" not in " ".join(argv)


def test_files_of_this_machine_are_staged_and_named_where_the_hosts_have_them(work):
    """Beside data in a bucket; a run in a bucket is read there."""
    active(work)
    (work.root / "dump.xml.bz2").touch()
    (work.root / "nfcorpus").mkdir()
    buckets = ["--workdir=gs://b/run", "--config.base=gs://b/base"]
    own = ["--config.corpus=dump.xml.bz2", f"--config.sets.beir={work.root}/nfcorpus/,gs://data/scifact"]
    err = work.run("tpu_vm.sh", "up", *PLACE, "--type=v5litepod-8", "--", "--config=mlm", *buckets, *own).stderr
    assert "not checked here, for it is read from a bucket: --config.base" in err
    at, copies = "run/inputs", [argv[3:] for argv in work.argv("storage cp")]
    assert copies == [
        ["--recursive", "--project=p", f"{work.root}/dump.xml.bz2", "gs://b/run-inputs/1/"],
        ["--recursive", "--project=p", f"{work.root}/nfcorpus", "gs://b/run-inputs/2/"],
        ["--recursive", "--quiet", "gs://b/run-inputs/1/dump.xml.bz2", f"{at}/1/"],
        ["--recursive", "--quiet", "gs://b/run-inputs/2/nfcorpus", f"{at}/2/"],
        ["--recursive", "--quiet", "gs://data/scifact", f"{at}/3/"],
    ]
    assert work.keys().index("storage cp") < work.keys().index("queued-resources list")
    [main] = work.argv("main")
    there = [f"--config.corpus={at}/1/dump.xml.bz2", f"--config.sets.beir={at}/2/nfcorpus,{at}/3/scifact"]
    assert main[4:] == [*buckets, *there, "--multihost"]
    missing = work.run("tpu_vm.sh", "up", *UP, f"--config.corpus={work.root}/dump.xml.bz2", code=2)
    assert "dump.xml.bz2 is here, and not on the hosts" in missing.stderr


@pytest.mark.parametrize(("codes", "number", "ends"), [([75, 0], "0", True), ([1], "0", True), ([0], "1", False)])
def test_a_slice_starts_its_run_again_and_deletes_itself(work, codes, number, ends):
    active(work)
    work.answer("main", *({"code": code} for code in codes))
    work.answer("curl", {"out": number})
    work.environment["PAUSE_SECONDS"] = "0.1"
    done = work.run("tpu_vm.sh", "up", "--detach", *UP)
    assert "the slice deletes itself" in done.stderr and "attach" in done.stderr
    assert "worker.sh watch 3600 gcloud" in str(work.argv("ssh prepare"))
    run = work.root / "hosts/host0/retrieval/run"
    while not (run / "code").exists() or len(work.calls("curl")) < 2:  # the first was for the watch
        time.sleep(0.01)
    assert len(work.calls("main")) == len(codes)
    assert (run / "code").read_text() == f"{codes[-1]}\n"
    if ends:
        os.kill(int((run / "watched").read_text()), signal.SIGKILL)
        work.wait_for("queued-resources delete")
        tail = ["run-1", "--force", "--quiet", "--async", "--project=p", "--zone=z"]
        assert work.argv("queued-resources delete")[0][-6:] == tail


def test_a_slice_deletes_itself_once_nothing_has_run_for_long(work):
    """Also where the shell that was to delete it after the run has been killed."""
    prepare(work, 1)
    work.answer("curl", {"out": "0"})
    work.environment["PAUSE_SECONDS"] = "0.1"
    watch = "cd retrieval && launch/worker.sh watch 2 'gcloud compute tpus queued-resources delete run-1'"
    host = work.root / "hosts/host0"
    (host / "retrieval/run").mkdir()
    with open(host / "retrieval/run/lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as a run holds it
        assert [work.run_on(host, watch) for _ in range(2)] == [0, 0]
        time.sleep(3)
        assert not work.calls("queued-resources delete")
    work.wait_for("queued-resources delete")
    time.sleep(0.5)
    assert len(work.calls("queued-resources delete")) == 1


def test_an_interrupted_run_is_kept(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh run", {"until": "never"})
    process = work.start("tpu_vm.sh", "up", *UP)
    work.wait_for("ssh run")
    process.send_signal(signal.SIGINT)
    err, place = process.communicate(timeout=10)[1], "--name=run-1 --project=p --zone=z\n"
    assert process.returncode == 130 and work.keys() == ATTEMPT
    assert f"follow it with: launch/tpu_vm.sh attach {place}" in err and "delete it" not in err
    assert f"deleted, with: launch/tpu_vm.sh delete {place}" in err
    with pytest.raises(ProcessLookupError):
        os.kill(work.calls("ssh run")[0]["pid"], 0)


def prepare(work: Workplace, hosts: int) -> None:
    work.add_hosts(hosts)
    work.run("tpu_vm.sh", "copy", *PLACE)
    work.run("tpu_vm.sh", "install", *PLACE)


def test_attach_gives_a_runs_exit_code_again(work):
    prepare(work, 2)
    work.answer("main", {"out": "first"}, {"out": "second", "code": 9})
    done = work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=9)
    assert done.stdout == work.run("tpu_vm.sh", "attach", *PLACE, code=9).stdout == "first\nsecond\n"
    assert len(work.calls("main")) == 2


def test_a_command_that_gcloud_repeats_starts_no_second_run(work):
    prepare(work, 1)
    work.answer("main", {"code": 4})
    work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=4)
    command = next(a for a in work.argv("ssh run")[0] if a.startswith("--command=")).removeprefix("--command=")
    host = work.root / "hosts/host0"
    again = subprocess.run(["bash", "-c", command], cwd=host, env={**work.environment, "HOME": str(host)})
    assert again.returncode == 4 and len(work.calls("main")) == 1
    work.run("tpu_vm.sh", "run", *PLACE, "--", *TRAINING, code=4)
    assert len(work.calls("main")) == 2


def test_a_workload_on_gke(work):
    options = ["--cluster=c", "--slices=2", "--retries=3", *PLACE, "--type=v5litepod-16"]
    work.run("gke.sh", "run", *options, "--", *TRAINING)
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
    devices = {"JAX_LOCAL_DEVICE_IDS": "0,1,2,3", "SRUN_CPUS_PER_TASK": "8", "XLA_CLIENT_MEM_FRACTION": "0.9"}
    assert main["environment"] == MALLOC | devices and not slurm.calls("scontrol")


@pytest.mark.parametrize("code, state, requeued", [(75, "RUNNING", 1), (2, "RUNNING", 0), (75, "CANCELLED", 0)])
def test_only_the_restart_code_queues_a_job_again(slurm, code, state, requeued):
    """And only that of a job which nobody has cancelled, as far as can be known."""
    slurm.answer("main", {"code": code})
    slurm.answer("squeue", {"out": state})
    slurm.run("slurm.sh", "run", *SLURM, "--", *SHARED)
    assert slurm.argv("scontrol") == ([["scontrol", "requeue", "7"]] if requeued else [])
    assert (slurm.root / "job_code").read_text() == str(code)


def test_slurms_warning_reaches_the_program(slurm):
    slurm.answer("main", {"until": "never", "term": 75})
    slurm.environment |= {"SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "8"}
    script = shutil.copy(slurm.repository / "launch/slurm.sh", slurm.root / "slurm_script")
    command = ["bash", script, "job", "4", "100", *SHARED]
    job = subprocess.Popen(command, cwd=slurm.repository, env=slurm.environment, stderr=-1)
    slurm.wait_for("main")
    job.send_signal(signal.SIGTERM)  # B: the shell alone
    job.communicate(timeout=10)
    assert job.returncode == 75 and slurm.argv("scontrol") == [["scontrol", "requeue", "7"]]

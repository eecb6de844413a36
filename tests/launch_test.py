"""The launch scripts against stand-ins for gcloud, xpk and Slurm, which note their arguments and answer as told.

No cloud is reached. The stand-in of `gcloud … ssh` runs its command in one folder per host, that of sbatch runs the
job, so what is quoted here is unquoted by a real shell there.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SCRIPTS = ["common.sh", "environment.sh", "worker.sh", "tpu_vm.sh", "gke.sh", "slurm.sh"]
MALLOC = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
STAND_INS = ["gcloud", "xpk", "sbatch", "srun", "scontrol", "squeue", "scancel", "python3.11"]
NASTY = [
    '--query=it\'s "so" $HOME `id` \\ ; & *',
    "--config.note=two\nlines\tand é",
    "--empty=",
    "--config.steps=(1, 2)",
]
TRAINING = ["--config=configs/mlm.py", "--workdir=/mnt/bucket/run"]
PLACE = ["--name=run-1", "--project=p", "--zone=z"]
UP = [*PLACE, "--type=v3-32", "--", *TRAINING]

STAND_IN = '''
import json, os, sys  # and no more at first: hundreds of these are started

ROOT = os.environ["STAND_IN_ROOT"]
TOOL, ARGV = os.path.basename(sys.argv[0]), sys.argv[1:]


def path(*names):
    return os.path.join(ROOT, *names)


def read(*names):
    with open(path(*names)) as file:
        return file.read()


def write(text, *names):
    with open(path(*names), "w") as file:
        file.write(text)


def hosts():
    return [path("hosts", name) for name in sorted(os.listdir(path("hosts")))]


def answer(key):
    """The next of the answers for this key; the last one stays."""
    file = key.replace(" ", "_").replace("/", "_")
    answers = json.loads(read("answers", file)) if os.path.exists(path("answers", file)) else [{}]
    if len(answers) > 1:
        write(json.dumps(answers[1:]), "answers", file)
    if "term" in answers[0]:
        import signal

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(answers[0]["term"]))
    record(key)
    if "leaves" in answers[0] and os.fork() == 0:
        await_file(answers[0]["leaves"])
    if "until" in answers[0]:
        await_file(answers[0]["until"])
    if "out" in answers[0]:
        print(answers[0]["out"], flush=True)
    return answers[0].get("code", 0)


def await_file(name):
    import time

    while not os.path.exists(path(name)):
        time.sleep(0.01)


def record(key):
    wanted = ("GLIBC_TUNABLES", "JAX_LOCAL_DEVICE_IDS", "SRUN_CPUS_PER_TASK")
    wanted += ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
    call = {"key": key, "argv": [TOOL, *ARGV], "host": os.path.basename(os.environ["HOME"]), "pid": os.getpid()}
    call["environment"] = {name: os.environ[name] for name in wanted if name in os.environ}
    with open(path("calls.jsonl"), "a") as file:
        file.write(json.dumps(call) + "\\n")


def gcloud():
    if ARGV[0] == "config":
        return answer(f"config {ARGV[2]}")
    group, verb = ARGV[2:4]
    if verb == "ssh":
        return ssh(next(a for a in ARGV if a.startswith("--command=")).removeprefix("--command="))
    code = answer(f"{group} {verb}")
    if verb == "list" and os.path.exists(path(group)):
        print(f"projects/p/locations/z/{group}/{read(group)}")
    if verb == "create":
        for kind in ("queued-resources", "tpu-vm"):
            write(ARGV[4], kind)
    if verb == "delete" and not code:
        os.unlink(path(group))
        if os.path.exists(path("tpu-vm")) and not os.path.exists(path("slice-stays")):
            os.unlink(path("tpu-vm"))
    if verb == "scp":
        for host in hosts():
            copy(ARGV[4], os.path.join(host, ARGV[5].split(":")[1]))
    return code


def copy(source, target):
    import shutil

    shutil.copy(source, target)


def ssh(command):
    import subprocess

    code = answer("ssh run" if "worker.sh start" in command else "ssh follow" if "follow" in command else "ssh prepare")
    for host in hosts():
        there = subprocess.run(["bash", "-c", command], cwd=host, env={**os.environ, "HOME": host})
        code = code or there.returncode
    return code


def sbatch():
    """Runs the job as Slurm does: a copy of the script, from elsewhere, in the folder of --chdir."""
    import subprocess

    code = answer("sbatch")
    script = next(i for i, a in enumerate(ARGV) if not a.startswith("-"))
    copy(ARGV[script], path("slurm_script"))
    options = dict(a.split("=", 1) for a in ARGV[:script] if "=" in a)
    environment = {**os.environ, "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": options["--cpus-per-task"]}
    command = ["bash", path("slurm_script"), *ARGV[script + 1 :]]
    job = subprocess.run(command, cwd=options["--chdir"], env=environment)
    write(str(job.returncode), "job_code")
    return code


def srun():
    record("srun")
    program = next(i for i, a in enumerate(ARGV) if not a.startswith("-"))
    os.execv(ARGV[program], ARGV[program:])


def python():
    if ARGV[:2] == ["-m", "venv"]:
        os.makedirs(os.path.join(ARGV[2], "bin"))
        copy(sys.argv[0], os.path.join(ARGV[2], "bin", "python"))
    module = ARGV[1] if ARGV[0] == "-m" else "python"
    return answer({"retrieval.main": "main"}.get(module, module))


special = {"gcloud": gcloud, "sbatch": sbatch, "srun": srun, "python": python, "python3.11": python}
sys.exit(special.get(TOOL, lambda: answer(TOOL))())
'''


class Workplace:
    """A repository with the scripts, a PATH with stand-ins, and what these were called with."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root, self.repository = root, root / "repository"
        shutil.copytree(repository, self.repository)
        for name in ("bin", "answers", "home", "hosts"):
            (root / name).mkdir()
        (root / "stand_in").write_text(f"#!{sys.executable} -IS\n{STAND_IN}")
        (root / "stand_in").chmod(0o755)
        for name in STAND_INS:
            self.add_tool(root / "bin" / name)
        self.environment = {
            "PATH": f"{root / 'bin'}:/usr/bin:/bin",
            "HOME": str(root / "home"),
            "STAND_IN_ROOT": str(root),
            "POLL_SECONDS": "0.02",
        }

    def add_tool(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.root / "stand_in")

    def add_hosts(self, number: int) -> None:
        for i in range(number):
            (self.root / "hosts" / f"host{i}").mkdir()

    def answer(self, key: str, *answers: dict) -> None:
        (self.root / "answers" / key.replace(" ", "_").replace("/", "_")).write_text(json.dumps(answers))

    def start(self, script: str, *arguments: str) -> subprocess.Popen:
        return subprocess.Popen(
            [self.repository / "launch" / script, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def run(self, script: str, *arguments: str, code: int = 0) -> subprocess.CompletedProcess:
        process = self.start(script, *arguments)
        out, err = process.communicate(timeout=15)
        assert process.returncode == code, f"exit code {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def fails(self, script: str, *arguments: str) -> str:
        """The one message of a call that is refused."""
        err = self.run(script, *arguments, code=2).stderr
        assert err.startswith("error: ") and err.count("\n") == 1, err
        return err

    def calls(self, *keys: str) -> list[dict]:
        file = self.root / "calls.jsonl"
        calls = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [call for call in calls if not keys or call["key"] in keys]

    def argv(self, *keys: str) -> list[list[str]]:
        return [call["argv"] for call in self.calls(*keys)]

    def keys(self) -> list[str]:
        return [call["key"] for call in self.calls()]

    def wait_for(self, key: str) -> None:
        deadline = time.monotonic() + 10
        while not self.calls(key):
            assert time.monotonic() < deadline, f"no {key}, only {self.keys()}"
            time.sleep(0.01)

    def touch(self, name: str) -> None:
        (self.root / name).touch()


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    (folder / "launch").mkdir()
    for name in SCRIPTS:
        shutil.copy(REPOSITORY / "launch" / name, folder / "launch")
    (folder / "requirements.lock").write_text("flax==0.1\njax==0.9.7\njaxlib==0.9.7\n")
    (folder / "setup.py").touch()
    (folder / ".gitignore").write_text(".venv/\nruns/\n")
    for command in ("init --quiet --template=", "add .", "-c user.name=x -c user.email=x commit --quiet -m all"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder


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


@pytest.mark.parametrize("type_, runtime", [("v5litepod-16", "v2-alpha-tpuv5-lite"), ("v6e-8", "v2-alpha-tpuv6e")])
def test_spot_and_the_usual_runtime_of_a_type(work, type_, runtime):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.run("tpu_vm.sh", "create", *PLACE, f"--type={type_}", "--spot")
    assert {f"--runtime-version={runtime}", "--spot"} <= set(work.argv("queued-resources create")[0])


def test_the_runtime_of_the_user_is_taken(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.run("tpu_vm.sh", "create", *PLACE, "--type", "v9-8", "--runtime", "mine")
    assert "--runtime-version=mine" in work.argv("queued-resources create")[0]


def test_a_request_that_gcloud_refuses_is_cleared_away(work):
    work.answer("queued-resources create", {"code": 1})
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", code=2).stderr
    assert err.startswith("error: gcloud could not ask for run-1")
    assert work.keys() == [*CREATE[:2], *DELETE]
    assert not (work.root / "queued-resources").exists()


@pytest.mark.parametrize("state", ["FAILED", "SUSPENDED"])
def test_a_request_that_fails_is_explained_and_deleted(work, state):
    work.answer("queued-resources describe", {"out": "PROVISIONING"}, {"out": state}, {"out": "message: no capacity"})
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", code=2).stderr
    assert "message: no capacity\n" in err and f"error: run-1 is {state}, see above\n" in err
    assert work.keys()[-3:] == DELETE


def test_a_request_that_stays_in_the_queue_is_deleted(work):
    work.answer("queued-resources describe", {"out": "WAITING_FOR_RESOURCES"})
    err = work.run("tpu_vm.sh", "create", *PLACE, "--type=v3-32", "--timeout=0", code=2).stderr
    assert "error: run-1 is still WAITING_FOR_RESOURCES after --timeout=0\n" in err
    assert work.keys() == [*CREATE, *DELETE]


def test_a_slice_of_somebody_else_is_left_alone(work):
    (work.root / "queued-resources").write_text("run-1")
    assert "run-1 exists already" in work.fails("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    assert work.keys() == ["queued-resources list"]


def test_nothing_is_made_when_it_is_not_known_what_is_there(work):
    work.answer("queued-resources list", {"code": 1})
    assert "could not list" in work.fails("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
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


def test_a_signal_between_two_looks_is_answered_at_once(work):
    work.environment["POLL_SECONDS"] = "60"
    work.answer("queued-resources describe", {"out": "WAITING_FOR_RESOURCES"})
    process = work.start("tpu_vm.sh", "create", *PLACE, "--type=v3-32")
    assert process.stderr.readline() == "run-1: WAITING_FOR_RESOURCES\n"
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 143 and work.keys() == [*CREATE, *DELETE]


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


def test_up_deletes_afterwards_when_told(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    done = work.run("tpu_vm.sh", "up", "--delete-after", *UP)
    assert work.keys() == [*ATTEMPT, *DELETE] and "costs money" not in done.stderr


def test_a_preempted_run_is_started_again(work):
    states = ["ACTIVE", "ACTIVE", "SUSPENDING", "ACTIVE"]
    work.answer("queued-resources describe", *({"out": state} for state in states))
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer("ssh run", {"code": 255}, {"code": 0})
    err = work.run("tpu_vm.sh", "up", *UP).stderr
    assert work.keys() == [*ATTEMPT, *LOOK, "queued-resources describe", *DELETE, *ATTEMPT]
    assert "starting again, 1 of at most 10 times\n" in err


def test_a_slice_that_is_preempted_while_it_is_set_up_is_made_again(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"code": 1}, {"out": "PREEMPTED"})
    work.answer("tpu-vm scp", {"code": 1}, {"code": 0})
    work.run("tpu_vm.sh", "up", *UP)
    assert work.keys() == [*ATTEMPT[:4], *LOOK, *LOOK, *DELETE, *ATTEMPT]


def test_the_exit_code_of_the_program_starts_it_again(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh run", {"code": 75}, {"code": 0})
    work.run("tpu_vm.sh", "up", *UP)
    assert work.keys() == [*ATTEMPT, *DELETE, *ATTEMPT]


def test_wrong_arguments_are_not_tried_again_even_after_a_preemption(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"}, {"out": "SUSPENDED"})
    work.answer("ssh run", {"code": 2})
    err = work.run("tpu_vm.sh", "up", *UP, code=2).stderr
    assert work.keys() == ATTEMPT and "launch/tpu_vm.sh delete" in err


def test_a_run_that_fails_by_itself_is_not_started_again(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"out": "READY"})
    work.answer("ssh run", {"code": 1})
    err = work.run("tpu_vm.sh", "up", *UP, code=1).stderr
    assert work.keys() == [*ATTEMPT, *LOOK * 5] and "starting again" not in err and "costs money" in err


def test_a_step_that_fails_ends_the_others(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh prepare", {"code": 0}, {"code": 2})
    work.run("tpu_vm.sh", "up", *UP, code=2)
    assert work.keys() == ATTEMPT[:-1]


def test_retries_come_to_an_end(work):
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("ssh run", {"code": 75})
    err = work.run("tpu_vm.sh", "up", "--retries=2", *UP, code=75).stderr
    assert work.keys() == [*ATTEMPT, *DELETE, *ATTEMPT, *DELETE, *ATTEMPT]
    assert "not started again: --retries=2\n" in err


@pytest.mark.parametrize("sent, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupted_run_is_kept_and_said_how_to_delete(work, sent, code):
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


def test_the_exit_code_of_a_run_comes_back_and_attach_gives_it_again(work):
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


def test_what_a_program_leaves_behind_does_not_hold_up_the_end(work):
    work.add_hosts(1)
    prepare(work)
    work.answer("main", {"leaves": "release", "code": 5})
    process = work.start("tpu_vm.sh", "run", *PLACE, "--", *TRAINING)
    try:
        assert process.wait(timeout=10) == 5
    finally:
        work.touch("release")


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
    for kind in ("queued-resources", "tpu-vm"):
        (work.root / kind).write_text("run-1")
    work.answer("queued-resources describe", {"out": "ACTIVE"})
    work.answer("tpu-vm describe", {"out": "READY HEALTHY"})
    assert work.run("tpu_vm.sh", "status", *PLACE).stdout == "ACTIVE\nREADY HEALTHY\n"
    work.run("tpu_vm.sh", "delete", *PLACE)
    assert work.keys() == [*LOOK, *DELETE]
    assert {"run-1", "--force", "--quiet"} <= set(work.argv("queued-resources delete")[0])


def test_delete_leaves_no_slice_behind(work):
    for kind in ("queued-resources", "tpu-vm", "slice-stays"):
        (work.root / kind).write_text("run-1")
    work.run("tpu_vm.sh", "delete", *PLACE)
    assert work.keys() == [*DELETE, "tpu-vm delete"] and not (work.root / "tpu-vm").exists()


def test_delete_of_a_name_that_is_only_part_of_another(work):
    (work.root / "queued-resources").write_text("run-10")
    err = work.run("tpu_vm.sh", "delete", *PLACE).stderr
    assert "there is neither" in err and work.keys() == ["queued-resources list", "tpu-vm list"]


def test_a_delete_that_fails_comes_back(work):
    (work.root / "queued-resources").write_text("run-1")
    work.answer("queued-resources delete", {"code": 7})
    work.run("tpu_vm.sh", "delete", *PLACE, code=7)


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


def test_the_command_of_a_workload_installs_and_keeps_its_arguments(work):
    work.run("gke.sh", "run", "--cluster=c", *PLACE, "--type=v5litepod-16", "--", *TRAINING, *NASTY)
    options = dict(a.split("=", 1) for a in work.argv("xpk")[0] if a.startswith("--"))
    assert "\n" not in options["--command"]  # xpk puts it into one line of YAML
    work.answer("main", {"code": 75})
    command = f"({options['--command']}) & PID=$!; wait $PID; exit $?"  # as xpk does
    code = subprocess.run(["bash", "-c", command], cwd=options["--script-dir"], env=work.environment).returncode
    assert code == 75
    assert work.argv("main") == [["python", "-m", "retrieval.main", *TRAINING, *NASTY, "--multihost"]]
    assert "jax[tpu]==0.9.7" in work.argv("pip")[-1]


def test_a_workload_that_cannot_be_installed_does_not_run(work):
    work.run("gke.sh", "run", "--cluster=c", *PLACE, "--type=v5litepod-16", "--", *TRAINING)
    options = dict(a.split("=", 1) for a in work.argv("xpk")[0] if a.startswith("--"))
    work.answer("pip", {"code": 1})
    command = ["bash", "-c", f"({options['--command']})"]
    assert subprocess.run(command, cwd=options["--script-dir"], env=work.environment).returncode == 1
    assert not work.calls("main")


def test_a_workload_from_an_image_that_has_everything(work):
    work.run("gke.sh", "run", "--cluster=c", "--image=i:1", *PLACE, "--type=v5litepod-16", "--", *TRAINING)
    [argv] = work.argv("xpk")
    assert argv[-2:] == [
        "--docker-image=i:1",
        "--command=exec env GLIBC_TUNABLES=glibc.malloc.hugetlb=1 "
        f"python -m retrieval.main {' '.join(TRAINING)} --multihost",
    ]
    assert not any(a.startswith(("--script-dir", "--base-docker-image")) for a in argv)


def test_an_unpacked_tree_has_nothing_of_the_one_before(work):
    run = ["run", "--cluster=c", *PLACE, "--type=v5litepod-16", "--", *TRAINING]
    work.run("gke.sh", *run)
    tree = work.root / "home/.cache/retrieval/run-1"
    (tree / "old").touch()
    work.run("gke.sh", *run)
    assert not (tree / "old").exists()


def test_status_and_delete_of_a_workload(work):
    place = ["--cluster=c", "--project=p", "--zone=z"]
    work.run("gke.sh", "status", "--name=run-1", *place)
    work.run("gke.sh", "delete", "--name=run-1", *place)
    assert work.argv("xpk") == [
        ["xpk", "workload", "list", *place, "--filter-by-job=run-1"],
        ["xpk", "workload", "delete", *place, "--workload=run-1", "--force"],
    ]


def test_the_exit_code_of_xpk_comes_back(work):
    work.answer("xpk", {"code": 6})
    work.run("gke.sh", "status", "--name=run-1", "--cluster=c", "--project=p", "--zone=z", code=6)


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


@pytest.mark.parametrize("name", ["XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"])
def test_a_share_of_the_memory_that_the_user_sets_is_kept_alone(slurm, name):
    slurm.environment[name] = "0.5"
    slurm.run("slurm.sh", "run", "--name=run-1", "--", *SHARED)
    environment = slurm.calls("main")[0]["environment"]
    assert {key: value for key, value in environment.items() if "FRACTION" in key} == {name: "0.5"}


@pytest.mark.parametrize("code, requeued", [(75, True), (2, False), (1, False), (0, False)])
def test_only_the_restart_code_queues_a_job_again(slurm, code, requeued):
    slurm.answer("main", {"code": code})
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


@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED"])
def test_a_job_that_is_cancelled_stays_cancelled(slurm, state):
    slurm.answer("main", {"code": 75})
    slurm.answer("squeue", {"out": state})
    slurm.run("slurm.sh", "run", *SLURM, "--", *SHARED)
    assert not slurm.calls("scontrol")


def test_a_job_is_queued_again_when_its_state_cannot_be_asked_for(slurm):
    slurm.answer("main", {"code": 75})
    slurm.answer("squeue", {"code": 1})
    slurm.run("slurm.sh", "run", *SLURM, "--", *SHARED)
    assert slurm.calls("scontrol")


def test_the_warning_before_the_time_is_up_reaches_the_program(slurm):
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
def test_a_dry_run_prints_what_a_run_does_and_does_nothing(slurm, script, arguments):
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


def test_a_dry_run_needs_no_tool_and_no_project(work):
    for name in STAND_INS:
        (work.root / "bin" / name).unlink()
    work.environment["PATH"] = work.environment["PATH"].replace(":/usr/bin:", f":{system_tools(work)}:")
    out = work.run("tpu_vm.sh", "status", "--name=run-1", "--dry-run").stdout
    assert "gcloud config get-value project\n" in out and "--project=PROJECT --zone=ZONE\n" in out
    assert "xpk workload list" in work.run("gke.sh", "status", "--cluster=c", *PLACE, "--dry-run").stdout
    assert "squeue" in work.run("slurm.sh", "status", "--name=run-1", "--dry-run").stdout


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


@pytest.mark.parametrize("workdir", [["--workdir=runs/mine"], ["--workdir", "runs/mine"]])
@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh"])
def test_the_folder_of_one_host_is_refused(work, script, workdir):
    assert "another folder on every host" in work.fails(script, *RUN[script], "--", *workdir)


ON_SLICES = {"tpu_vm.sh": ["up", *PLACE], "gke.sh": ["run", "--cluster=c", *PLACE]}


@pytest.mark.parametrize("workdir, reason", [("gs://bucket/run", "cannot share a store"), ("runs", "on every host")])
@pytest.mark.parametrize(
    "script, slices",
    [
        *[("tpu_vm.sh", [f"--type={type_}"]) for type_ in ("v3-32", "v5litepod-16")],
        *[("gke.sh", [f"--type={type_}"]) for type_ in ("v5litepod-8", "v6e-8")],
        ("gke.sh", ["--type=v6e-4", "--slices=2"]),
    ],
)
def test_the_hosts_of_a_slice_cannot_share_a_store(work, script, slices, workdir, reason):
    err = work.fails(script, *ON_SLICES[script], *slices, "--", f"--workdir={workdir}")
    assert reason in err and "such as /mnt/BUCKET/RUN" in err and not work.calls()


@pytest.mark.parametrize(
    "script, type_", [("tpu_vm.sh", "v5litepod-8"), ("tpu_vm.sh", "v3-8"), ("tpu_vm.sh", ""), ("gke.sh", "v6e-4")]
)
def test_one_host_has_a_store(work, script, type_):
    here = ON_SLICES[script] if type_ else RUN[script]
    done = work.run(script, *here, f"--type={type_}", "--dry-run", "--", "--workdir=gs://bucket/run")
    assert "--workdir=gs://bucket/run" in done.stdout and "warning: --workdir" not in done.stderr
    assert "such as gs://BUCKET/RUN" in work.fails(script, *here, f"--type={type_}", "--", "--workdir=gs://")


def test_nodes_cannot_share_a_store(slurm):
    refused = slurm.fails("slurm.sh", *RUN["slurm.sh"], "--nodes=2", "--", "--workdir=gs://bucket/run")
    assert "several nodes cannot share a store" in refused and not slurm.calls()
    slurm.run("slurm.sh", *RUN["slurm.sh"], "--dry-run", "--", "--workdir=gs://bucket/run")


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh"])
def test_a_mounted_folder_is_warned_of(work, script):
    assert "warning: --workdir=/mnt/shared" in work.run(script, *RUN[script], "--", "--workdir", "/mnt/shared").stderr


@pytest.mark.parametrize("folder", ["/tmp/run", "/dev/shm/run"])
def test_the_disk_of_one_node_is_refused(slurm, folder):
    assert "must be where all nodes see it" in slurm.fails("slurm.sh", *RUN["slurm.sh"], "--", f"--workdir={folder}")


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


def test_an_unset_setting_of_gcloud_is_none(work):
    work.answer("config project", {"out": "(unset)"})
    assert "no project is set" in work.fails("tpu_vm.sh", "status", "--name=a", "--zone=z")


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

"""What the launch scripts have in common: dry runs, help and errors."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support.workplace import NASTY, PLACE, SHARED, SLURM, TRAINING, UP, Workplace

pytest_plugins = ["support.launching"]

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


@pytest.mark.parametrize(("calls", "code"), [([1], 1), ([0, 3], 3), ([0, 0], 0)])
def test_an_environment_that_fails_is_not_taken_for_whole(work, calls, code):
    """In a shell without `set -e`, as README.md has it: pip cannot install, or finds that packages do not fit."""
    work.answer("pip", *({"code": each} for each in calls))
    assert work.run_on(work.repository, "source launch/environment.sh") == code
    assert (work.repository / ".venv/installed").exists() == (code == 0)


def test_an_environment_needs_a_python(work):
    (work.root / "bin/python3.11").unlink()
    command = f"PATH={work.root}/bin:{system_tools(work)}; source launch/environment.sh"
    for name in ("cut", "sha256sum"):
        (work.root / "tools" / name).symlink_to(shutil.which(name))
    assert work.run_on(work.repository, command) == 1
    assert not (work.repository / ".venv").exists()


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

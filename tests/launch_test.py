"""What the launch scripts have in common: dry runs, help and errors."""

import re
import shlex
import shutil

import pytest
from conftest import REPOSITORY
from support.workplace import NASTY, PLACE, SHARED, SLURM, TRAINING, UP

pytest_plugins = ["support.launching"]

ACTIONS = [
    ("tpu_vm.sh", ["up", *UP]),
    ("tpu_vm.sh", ["delete", *PLACE]),
    ("gke.sh", ["run", "--cluster=c", *PLACE, "--type=v6e-8", "--", *TRAINING]),
    ("slurm.sh", ["run", *SLURM, "--", *SHARED]),
]


@pytest.mark.parametrize("script, arguments", ACTIONS)
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


@pytest.mark.parametrize(("calls", "code"), [([0, 3], 3), ([0, 0], 0)])
def test_an_environment_that_fails_is_not_taken_for_whole(work, calls, code):
    """In a shell without `set -e`, as README.md has it: pip finds that packages do not fit."""
    work.answer("pip", *({"code": each} for each in calls))
    assert work.run_on(work.repository, "source launch/environment.sh") == code
    assert (work.repository / ".venv/installed").exists() == (code == 0)


@pytest.mark.parametrize("script", ["tpu_vm.sh", "gke.sh", "slurm.sh"])
def test_help(work, script):
    out = work.run(script, "--help").stdout
    source = (REPOSITORY / "launch" / script).read_text()
    options = re.findall(r"\[([a-z-]+)\]=", source[source.index("declare -A") : source.index("\n)\n")])
    assert len(options) > 5 and all(f"--{name}" in out for name in options) and not work.calls()


@pytest.mark.parametrize(
    "command, message",
    [
        (["tpu_vm.sh", "run", *PLACE], "nothing to run: the arguments of retrieval.main go after --"),
        (["slurm.sh", "run", "--name=run-1", "--", "--config=c"], "--workdir is missing among the arguments after --"),
        (["tpu_vm.sh", "run", *PLACE, "--", "--workdir=runs/mine"], "another folder on every host"),
        (["gke.sh", "run", "--cluster=c", *PLACE, "--type=v6e-4", "--", "--workdir=gs://"], "such as gs://BUCKET/RUN"),
        (["slurm.sh", "run", *SLURM, "--", "--workdir", "/tmp/run"], "must be where all nodes see it"),
    ],
)
def test_what_is_to_be_run_is_checked(slurm, command, message):
    assert message in slurm.fails(*command)
    assert not slurm.calls()


@pytest.mark.parametrize(
    "script, arguments, message",
    [
        ("tpu_vm.sh", ["destroy"], "unknown action 'destroy'; known: create, copy"),
        ("gke.sh", ["status", "--clutser=c"], "unknown option '--clutser'; known: --base-image --cluster --dry-run"),
        ("tpu_vm.sh", ["status"], "--name is missing: 'status' needs it"),
        ("tpu_vm.sh", ["status", "--name=a/../b"], "--name='a/../b': small letters, digits and dashes"),
        ("tpu_vm.sh", ["create", *PLACE, "--type=v9-8"], "no runtime version is known for --type=v9-8"),
        ("tpu_vm.sh", ["up", *PLACE, "--retries=-1", "--type=v3-8"], "--retries='-1': a whole number of at least 0"),
        ("tpu_vm.sh", ["status", "--name=a", "--project=p"], "no zone is set: give --zone=ZONE, or 'gcloud config set"),
        ("slurm.sh", ["run", "--name=a", "--", "--workdir=/w"], "there is no .venv"),
    ],
)
def test_errors(work, script, arguments, message):
    assert work.fails(script, *arguments).startswith(f"error: {message}")
    assert not work.calls("queued-resources create", "xpk", "sbatch")


def test_a_tool_that_is_missing(work):
    tools = work.root / "tools"
    tools.mkdir()
    for name in ("bash", "env", "cat", "dirname", "grep", "id", "paste", "sed", "sort", "git"):
        (tools / name).symlink_to(shutil.which(name))
    work.environment["PATH"] = str(tools)
    message = work.fails("tpu_vm.sh", "status", *PLACE)
    assert message.startswith("error: gcloud not found: install the Google Cloud CLI")

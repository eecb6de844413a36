"""The launch script of Slurm."""

import shutil
import signal
import subprocess

import pytest
from support.workplace import MALLOC, NASTY, SHARED, SLURM

pytest_plugins = ["support.launching"]


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
    [
        (75, {"out": "RUNNING"}, True),
        (2, {"out": "RUNNING"}, False),
        (75, {"out": "CANCELLED"}, False),
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

"""A copy of the launch scripts, with stand-ins for the tools of the clouds."""

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from conftest import REPOSITORY

SCRIPTS = ["common.sh", "environment.sh", "worker.sh", "tpu_vm.sh", "tpu_day.sh", "gke.sh", "slurm.sh"]

# Arguments of the scripts, and of the runs that they start.
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
SLURM = ["--name=run-1", "--nodes=2", "--gpus=4"]
SHARED = ["--config=configs/mlm.py", "--workdir=/shared/run"]
STAND_INS = ["curl", "gcloud", "xpk", "sbatch", "srun", "scontrol", "squeue", "scancel", "python3.11"]
STAND_IN = Path(__file__).with_name("stand_in.py")


class Workplace:
    """A repository with the scripts, a PATH with stand-ins, and what these were called with."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root, self.repository = root, root / "repository"
        shutil.copytree(repository, self.repository)
        for name in ("bin", "answers", "home", "hosts"):
            (root / name).mkdir()
        (root / "stand_in").write_text(f"#!{sys.executable} -IS\n{STAND_IN.read_text()}")
        (root / "stand_in").chmod(0o755)
        for name in STAND_INS:
            self.add_tool(root / "bin" / name)
        self.environment = {"PATH": f"{root / 'bin'}:/usr/bin:/bin", "HOME": str(root / "home")}
        self.environment |= {"STAND_IN_ROOT": str(root), "POLL_SECONDS": "0.02"}

    def add_tool(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(self.root / "stand_in")

    def add_hosts(self, number: int) -> None:
        for i in range(number):
            (self.root / "hosts" / f"host{i}").mkdir()

    def answer(self, key: str, *answers: dict) -> None:
        (self.root / "answers" / key.replace(" ", "_").replace("/", "_")).write_text(json.dumps(answers))

    def start(self, script: str, *arguments: str) -> subprocess.Popen:
        pipes = dict(stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        own = dict(start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        command = [self.repository / "launch" / script, *arguments]
        return subprocess.Popen(command, cwd=self.root, env=self.environment, **pipes, **own)

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

    def run_on(self, folder: Path, command: str) -> int:
        """The exit code of a shell's command in a folder, which is a host's home."""
        environment = {**self.environment, "HOME": str(folder)}
        return subprocess.run(["bash", "-c", command], cwd=folder, env=environment).returncode


def make_repository(folder: Path) -> Path:
    """A repository with the launch scripts and little else, in an empty folder."""
    (folder / "launch").mkdir()
    for name in SCRIPTS:
        shutil.copy(REPOSITORY / "launch" / name, folder / "launch")
    (folder / "requirements.lock").write_text("flax==0.1\njax==0.9.7\njaxlib==0.9.7\n")
    (folder / "setup.py").touch()
    (folder / ".gitignore").write_text(".venv/\nruns/\n")
    for command in ("init --quiet --template=", "add .", "-c user.name=x -c user.email=x commit --quiet -m all"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder

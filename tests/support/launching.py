"""Fixtures of the launch scripts' tests: a copy of the scripts, beside stand-ins for the tools that they call.

No cloud is reached. The stand-ins for gcloud, xpk and Slurm note their arguments and answer as told. That of
`gcloud … ssh` runs its command in one folder per host, that of sbatch runs the job, so what is quoted here is unquoted
by a real shell there.
"""

from pathlib import Path

import pytest

from support.workplace import Workplace, make_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("repository"))


@pytest.fixture
def work(tmp_path: Path, repository: Path) -> Workplace:
    return Workplace(tmp_path, repository)


@pytest.fixture
def slurm(work: Workplace) -> Workplace:
    tool = work.repository / ".venv/bin/python"
    work.add_tool(tool)
    work.answer("squeue", {"out": "RUNNING"})
    return work

"""What git leaves out of the repository."""

import os
import shutil
import subprocess

from conftest import REPOSITORY


def test_git_ignores_an_environment_that_is_a_link(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(REPOSITORY / ".gitignore", tmp_path)
    (tmp_path / "elsewhere").mkdir()
    os.symlink(tmp_path / "elsewhere", tmp_path / ".venv")
    found = subprocess.run(["git", "check-ignore", ".venv"], cwd=tmp_path, capture_output=True, text=True)
    assert found.stdout == ".venv\n"

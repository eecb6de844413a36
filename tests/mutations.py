"""Takes every protection that docs/reliability.md names out, one at a time: its test has to notice.

    .venv/bin/python tests/mutations.py            # all of `mutations.toml`, 22 minutes
    .venv/bin/python tests/mutations.py kill       # those whose fault begins so

Each mutation is made in a copy of the repository. Run it by hand when a protection or its test has changed.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
_PATIENCE = 500  # seconds in which a test has to notice; one that hangs has noticed as well


def read():
    """The protections of `mutations.toml`: dicts of fault, file, code, without, test."""
    return tomllib.loads((REPOSITORY / "tests" / "mutations.toml").read_text(encoding="utf-8"))["protection"]


def main(faults):
    chosen = [each for each in read() if each["fault"].startswith(tuple(faults) or "")]
    if outdated := [each["fault"] for each in chosen if source_of(each, REPOSITORY).count(each["code"]) != 1]:
        sys.exit(f"mutations.toml: not once in the code: {', '.join(outdated)}")
    unnoticed = 0
    for number, protection in enumerate(chosen, 1):
        problem = mutate(protection)
        unnoticed += bool(problem)
        print(f"{number} of {len(chosen)}: {protection['fault']}: {problem or 'noticed'}", flush=True)
    sys.exit(f"{unnoticed} not noticed" if unnoticed or not chosen else 0)


def source_of(protection, repository):
    return (repository / "retrieval" / protection["file"]).read_text(encoding="utf-8")


def mutate(protection):
    """Why the test of a protection did not notice that it was gone; '' where it did."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(REPOSITORY, Path(folder) / "repository", ignore=_left_out)
        path = copy / "retrieval" / protection["file"]
        path.write_text(source_of(protection, copy).replace(protection["code"], protection["without"]), "utf-8")
        code, said = run(copy, protection["test"])
    return "" if code is None or (code == 1 and " failed" in said) else said[-2000:]


def _left_out(folder, names):
    """What is no code: hidden, compiled, or in the folder of runs that lies beside the package."""
    mine = {"runs"} if Path(folder) == REPOSITORY else set()
    return {name for name in names if name.startswith(".") or name in mine | {"__pycache__"}}


def run(copy, test):
    """Exit code and output of a test in a copy of the repository; None where it hangs."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-m", "", f"tests/{test}"]
    environment = os.environ | {"RETRIEVAL_TEST_DATA": str(REPOSITORY.parent / "shared" / "data")}
    given = dict(cwd=copy, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    with subprocess.Popen(command, start_new_session=True, **given) as process:
        try:
            said, _ = process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            return None, ""
        finally:  # a process that nothing ends any more, too
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return process.returncode, said


if __name__ == "__main__":
    main(sys.argv[1:])

"""A run from Python: `retrieval.run` does what `python -m retrieval.main` does, in a process of its own."""

import functools
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, signals
from retrieval.common.runtime.store import is_url
from retrieval.runs.pipeline.records import verify_written

_ERROR = "error: "  # how the program begins what is wrong
_BAD_INPUT = 2


class FinishedRun:
    """A run whose stages have ended. A notebook shows its report.

    Attributes:
      workdir: its folder; where that is on a store, the address.
    """

    def __init__(self, workdir: str | Path):
        self.workdir = workdir

    def __repr__(self) -> str:
        return f"FinishedRun({self.workdir})"

    def _repr_markdown_(self) -> str:
        return self.report or repr(self)

    @property
    def results(self) -> list[dict[str, Any]]:
        """The rows of `results.json`, for pandas or `datasets`; empty where nothing was evaluated."""
        path = self._verified("results.json")
        return files.read_json(path) if path.exists() else []

    @property
    def report(self) -> str:
        """`report.md`, '' where there is none."""
        path = self._verified("report.md")
        return path.read_text(encoding="utf-8") if path.exists() else ""

    @functools.cached_property
    def model(self) -> Any:
        """The trained model."""
        return self.load()

    def load(self) -> Any:
        """The trained model, as `retrieval.load`."""
        from retrieval.api.loading import load

        self._brought(artefacts.CONFIG, artefacts.RECORDS)
        return load(self.workdir)

    def _verified(self, name: str) -> Path:
        folder = self._brought(name, artefacts.RECORDS)
        verify_written(folder, [name])
        return folder / name

    def _brought(self, *names: str) -> Path:
        """The folder with these files or folders as they are now, be it on a store."""
        if not is_url(str(self.workdir)):
            return Path(self.workdir)
        copy = artefacts.copy_of(str(self.workdir))
        copy.get(names)
        return copy.folder


def run(
    config: str,
    workdir: str | Path,
    overrides: Mapping[str, Any] | None = None,
    stages: str | Sequence[str] = (),
    quiet: bool = False,
) -> FinishedRun:
    """Runs an experiment to its end, or goes on with one that was cut off.

    Args:
      config: as --config takes it: 'dpr:local', or the path of a file.
      workdir: the folder to write to, or its address on an object store.
      overrides: dotted fields and their values, such as {'train.steps': 100}.
      stages: the stages to run instead of those of the config, or one.
      quiet: whether to keep the log back.

    Raises:
      UserError: bad input; with the program's own message.
      RuntimeError: it ended otherwise; the log has the reason.
    """
    if not isinstance(overrides or {}, Mapping):
        raise UserError(f"overrides={overrides!r}: fields and values are needed, such as {{'train.steps': 100}}"[:300])
    names = [stages] if isinstance(stages, str) else list(stages or ())
    flags = {"config": config, **{f"config.{name}": of for name, of in (overrides or {}).items()}}
    flags |= {"stage": ",".join(names)} if names else {}
    return run_program(flags, workdir, (lambda line: True) if quiet else _shown)


def _shown(line: str) -> bool:
    print(line, flush=True)
    return True


def run_program(flags: Mapping[str, Any], workdir: str | Path, on_line: Callable[[str], bool]) -> FinishedRun:
    """Runs the program in a process of its own.

    Args:
      on_line: gets every line that it prints. Where it is false, the program saves where it is, and ends.

    Raises:
      UserError, RuntimeError: as `run`.
    """
    workdir = os.path.expanduser(workdir)
    flags = {**flags, "workdir": workdir}
    command = [sys.executable, "-m", "retrieval.main", *(f"--{name}={value}" for name, value in flags.items())]
    lines: list[str] = []
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "encoding": "utf-8", "errors": "replace"}
    stopped = False
    with subprocess.Popen(command, **pipes) as process:
        try:
            for text in process.stdout or ():
                lines = [*lines[-20:], text.rstrip("\n")]
                if not on_line(lines[-1]):
                    stopped = True
                    process.terminate()
        except BaseException:
            process.terminate()  # it saves where it is, and the same call goes on from there
            process.wait()
            raise
    if process.returncode == _BAD_INPUT:
        start = next((place for place, line in enumerate(lines) if line.startswith(_ERROR)), 0)
        raise UserError("\n".join(lines[start:]).removeprefix(_ERROR))
    if process.returncode and not (stopped and process.returncode == signals.EXIT_CODE):
        raise RuntimeError(f"the run ended with {process.returncode}:\n" + "\n".join(lines))
    return FinishedRun(workdir if is_url(workdir) else Path(workdir))

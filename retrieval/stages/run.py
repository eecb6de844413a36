"""A run: a work directory, its config, and stages that are skipped when nothing they read has changed."""

import dataclasses
import json
import logging
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.errors import UserError

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Run:
    """Where everything of a run lives.

    Attributes:
      lock: the file of pinned versions whose packages make up the pydocs corpus.
      query: what `--stage=search` looks for.
    """

    config: ConfigDict
    folder: Path
    lock: Path
    query: str = ""

    @property
    def corpus(self) -> Path:
        """Shards, vocabulary and statistics."""
        return self.folder / "corpus"

    @property
    def sets(self) -> Path:
        """One BEIR folder per evaluation set."""
        return self.folder / "sets"

    @property
    def checkpoints(self) -> Path:
        """Orbax steps."""
        return self.folder / "checkpoints"

    def embeddings(self, name: str, system: str) -> Path:
        """Embeddings of a set (or of the corpus) by one model."""
        return self.folder / "embeddings" / name / system

    def index(self, name: str, kind: str) -> Path:
        """An index over the candidates of a set (or over the corpus)."""
        return self.folder / "index" / name / kind

    def record(self, stage: str) -> Path:
        """What a finished stage was made from, how long it took and what it has to tell the report."""
        return self.folder / "stages" / f"{stage}.json"


@dataclasses.dataclass(frozen=True)
class Stage:
    """A step of a run.

    Attributes:
      function: does the work; what it returns (JSON) is kept in the stage's record, for the report.
      settings: the fields of the config, as dotted names, that its output depends on.
      needs: stages whose output it reads.
      inputs: files outside of the work directory that it reads.
      outputs: what it writes, below the work directory; deleted before it runs on other inputs or settings.
      fixed: its settings cannot change within a work directory (the output is dear, and later stages build on it).
      always: it runs whenever it is asked for.
    """

    function: Callable[[Run], Any]
    settings: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    inputs: Callable[[Run], Sequence[Path]] = lambda run: ()
    outputs: tuple[str, ...] = ()
    fixed: bool = False
    always: bool = False


def open_run(run: Run, stages: Mapping[str, Stage]) -> None:
    """Makes the work directory and writes `config.json`, or checks that the directory is of the same experiment.

    Raises:
      UserError: a fixed stage ran there, or began to, with other settings; the message lists them.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    path = run.folder / "config.json"
    new = json.loads(run.config.to_json())
    if path.exists():
        old = files.read_json(path)
        started = [stage for name, stage in stages.items() if stage.fixed and run.record(name).exists()]
        fields = sorted({field for stage in started for field in stage.settings})
        changes = [c for field in fields for c in _changes(field, get_field(old, field), get_field(new, field))]
        if changes:
            raise UserError(
                f"{run.folder} is the work directory of another config:\n  "
                + "\n  ".join(changes[:5])
                + "\nuse another --workdir, or the old settings"
            )
    elif any(run.folder.iterdir()):
        raise UserError(f"{run.folder} is not empty and not a work directory (no config.json): use another --workdir")
    files.write_json(path, new)


def run_stage(run: Run, name: str, stages: Mapping[str, Stage]) -> None:
    """Runs one stage, or skips it when its record says that it ran on the same inputs and settings.

    Raises:
      UserError: a stage that it needs has not run, or a fixed stage ran on inputs that have changed since.
    """
    stage = stages[name]
    for need in stage.needs:
        if need in run.config.stages and not is_done(run, need):
            raise UserError(f"stage '{name}' reads what stage '{need}' writes, which has not run: --stage={need} first")
    inputs = _inputs(run, stage)
    before = files.read_json(run.record(name)) if run.record(name).exists() else None
    if before and before["inputs"] == inputs and before["done"] and not stage.always:
        _log.info("%s: up to date", name)
        return
    if before and before["inputs"] != inputs:
        if stage.fixed:
            raise UserError(
                f"stage '{name}': what it reads has changed since it ran in {run.folder}; use another --workdir, or "
                f"delete {run.folder} to start afresh"
            )
        for output in stage.outputs:
            files.remove(run.folder / output)
    files.write_json(run.record(name), {"inputs": inputs, "done": False})
    _log.info("%s: started", name)
    began = time.perf_counter()
    details = stage.function(run)
    seconds = time.perf_counter() - began
    record = {"inputs": inputs, "done": True, "seconds": round(seconds, 1), "peak_memory_mb": _peak_memory_mb()}
    files.write_json(run.record(name), record | {"details": details})
    _log.info("%s: done in %.0f s", name, seconds)


def is_done(run: Run, stage: str) -> bool:
    """Whether a stage has run to its end."""
    return run.record(stage).exists() and files.read_json(run.record(stage))["done"]


def details(run: Run, stage: str) -> Any:
    """What a finished stage told the report, or None."""
    return files.read_json(run.record(stage))["details"] if is_done(run, stage) else None


def get_field(config: Any, field: str) -> Any:
    """The value of a dotted name in nested dicts.

    Raises:
      KeyError: there is no such field.
    """
    for name in field.split("."):
        config = config[name]
    return config


def _inputs(run: Run, stage: Stage) -> dict[str, str]:
    config = json.loads(run.config.to_json())
    outside = [files.describe(path) for path in stage.inputs(run)]
    needed = [files.read_json(run.record(need))["inputs"] for need in stage.needs if run.record(need).exists()]
    return {
        "settings": files.fingerprint({field: get_field(config, field) for field in stage.settings}),
        "files": files.fingerprint(outside),
        "stages": files.fingerprint(needed),
    }


def _changes(field: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted({*old, *new})
        return [change for name in names for change in _changes(f"{field}.{name}", old.get(name), new.get(name))]
    return [] if old == new else [f"config.{field}: {old!r} there, {new!r} now"]


def _peak_memory_mb() -> int:
    """Of this process, or of its largest child where that is more, since the start of the program."""
    kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(kilobytes) // 1024

"""Stages are run in a work directory, and skipped where nothing that they read has changed."""

import json
import logging
import resource
import time
from collections.abc import Collection, Mapping
from pathlib import Path, PurePath
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, hosts
from retrieval.runs.pipeline import downloads, order, protected
from retrieval.runs.pipeline.records import fingerprint, lineage, needs, read_files, read_record, write_record
from retrieval.runs.pipeline.stage import ADOPT, OLDER, SEALED, STAGES, Stage
from retrieval.runs.pipeline.work_directory import CONFIG, WorkDirectory
from retrieval.training import checkpoint

_log = logging.getLogger(__name__)


def open_run(run: WorkDirectory) -> None:
    """Makes the work directory and writes `config.json`, after `protected.check_run`."""
    protected.check_run(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.write_json(run.folder / CONFIG, json.loads(run.config.to_json()))
    run.put(CONFIG)


def take_run(run: WorkDirectory) -> None:
    """As `open_run`, and no other process can take the work directory until this one ends.

    Raises:
      UserError: another process has it.
    """
    protected.check_run(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.lock(run.folder)
    files.remove_temporaries(run.folder)  # what a killed run was writing; nobody else writes now
    open_run(run)


def run_stage(run: WorkDirectory, name: str) -> None:
    """Runs one stage, or skips it when its record says that it ran on the same inputs and settings.

    Raises:
      UserError: a stage that it needs has not run, or a fixed stage ran on inputs that have changed since.
    """
    stage = STAGES[name]
    if stage.reads_only:
        hosts.on_first(lambda: _read(run, name))
        return
    begun = hosts.on_first(lambda: _begin(run, name))
    if begun is None:
        _log.info("%s: up to date", name)
        return
    _log.info("%s: started", name)
    began = time.perf_counter()
    if stage.on_every_host:
        with downloads.one_disk(run, name):
            if run.remote and not hosts.is_first():
                _verify_needs(run, name)  # what has been copied down
            details = _results(run, stage)
    else:
        details = hosts.on_first(lambda: _results(run, stage))
    seconds = time.perf_counter() - began
    record = begun | {"done": True, "seconds": round(seconds, 1), "peak_memory_mb": _peak_memory_mb()}
    hosts.on_first(lambda: _finish(run, name, stage, record | {"details": details}))
    _log.info("%s: done in %.0f s", name, seconds)


def _results(run: WorkDirectory, stage: Stage) -> Any:
    with files.naming_failures(run.folder):
        return stage.function(run)


def _read(run: WorkDirectory, name: str) -> None:
    """Runs a stage that writes nothing."""
    check_read(run, name)
    STAGES[name].function(run)


def check_read(run: WorkDirectory, name: str) -> None:
    """Checks that what a stage reads is there, is what was written, and fits together.

    Raises:
      UserError: it is not.
    """
    order.check_stage(run, [name], 0)
    _verify_needs(run, name)


def _begin(run: WorkDirectory, name: str) -> dict[str, Any] | None:
    """Makes way for a stage, and notes that it began: its record, or None where there is nothing to do."""
    order.check_is_there(run, [name], 0)
    stage, read = STAGES[name], read_files(run, name)
    inputs = fingerprint(run, name, read)
    before = read_record(run, name)
    good = not before or not before["done"] or _is_undamaged(run, name, before)
    same = before is not None and before["inputs"] == inputs
    if before and same and before["done"] and good and not stage.always_runs:
        return None
    check_read(run, name)
    goes_on = good or not stage.writes  # from what is there, and is not deleted
    has_begun = before is not None and (before["done"] or protected.has_written(run, stage))
    goes_further = before is not None and not same and protected.has_another_length(run, name, before, inputs)
    is_dear = stage.protected and not (stage.protected.is_trained_on and ADOPT in run.config.stages)
    if before and has_begun and not same and is_dear and goes_on and not goes_further:
        what = f"{_changed(before.get('files', []), read)} since it ran in {run.display_path}"
        raise UserError(f"stage '{name}': {what}; use another --workdir, or delete that one to start afresh")
    if not (same and good):  # nobody knows what is there without a record, either
        _make_way(run, stage, is_whole=bool(before and before["done"] and good))
    record = {"inputs": inputs, "stands_on": lineage(run, name), "files": read, "done": False}
    if before and before["done"] and goes_further:
        record["before"] = before["details"]
    elif before and not before["done"] and (same or goes_further):  # it was cut off on the way
        record |= {key: before[key] for key in ("before", "planned") if key in before}
    write_record(run, name, record)
    return record


def _make_way(run: WorkDirectory, stage: Stage, is_whole: bool) -> None:
    """Deletes what a stage has written; what it made whole stays as older where the stage reuses it."""
    for path in stage.writes:
        if stage.reuses and is_whole and (run.folder / path).exists():
            files.remove(run.folder / OLDER / path)
            (run.folder / OLDER / path).parent.mkdir(parents=True, exist_ok=True)
            (run.folder / path).rename(run.folder / OLDER / path)
        files.remove(run.folder / path)


def _changed(before: Collection[Mapping[str, Any]], now: Collection[Mapping[str, Any]]) -> str:
    """Which of the files that a stage reads is another one now, in words."""
    old, new = ({file["name"]: file for file in files_read} for files_read in (before, now))
    names = [name for name in {**old, **new} if old.get(name, {}).get("sum") != new.get(name, {}).get("sum")]
    if not names:
        return "what it reads has changed"
    first = new.get(names[0]) or old[names[0]]
    what = "has changed" if names[0] in old and names[0] in new else "is new" if names[0] in new else "has gone"
    more = f", and {len(names) - 1} more of its files have changed" if len(names) > 1 else ""
    return f"{first['path']} {what}{more}"


def _finish(run: WorkDirectory, name: str, stage: Stage, record: Mapping[str, Any]) -> None:
    """Writes the record of a stage that is done, after all that it is about."""
    run.put(*stage.writes, *stage.side_outputs)
    noted = [path for top in stage.side_outputs for path in (run.folder / top, *(run.folder / top).glob("*.jsonl"))]
    sums = files.checksums(run.folder, filter(Path.is_file, noted))
    tops = [run.folder / path for path in stage.writes]
    below = [item for top in tops for item in ([top] if top.is_file() else top.rglob("*")) if item.is_file()]
    details, manifests = record["details"], sorted(item for item in below if item.name == files.MANIFEST)
    named = [run.folder / name for name in details.get(SEALED, ())] if isinstance(details, dict) else []
    sealed = [*named, *(path.parent for path in manifests)]  # folders with a manifest of their own
    unsealed = [item for item in below if not any(folder in item.parents for folder in sealed)]
    outputs = files.checksums(run.folder, [*unsealed, *(at / files.MANIFEST for at in sealed)])
    write_record(run, name, {**record, "outputs": outputs, "noted": sums})
    if stage.reuses:
        files.remove(run.folder / OLDER)


def _verify_needs(run: WorkDirectory, name: str) -> None:
    """Raises `UserError` where what the stage reads is not what was written."""
    for read, owner in needs(run, name):
        if record := read_record(owner, read.stage):
            where = f" in {owner.display_path}" if owner.folder != run.folder else ""
            remedy = f"--stage={read.stage} makes it again{where}"
            files.verify_checksums(owner.folder, record.get("outputs", {}), remedy)


def _is_undamaged(run: WorkDirectory, name: str, record: Mapping[str, Any]) -> bool:
    try:
        files.verify_checksums(run.folder, record["outputs"], "it is made again")
        for path in record["outputs"]:
            if PurePath(path).name == files.MANIFEST:
                checkpoint.verify(artefacts.origin(run.folder / PurePath(path).parent), "it is made again")
    except UserError as error:
        _log.warning("%s: %s", name, error)
        return False
    return True


def _peak_memory_mb() -> int:
    """Of this process, or of its largest child where that is more, since the start of the program."""
    kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(kilobytes) // 1024

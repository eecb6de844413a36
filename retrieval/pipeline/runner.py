"""Stages are run in a work directory, and skipped where nothing that they read has changed."""

import json
import logging
import resource
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.config import fields
from retrieval.errors import UserError
from retrieval.pipeline import downloads
from retrieval.pipeline.records import (
    field_of,
    fitting,
    has_settings,
    is_done,
    made_from,
    needs,
    outdated,
    read_files,
    read_own_record,
    read_record,
    write_record,
)
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.pipeline.work_directory import CONFIG, WorkDirectory
from retrieval.runtime import artefacts, hosts
from retrieval.training import checkpoint

_log = logging.getLogger(__name__)


def open_run(run: WorkDirectory) -> None:
    """Makes the work directory and writes `config.json`, after `check_run`."""
    check_run(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.write_json(run.folder / CONFIG, json.loads(run.config.to_json()))
    run.put(CONFIG)


def take_run(run: WorkDirectory) -> None:
    """As `open_run`, and no other process can take the work directory until this one ends.

    Raises:
      UserError: another process has it.
    """
    check_run(run)
    run.folder.mkdir(parents=True, exist_ok=True)
    files.lock(run.folder)
    files.remove_temporaries(run.folder)  # what a killed run was writing; nobody else writes now
    open_run(run)


def check_run(run: WorkDirectory) -> None:
    """Checks that the work directory, where there is one, is of the same experiment.

    Raises:
      UserError: a fixed stage ran there, or began to, with other settings; the message lists them. Or the folder is
        no work directory.
    """
    path = run.folder / CONFIG
    if not path.exists():
        items = run.folder.iterdir() if run.folder.exists() else ()
        if not all(item.name in (files.LOCK,) or files.is_temporary(item) for item in items):
            raise UserError(
                f"{run.folder} is not empty and not a work directory (no config.json): use another --workdir"
            )
        return
    if changes := _refused_changes(run):
        raise UserError(
            f"{run.place} is the work directory of another config:\n  "
            + "\n  ".join(changes[:3])
            + "\nuse another --workdir, or the old settings"
        )


def grown(run: WorkDirectory) -> list[str]:
    """The finished stages of a run that are to go on, for a field that may grow is larger than when they ended.

    Only where nothing else has changed that they were made with.
    """
    done = [name for name, stage in STAGES.items() if stage.grows and run.holder(name) is run and is_done(run, name)]
    larger = [name for name in done if not has_settings(run, name)]
    return larger if larger and not _refused_changes(run) else []


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
    if stage.everywhere:
        with downloads.one_disk(run, name):
            if run.copy and not hosts.is_first():
                _verify_needs(run, name)  # what has been copied down
            details = stage.function(run)
    else:
        details = hosts.on_first(lambda: stage.function(run))
    seconds = time.perf_counter() - began
    record = begun | {"done": True, "seconds": round(seconds, 1), "peak_memory_mb": _peak_memory_mb()}
    hosts.on_first(lambda: _finish(run, name, stage, record | {"details": details}))
    _log.info("%s: done in %.0f s", name, seconds)


def _read(run: WorkDirectory, name: str) -> None:
    """Runs a stage that writes nothing."""
    check_read(run, name)
    STAGES[name].function(run)


def check_read(run: WorkDirectory, name: str) -> None:
    """Checks that what a stage reads is there, is what was written, and fits together.

    Raises:
      UserError: it is not.
    """
    _check_needs(run, name)
    _verify_needs(run, name)
    _refuse_outdated(run, name)
    _refuse_other_texts(run, name)


def _check_needs(run: WorkDirectory, name: str) -> None:
    """Raises `UserError` where the stage is one of the base, or one that it needs has not run."""
    if run.holder(name) is not run:
        raise UserError(
            f"stage '{name}' is one of the base, {run.holder(name).place}: run it there, or add it to config.stages"
        )
    for need, holder in needs(run, name):
        if need in holder.config.stages and not is_done(holder, need):
            where = f" in {holder.place}" if holder.folder != run.folder else ""
            raise UserError(
                f"stage '{name}' reads what stage '{need}' writes, which has not run{where}: --stage={need} first"
            )


def _begin(run: WorkDirectory, name: str) -> dict[str, Any] | None:
    """Makes way for a stage, and notes that it began: its record, or None where there is nothing to do."""
    _check_needs(run, name)
    stage, read = STAGES[name], read_files(run, name)
    inputs = made_from(run, name, read)
    before = read_record(run, name)
    good = not before or not before["done"] or _is_undamaged(run, name, stage, before)
    same = before is not None and before["inputs"] == inputs
    if before and same and before["done"] and good and not stage.always:
        return None
    _verify_needs(run, name)
    _refuse_outdated(run, name)
    _refuse_other_texts(run, name)
    goes_on = good or not stage.outputs  # from what is there, and is not deleted
    has_begun = before is not None and (before["done"] or _has_written(run, stage))
    goes_further = _has_another_length(stage, before, inputs)
    if before and has_begun and not same and stage.fixed and goes_on and not goes_further:
        raise UserError(
            f"stage '{name}': {_changed(before.get('files', []), read)} since it ran in {run.place}; use another "
            f"--workdir, or delete {run.place} to start afresh"
        )
    if not (same and good):  # nobody knows what is there without a record, either
        for output in stage.outputs:
            files.remove(run.folder / output)
    record = {"inputs": inputs, "files": read, "done": False}
    if before and before["done"] and goes_further:
        record["before"] = before["details"]
    elif before and not before["done"] and (same or goes_further):  # it was cut off on the way
        record |= {name: before[name] for name in ("before", "planned") if name in before}
    write_record(run, name, record)
    return record


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


def _has_another_length(stage: Stage, before: Mapping[str, Any] | None, inputs: Mapping[str, Any]) -> bool:
    """Whether a finished stage goes on, or one that has begun is to end early: of its settings `check_run` lets nothing
    change but its length."""
    if before is None or not (before["done"] or "planned" in before) or not stage.grows:
        return False
    same = all(before["inputs"].get(what) == inputs[what] for what in ("files", "stages"))
    return same and before["inputs"] != inputs


def _finish(run: WorkDirectory, name: str, stage: Stage, record: Mapping[str, Any]) -> None:
    """Writes the record of a stage that is done, after all that it is about."""
    run.put(*stage.outputs, *stage.leaves)
    noted = [path for top in stage.leaves for path in (run.folder / top, *(run.folder / top).glob("*.jsonl"))]
    sums = files.checksums(run.folder, filter(Path.is_file, noted))
    write_record(run, name, {**record, "outputs": _sums(run, stage, record["details"]), "noted": sums})


def _refused_changes(run: WorkDirectory) -> list[str]:
    """The settings of fixed stages that are not what they were when those began."""
    old, new = files.read_json(run.folder / CONFIG), json.loads(run.config.to_json())
    started = {
        name: stage
        for name, stage in STAGES.items()
        if stage.fixed and _has_begun(run, name, stage) and not _is_made_so(run, name)
    }
    settings = sorted({field for stage in started.values() for field in stage.settings})
    lengths = {field: read_record(run, name) or {} for name, stage in started.items() for field in stage.grows}
    return [c for field in settings for c in _changes(field, field_of(old, field), field_of(new, field), lengths)]


def _has_begun(run: WorkDirectory, name: str, stage: Stage) -> bool:
    """By what it writes, or, where that has been deleted, by its record; one that only looked at its data has not."""
    return _has_written(run, stage) or bool((read_own_record(run, name) or {}).get("done"))


def _is_made_so(run: WorkDirectory, name: str) -> bool:
    """Whether a stage of this run ended with the settings that are given, whatever `config.json` has said since."""
    return run.holder(name) is run and has_settings(run, name)


def _has_written(run: WorkDirectory, stage: Stage) -> bool:
    return any((run.folder / top).exists() for top in (*stage.outputs, *stage.leaves))


def _sums(run: WorkDirectory, stage: Stage, details: Any) -> dict[str, str]:
    if stage.sealed:
        return files.checksums(run.folder, [folder / files.MANIFEST for folder in stage.sealed(run, details)])
    paths = [run.folder / output for output in stage.outputs]
    below = [item for path in paths for item in ([path] if path.is_file() else path.rglob("*")) if item.is_file()]
    return files.checksums(run.folder, below)


def _verify_needs(run: WorkDirectory, name: str) -> None:
    """Raises `UserError` where what the stage reads is not what was written."""
    wanted = [(want, run.holder(want)) for want in STAGES[name].wants]
    for need, holder in fitting(run, name) + wanted:
        if record := read_record(holder, need):
            where = f" in {holder.place}" if holder.folder != run.folder else ""
            remedy = f"--stage={need} makes it again{where}"
            files.verify_checksums(holder.folder, record.get("outputs", {}), remedy)


def _refuse_outdated(run: WorkDirectory, name: str) -> None:
    """As the check before the run, now that the stages before this one have run."""
    for need, holder in outdated(run, name):
        where = f" in {holder.place}" if holder.folder != run.folder else ""
        raise UserError(
            f"stage '{name}' would read what stage '{need}' made{where} before what that reads was made anew: make it "
            f"again{where}: --stage={need} first"
        )


def _refuse_other_texts(run: WorkDirectory, name: str) -> None:
    """What a base made of its own sets or corpus says nothing of this run's. Its model may have learnt elsewhere."""
    for need, holder in fitting(run, name) if STAGES[name].texts_of else ():
        if STAGES[need].fixed:
            continue
        for below, theirs in needs(holder, need) if holder.folder != run.folder else ():
            ours = run.holder(below)
            if below not in STAGES[name].texts_of or ours.folder == theirs.folder:
                continue
            made, theirs_made = ((read_record(of, below) or {}).get("outputs", {}) for of in (ours, theirs))
            if other := next((file for file, sum in made.items() if theirs_made.get(file) != sum), None):
                raise UserError(
                    f"stage '{name}' would read what stage '{need}' of {holder.place} made, which has another {other} "
                    f"than {ours.place}: add '{need}' to config.stages, or take the '{below}' of the base"
                )


def _is_undamaged(run: WorkDirectory, name: str, stage: Stage, record: Mapping[str, Any]) -> bool:
    try:
        files.verify_checksums(run.folder, record["outputs"], "it is made again")
        for folder in stage.sealed(run, record["details"]) if stage.sealed else ():
            checkpoint.verify(artefacts.origin(folder), "it is made again")
    except UserError as error:
        _log.warning("%s: %s", name, error)
        return False
    return True


def _changes(field: str, old: Any, new: Any, lengths: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What has changed and may not.

    Args:
      lengths: the fields that say how long a stage is, with its record.
    """
    if isinstance(old, dict) and isinstance(new, dict):
        names = sorted({*old, *new})
        return [
            change for name in names for change in _changes(f"{field}.{name}", old.get(name), new.get(name), lengths)
        ]
    if field in lengths and isinstance(old, int | float) and _may_become(field, old, new, lengths[field]):
        return []
    return [] if old == new else [f"config.{field}: {old!r} there, {new!r} now"]


def _may_become(field: str, old: float, new: float, record: Mapping[str, Any]) -> bool:
    """Whether a finished stage goes on with a field that says its length, or one that has begun can end early."""
    if not record.get("done"):
        return "planned" in record and new < old
    had = record["details"].get(field.rpartition(".")[2], old)  # steps that epochs or minutes were
    return new > had or (not new and bool(fields.declared()[field].in_place_of))


def _peak_memory_mb() -> int:
    """Of this process, or of its largest child where that is more, since the start of the program."""
    kilobytes = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return max(kilobytes) // 1024

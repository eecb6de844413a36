"""Fixed stages, whose output is dear: which of their fields have changed, and whether a run goes on all the same."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts
from retrieval.config.fields import declared
from retrieval.runs.pipeline.records import began_alike, changed_fields, is_done, kept_fields, read_own_record
from retrieval.runs.pipeline.stage import STAGES, Protected, Stage
from retrieval.runs.pipeline.work_directory import CONFIG, WorkDirectory, kept_config


def check_run(run: WorkDirectory) -> None:
    """Checks that the work directory, where there is one, is of the same experiment.

    Raises:
      UserError: a fixed stage ran there, or began to, with other fields; the message lists them. Or the folder is no
        work directory.
    """
    if not (run.folder / CONFIG).exists():
        items = run.folder.iterdir() if run.folder.exists() else ()
        if not all(item.name in (files.LOCK, artefacts.LOGS) or files.is_temporary(item) for item in items):
            what = "is not empty and not a work directory (no config.json)"
            raise UserError(f"{run.folder} {what}: use another --workdir")
        return
    if changes := "\n  ".join(_refused_changes(run)[:3]):
        way = "use another --workdir, or the old settings"
        raise UserError(f"{run.display_path} is the work directory of another config:\n  {changes}\n{way}")


def extended(run: WorkDirectory) -> list[str]:
    """The finished stages of a run that are to go on, for a field that may grow is larger than when they ended.

    Only where nothing else has changed that they were made with.
    """
    larger = [name for name in _fixed_of(run) if is_done(run, name) and changed_fields(run, name)]
    return larger if larger and not _refused_changes(run) else []


def has_another_length(run: WorkDirectory, name: str, before: Mapping[str, Any], inputs: Mapping[str, Any]) -> bool:
    """Whether nothing but the length of a stage has changed: it goes on, or is to end early."""
    same = all(before["inputs"][what] == inputs[what] for what in ("files", "stages"))
    return same and bool(STAGES[name].protected) and not _refused(run, name, before)


def _refused_changes(run: WorkDirectory) -> list[str]:
    """The fields of fixed stages that are not what they were when those began, and may not be."""
    changes: dict[str, str] = {}
    for name in _fixed_of(run):
        record = read_own_record(run, name)
        if (record and record["done"]) or has_written(run, STAGES[name]):
            # Of a stage without a record the config that is kept says what it was made with.
            begun = record or {"done": False, "inputs": {"fields": kept_fields(run, name)}}
            changes |= _refused(run, name, begun)
    return [changes[field] for field in sorted(changes)]


def _fixed_of(run: WorkDirectory) -> list[str]:
    """The fixed stages of a work directory whose output may be of other fields than the config has now.

    Records tell of most that it is not. So no stage's file is read that has not changed.
    """
    records = {path.stem: read_own_record(run, path.stem) or {} for path in (run.folder / "stages").glob("*.json")}
    files_of = (name for record in records.values() for name in (*record.get("outputs", ()), *record.get("noted", ())))
    known = {CONFIG, files.LOCK, artefacts.LOGS, "stages", *(PurePath(name).parts[0] for name in files_of)}
    changed = {name for name, record in records.items() if not began_alike(run, record)}
    if {path.name for path in run.folder.iterdir()} - known:  # of a stage that has lost its record, perhaps
        changed |= {*run.config.stages, *kept_config(run.folder).stages} - records.keys()
    return [name for name in sorted(changed) if name in STAGES and run.owner(name) is run and STAGES[name].protected]


def _refused(run: WorkDirectory, name: str, record: Mapping[str, Any]) -> dict[str, str]:
    """Of the fields of a fixed stage those that have changed and may not, each with both values in words."""
    protected = STAGES[name].protected or Protected()
    refused = {}
    for field, (old, new) in changed_fields(run, name, record["inputs"]["fields"]).items():
        is_length = field in protected.extendable and isinstance(old, int | float)
        if not (is_length and _may_become(field, old, new, record)):
            refused[field] = f"config.{field}: {old!r} there, {new!r} now"
    return refused


def _may_become(field: str, old: float, new: float, record: Mapping[str, Any]) -> bool:
    """Whether a finished stage goes on with a field that says its length, or one that has begun can end early."""
    if not record["done"]:
        return "planned" in record and new < old
    had = record["details"].get(field.rpartition(".")[2], old)  # steps that epochs or minutes were
    return new > had or (not new and bool(declared()[field].in_place_of))


def has_written(run: WorkDirectory, stage: Stage) -> bool:
    """Whether there is anything of what a stage writes."""
    return any((run.folder / top).exists() for top in (*stage.writes, *stage.side_outputs))

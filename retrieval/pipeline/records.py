"""Records of stages: what each was made from, whether it is done, and the sums of what it wrote."""

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from retrieval import files
from retrieval.config import fields
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.pipeline.work_directory import CONFIG, FORMAT, WorkDirectory, check_format


def read_record(run: WorkDirectory, stage: str) -> dict[str, Any] | None:
    """The record of a stage that has begun, of whichever run of the chain has it, or None.

    Raises:
      UserError: the file is not what was written.
    """
    return read_own_record(run.holder(stage), stage)


def record_of(run: WorkDirectory, stage: str) -> dict[str, Any]:
    """`read_record` for a stage that has begun.

    Raises:
      UserError: it has not, or as `read_record`.
    """
    if (record := read_record(run, stage)) is None:
        raise UserError(f"stage '{stage}' has no record in {run.holder(stage).place}: --stage={stage} makes it")
    return record


def read_own_record(run: WorkDirectory, stage: str) -> dict[str, Any] | None:
    """The record of a stage that has begun in the run's own folder, or None.

    Raises:
      UserError: the file is not what was written.
    """
    path = run.own_record(stage)
    if not path.exists():
        return None
    return _read(path, f"{run.place}/stages/{path.name}")


def _read(path: Path, place: str) -> dict[str, Any]:
    record = files.read_json(path)
    check_format(record, str(path.parent.parent))
    if not isinstance(record, dict) or record.pop("sum", None) != files.fingerprint([path.stem, record]):
        raise UserError(f"{place}: damaged; delete it: --stage={path.stem} makes it anew")
    return record


def verify_written(folder: Path, names: Collection[str]) -> dict[str, dict[str, Any]]:
    """Compares what the finished stages of a work directory wrote with their records, as far as it has these names.

    Args:
      names: of files and folders in the work directory. What a record only notes may be missing.

    Returns:
      The records of its finished stages.

    Raises:
      UserError: a file is not what was written.
    """
    read = {path.stem: _read(path, str(path)) for path in sorted((folder / "stages").glob("*.json"))}
    finished = {stage: record for stage, record in read.items() if record["done"]}
    for stage, record in finished.items():
        noted = {name: sum for name, sum in record.get("noted", {}).items() if (folder / name).is_file()}
        sums = {
            name: sum
            for name, sum in ({**record.get("outputs", {}), **noted}).items()
            if PurePath(name).parts[0] in names
        }
        files.verify_checksums(folder, sums, f"--stage={stage} makes it again")
    return finished


def write_record(run: WorkDirectory, name: str, record: Mapping[str, Any]) -> None:
    """Writes the record of a stage, as `read_record` reads it."""
    as_read = json.loads(json.dumps({**record, "format": FORMAT}))  # the sum is of that
    files.write_json(run.record(name), as_read | {"sum": files.fingerprint([name, as_read])})
    run.put(f"stages/{name}.json")


def is_done(run: WorkDirectory, stage: str) -> bool:
    """Whether a stage has run to its end."""
    return bool(record := read_record(run, stage)) and record["done"]


def details(run: WorkDirectory, stage: str) -> Any:
    """What a finished stage told the report, or None."""
    return record_of(run, stage)["details"] if is_done(run, stage) else None


def needs(run: WorkDirectory, name: str) -> list[tuple[str, WorkDirectory]]:
    """The stages whose output a stage reads, each with the run that has it."""
    stage = STAGES[name]
    seen = run.before(name) if stage.looks_back else run
    return [(need, seen.holder(need)) for need in (*stage.needs, *stage.also(run.config))]


def fitting(run: WorkDirectory, name: str) -> list[tuple[str, WorkDirectory]]:
    """`needs`, and beside them the stages whose output has to fit it where there is any."""
    return needs(run, name) + [(need, run.holder(need)) for need in STAGES[name].needs_if_made]


def is_current(run: WorkDirectory, name: str) -> bool:
    """Whether what a finished stage was made from has not changed since."""
    return is_done(run, name) and record_of(run, name)["inputs"] == made_from(run, name)


def is_written(run: WorkDirectory, name: str) -> bool:
    """Whether the files that a finished stage of this run wrote are there; not what is in them."""
    record = read_own_record(run, name) or {}
    return all((run.folder / path).exists() for path in record.get("outputs", {}))


def outdated(run: WorkDirectory, name: str, before: Collection[str] = ()) -> list[tuple[str, WorkDirectory]]:
    """The finished stages that a stage will read and that have read something else than there is now, with their runs.

    Unlike `is_current` this asks for no file from outside of their work directories: those of a base may have gone. And
    a model does not become stale: it is what was trained on what there was.

    Args:
      before: stages of the run that are to run before: what they make again counts as changed.
    """
    stale: list[tuple[str, WorkDirectory]] = []
    for need, holder in fitting(run, name):
        is_own = holder.folder == run.folder
        whole = run if is_own else holder  # a stage that looks back sees its own run without what comes later
        if STAGES[need].fixed or not is_done(whole, need) or (is_own and need in before):
            continue
        made = record_of(whole, need)["inputs"]["stages"]
        if made != _made(whole, need) or (is_own and _changes(run, need, before)):
            stale.append((need, whole))
    is_idle = stale and is_current(run, name) and not _changes(run, name, before)
    return [] if is_idle and not STAGES[name].always else stale


def to_make(run: WorkDirectory, names: Collection[str]) -> list[str]:
    """Some stages of a run, and all others of it that have to run first, in the order in which they run.

    Those are stages that have not run, or ran with other settings, or read what one of them makes. A model does not
    become stale, as `outdated` says.
    """
    chosen = set(names).union(*(_to_make_before(run, name, names) for name in names))
    order = dict.fromkeys((*run.config.stages, *STAGES))
    return [name for name in order if name in chosen]


def _to_make_before(run: WorkDirectory, name: str, names: Collection[str]) -> set[str]:
    chosen: set[str] = set()
    for need, holder in needs(run, name):
        is_own = holder.folder == run.folder and need in run.config.stages
        if not is_own or (STAGES[need].fixed and is_done(run, need)):
            continue
        before = _to_make_before(run, need, names)
        if before or not stays(run, need) or (need in names and not is_current(run, need)):
            chosen |= before | {need}
    return chosen


def stays(run: WorkDirectory, name: str) -> bool:
    """`is_current` without a look at files from outside of the work directories, which may have gone."""
    return has_settings(run, name) and record_of(run, name)["inputs"]["stages"] == _made(run, name)


def has_settings(run: WorkDirectory, name: str) -> bool:
    """Whether a finished stage was made with the settings that the config has now."""
    return is_done(run, name) and record_of(run, name)["inputs"].get("settings") == _settings(run, STAGES[name])


def made_from(run: WorkDirectory, name: str, read: Sequence[Mapping[str, Any]] | None = None) -> dict[str, str]:
    """Fingerprints of what a stage is made from: settings, files, and what the stages that it reads have made.

    Args:
      read: what `read_files` has just said, where that is known.
    """
    stage = STAGES[name]
    outside = read_files(run, name) if read is None else read
    return {
        "settings": _settings(run, stage),
        "files": files.fingerprint([[file["name"], file["sum"]] for file in outside]),
        "stages": _made(run, name),
    }


def read_files(run: WorkDirectory, name: str) -> list[dict[str, Any]]:
    """The files outside of the work directory that a stage reads, as `files.describe` has them.

    What counts are their contents: on another machine, or after a copy, a file has another time and place. The record
    keeps what was seen, so that a dump is read for its sum once.
    """
    known = (read_record(run, name) or {}).get("files", [])
    read = [file for path in STAGES[name].inputs(run) for file in files.describe(path, known)]
    _refuse_damaged(read)
    return read


def _refuse_damaged(read: Sequence[Mapping[str, Any]]) -> None:
    """Raises `UserError` where a file is in the work directory of a run whose record has another sum of it."""
    records_in = functools.cache(lambda folder: verify_written(folder, ()))
    for file in read:
        path = Path(file["path"]).absolute()
        folder = next((parent for parent in path.parents if (parent / "stages").is_dir()), None)
        if folder is None or not (folder / CONFIG).exists():
            continue
        for stage, record in records_in(folder).items():
            if record.get("outputs", {}).get(path.relative_to(folder).as_posix(), file["sum"]) != file["sum"]:
                raise UserError(
                    f"{path}: damaged, its SHA-256 is not that of what was written; --stage={stage} makes it again in "
                    f"{folder}, or copy it to another place if you changed it on purpose"
                )


def _made(run: WorkDirectory, name: str) -> str:
    """What the stages that a stage reads have made; where they keep no sums, what they were made from."""
    made = [record for need, holder in needs(run, name) if (record := read_record(holder, need))]
    return files.fingerprint([record.get("outputs") or record["inputs"] for record in made])


def _changes(run: WorkDirectory, name: str, before: Collection[str]) -> bool:
    """Whether some stages, which run before, make anew what a stage reads."""
    read = [need for need, holder in needs(run, name) if holder.folder == run.folder and need in before]
    return any(not is_current(run, need) or _changes(run, need, before) for need in read)


def _settings(run: WorkDirectory, stage: Stage) -> str:
    config = fields.with_tuples(json.loads(run.config.to_json()))
    settings = ((field, field_of(config, field)) for field in stage.settings)
    return files.fingerprint({field: value for field, value in settings if value is not None})


def field_of(config: Any, field: str) -> Any:
    """As `get_field`; None for a field that is not there."""
    try:
        return get_field(config, field)
    except KeyError:
        return None


def get_field(config: Any, field: str) -> Any:
    """The value of a dotted name in nested dicts.

    Raises:
      KeyError: there is no such field.
    """
    for name in field.split("."):
        config = config[name]
    return config

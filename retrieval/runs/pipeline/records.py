"""Records of stages: what each was made from, whether it is done, and the sums of what it wrote.

A record has the values of the fields, the sums of the files and the identities of the outputs that its stage read. They
are its fingerprint: a stage whose fingerprint is that of now is up to date, wherever its inputs lie. `lineage` has
further the identities of what these outputs were made from, so that nobody reads two outputs side by side which were
made from different sets, or with different models.
"""

import functools
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config import fields
from retrieval.runs.pipeline.stage import ADOPT, STAGES, TRAIN, Read, in_order, listed_as, reads_of
from retrieval.runs.pipeline.work_directory import CONFIG, FORMAT, WorkDirectory, check_format


def read_record(run: WorkDirectory, stage: str) -> dict[str, Any] | None:
    """The record of a stage that has begun, of whichever run of the chain has it, or None."""
    return read_own_record(run.owner(stage), stage)


def record_of(run: WorkDirectory, stage: str) -> dict[str, Any]:
    """`read_record` for a stage that has begun."""
    if (record := read_record(run, stage)) is None:
        raise UserError(f"stage '{stage}' has no record in {run.owner(stage).display_path}: --stage={stage} makes it")
    return record


def read_own_record(run: WorkDirectory, stage: str) -> dict[str, Any] | None:
    """The record of a stage that has begun in the run's own folder, or None."""
    path = run.own_record(stage)
    return _read(path, f"{run.display_path}/stages/{path.name}") if path.exists() else None


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
        written = {**record.get("outputs", {}), **noted}
        sums = {name: sum for name, sum in written.items() if PurePath(name).parts[0] in names}
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


def needs(run: WorkDirectory, name: str) -> list[tuple[Read, WorkDirectory]]:
    """What a stage reads, each with the run that has it: what is optional only where it has been made."""
    outputs = []
    for read in reads_of(name, run.config):
        owner = (run.as_seen_by(name) if read.from_base_if_later else run).owner(read.stage)
        if not read.is_optional or is_done(owner, read.stage):
            outputs.append((read._replace(stage=listed_as(read.stage, owner.config.stages)), owner))
    return outputs


def identity(record: Mapping[str, Any]) -> str:
    """What a stage made; where it keeps no sums, what it was made from."""
    return files.fingerprint(record.get("outputs") or record["inputs"])


def fingerprint(run: WorkDirectory, name: str, read: Sequence[Mapping[str, Any]] | None = None) -> dict[str, Any]:
    """The fingerprint of a stage: values of fields, sums of files, and the identities of what it reads.

    Args:
      read: what `read_files` has just said, where that is known.
    """
    outside = read_files(run, name) if read is None else read
    return {
        "fields": _values(run.config, name),
        "files": files.fingerprint([[file["name"], file["sum"]] for file in outside]),
        "stages": _identities(run, name),
    }


def lineage(run: WorkDirectory, name: str) -> dict[str, str]:
    """The identities of what a stage reads now and of what that was made from.

    A model stands on nothing: it is what was trained on what there was. What is read of a base, because the run makes
    its own later, is not of this run.
    """
    identities: dict[str, str] = {}
    for read, owner in needs(run, name):
        record = None if read.from_base_if_later or read.any_version else read_record(owner, read.stage)
        if record:
            identities |= {} if STAGES[read.stage].protected else record.get("stands_on", {})
            identities[read.stage] = identity(record)
    return identities


def is_current(run: WorkDirectory, name: str) -> bool:
    """Whether the fingerprint of a finished stage is that of now."""
    return is_done(run, name) and record_of(run, name)["inputs"] == fingerprint(run, name)


def is_written(run: WorkDirectory, name: str) -> bool:
    """Whether the files that a finished stage of this run wrote are there; not what is in them."""
    record = read_own_record(run, name) or {}
    return all((run.folder / path).exists() for path in record.get("outputs", {}))


def began_alike(run: WorkDirectory, record: Mapping[str, Any]) -> bool:
    """Whether a stage began with the values that its fields have now, by its record alone."""
    now = json.loads(run.config.to_json())
    return all(field_of(now, field) == value for field, value in record["inputs"]["fields"].items())


def changed_fields(
    run: WorkDirectory, name: str, made_with: Mapping[str, Any] | None = None
) -> dict[str, tuple[Any, Any]]:
    """The fields whose values differ from those that a stage began with: their names -> the old and the new value.

    Args:
      made_with: these values, where they are not those of the record.
    """
    now, record = _values(run.config, name), read_record(run, name)
    begun = made_with or (record["inputs"]["fields"] if record else now)
    old, new = dict(fields.flatten(begun)), dict(fields.flatten(now))
    return {field: (old.get(field), new.get(field)) for field in {**old, **new} if old.get(field) != new.get(field)}


def stale_stages(run: WorkDirectory, name: str, before: Collection[str] = ()) -> list[tuple[str, WorkDirectory]]:
    """The finished stages that a stage will read and that have read something else than there is now, with their runs.

    Unlike `is_current` this asks for no file from outside of their work directories: those of a base may have gone. And
    a model does not become stale.

    Args:
      before: stages of the run that are to run before: what they make again counts as changed.
    """
    stale: list[tuple[str, WorkDirectory]] = []
    for read, owner in needs(run, name):
        need, is_own = read.stage, owner.folder == run.folder
        whole = run if is_own else owner  # what is read of earlier sees its own run without what comes later
        if read.any_version or not is_done(whole, need) or (is_own and need in before) or STAGES[need].protected:
            continue
        made = record_of(whole, need)["inputs"]["stages"]
        if made != _identities(whole, need) or (is_own and _changes(run, need, before)):
            stale.append((need, whole))
    is_idle = stale and is_current(run, name) and not _changes(run, name, before)
    return [] if is_idle and not STAGES[name].always_runs else stale


def check_consistent(run: WorkDirectory, name: str) -> None:
    """Checks that what a stage would read of a base fits what it reads beside it.

    It does not where that was made with another model than this run's, or from other sets or passages than those that
    are read.
    """
    reads = [(read, owner) for read, owner in needs(run, name) if not read.any_version]
    for read, owner in reads:
        if owner.folder == run.folder or STAGES[read.stage].protected:
            continue  # what is older of one run, `stale_stages` says
        view = run.as_seen_by(name) if read.from_base_if_later else run
        made_of = (read_record(owner, read.stage) or {}).get("stands_on", {})
        models = [(below.stage, theirs) for below, theirs in needs(owner, read.stage) if not below.from_base_if_later]
        pairs = [(of, theirs, view.owner(of)) for of, theirs in models if _is_model(of)]
        others = [(of, ours) for of, theirs, ours in pairs if ours.folder != theirs.folder]
        same = [(of.stage, ours) for of, ours in reads if of.must_match and of.stage in made_of]
        others += [(of, ours) for of, ours in same if not _is_same(of, ours, owner, made_of[of])]
        for other, ours in others:
            what = f"what stage '{read.stage}' of {owner.display_path} made of another '{other}' than that of"
            way = f"add '{read.stage}' to config.stages, or take the '{other}' of the base"
            raise UserError(f"stage '{name}' would read {what} {ours.display_path}, which it reads too: {way}")


def _is_model(name: str) -> bool:
    """Whether a stage gives a model: no two trainings give the same."""
    return name in (TRAIN, ADOPT)


def _is_same(name: str, ours: WorkDirectory, theirs: WorkDirectory, made: str) -> bool:
    """Whether what a stage of our run made is what another run's output was made of, as far as that can be known."""
    if record := read_record(ours, name):
        return identity(record) == made
    models = [read.stage for read, _ in needs(ours, name) if _is_model(read.stage)]
    return all(ours.owner(model).folder == theirs.owner(model).folder for model in models)


def stages_to_rerun(run: WorkDirectory, names: Collection[str]) -> list[str]:
    """Some stages of a run, and all others of it that have to run first, in the order in which they run.

    Those are stages that have not run, or ran with other fields, or read what one of them makes. A model does not
    become stale, as `stale_stages` says.
    """
    chosen = set(names).union(*(_to_rerun_before(run, name, names) for name in names))
    return [name for name in dict.fromkeys((*run.config.stages, *in_order(chosen, run.config))) if name in chosen]


def _to_rerun_before(run: WorkDirectory, name: str, names: Collection[str]) -> set[str]:
    chosen: set[str] = set()
    for read, owner in needs(run, name):
        need, is_own = read.stage, owner.folder == run.folder and read.stage in run.config.stages
        if not is_own or read.is_optional or (STAGES[need].protected and is_done(run, need)):
            continue
        before = _to_rerun_before(run, need, names)
        if before or not is_fresh(run, need) or (need in names and not is_current(run, need)):
            chosen |= before | {need}
    return chosen


def is_fresh(run: WorkDirectory, name: str) -> bool:
    """`is_current` without a look at files from outside of the work directories, which may have gone."""
    is_same = is_done(run, name) and not changed_fields(run, name)
    return is_same and record_of(run, name)["inputs"]["stages"] == _identities(run, name)


def read_files(run: WorkDirectory, name: str) -> list[dict[str, Any]]:
    """The files outside of the work directory that a stage reads, as `files.describe` has them.

    What counts are their contents: on another machine, or after a copy, a file has another time and place. The record
    keeps what was seen, so that a dump is read for its sum once. A file in the work directory of a run whose record has
    another sum of it is refused.
    """
    known = (read_record(run, name) or {}).get("files", [])
    read = [file for path in STAGES[name].files(run) for file in files.describe(path, known)]
    records_in = functools.cache(lambda folder: verify_written(folder, ()))
    for file in read:
        path = Path(file["path"]).absolute()
        folder = next((parent for parent in path.parents if (parent / "stages").is_dir()), None)
        if folder is None or not (folder / CONFIG).exists():
            continue
        for stage, record in records_in(folder).items():
            if record.get("outputs", {}).get(path.relative_to(folder).as_posix(), file["sum"]) != file["sum"]:
                what = "damaged, its SHA-256 is not that of what was written"
                way = f"--stage={stage} makes it again in {folder}, or copy it elsewhere if you changed it on purpose"
                raise UserError(f"{path}: {what}; {way}")
    return read


def _identities(run: WorkDirectory, name: str) -> dict[str, str]:
    """Of what a stage reads and a run has begun to make: name -> identity."""
    made = ((read.stage, read_record(owner, read.stage)) for read, owner in needs(run, name) if not read.is_optional)
    return {stage: identity(record) for stage, record in made if record}


def _changes(run: WorkDirectory, name: str, before: Collection[str]) -> bool:
    """Whether some stages, which run before, make anew what a stage reads."""
    read = [read.stage for read, owner in needs(run, name) if owner.folder == run.folder and read.stage in before]
    return any(not is_current(run, need) or _changes(run, need, before) for need in read)


def kept_fields(run: WorkDirectory, name: str) -> dict[str, Any]:
    """The values of a stage's fields in the config that the work directory keeps."""
    return _values(files.read_json(run.folder / CONFIG), name)


def _values(config: ConfigDict | Mapping[str, Any], name: str) -> dict[str, Any]:
    """The values of a stage's fields as JSON has them, without those that the config lacks."""
    plain = json.loads(config.to_json()) if isinstance(config, ConfigDict) else config
    values = ((field, field_of(plain, field)) for field in STAGES[name].fields)
    return {field: value for field, value in values if value is not None}


def field_of(config: Any, field: str) -> Any:
    """As `get_field`; None for a field that is not there."""
    try:
        return get_field(config, field)
    except KeyError:
        return None


def get_field(config: Any, field: str) -> Any:
    """The value of a dotted name in nested dicts."""
    return functools.reduce(lambda group, name: group[name], field.split("."), config)

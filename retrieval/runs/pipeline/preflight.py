"""What can be known to fail is said before a run begins: no hour of a stage is lost on a typo.

What is about one stage its own checks say; here is what is about runs.
"""

import errno
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config import experiment, fields
from retrieval.runs.pipeline import downloads, order, overrides
from retrieval.runs.pipeline.records import get_field
from retrieval.runs.pipeline.stage import STAGES, readers_of
from retrieval.runs.pipeline.work_directory import CONFIG, WorkDirectory, kept_config

_MOUNTS = Path("/proc/mounts")


def check(run: WorkDirectory, names: Sequence[str], overridden: Collection[str] = ()) -> None:
    """Checks the config, the folders, the files and the devices that some stages of a run need, in a few seconds.

    Args:
      overridden: the fields that were set in the shell.

    Raises:
      UserError: something is missing, or does not fit.
    """
    experiment.check(run.config)
    _check_names(run, names)
    _check_folders(run, is_read=all(STAGES[name].reads_only for name in names))
    order.check(run, names)
    overrides.check(run, names, overridden)
    check_settings(run.config, names)
    for name in names:
        STAGES[name].files(run)  # which says what is missing
    downloads.bring(run, names)  # which may take long; what is to come reads more than configs and records
    for check_stage in _distinct(names, "check"):
        check_stage(run)


def check_settings(config: ConfigDict, names: Collection[str]) -> None:
    """Checks that the fields which some stages read fit each other, and that each of these is read."""
    for path, field in fields.declared().items():
        other, fits = field.partner
        value = get_field(config, path) if other and readers_of(path, names) else field.default
        if value != field.default and not fits(get_field(config, other)):
            needed = f"={field.goes_with[1]}" if isinstance(field.goes_with, tuple) else ""
            why = f"is read with config.{other}{needed} alone, and that is {get_field(config, other)!r}"
            raise UserError(f"config.{path}={value} {why}: set that, or config.{path}={field.default!r}")
    for check_config in _distinct(names, "check_config"):
        check_config(config)


def read_config(folder: Path) -> ConfigDict:
    """The config that a work directory keeps, with a value that it may have in every field."""
    config = kept_config(folder)
    try:
        experiment.check(config)
    except (UserError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{folder / CONFIG}: {error}") from error
    return config


def _distinct(names: Collection[str], kind: str) -> list[Callable]:
    """The checks of some stages; those that several have in common once."""
    return list(dict.fromkeys(function for name in names for function in getattr(STAGES[name], kind)))


def _check_names(run: WorkDirectory, names: Sequence[str]) -> None:
    """The stages that are listed, and those that are asked for, are stages."""
    for name in (*run.config.stages, *names):
        if "," in name:
            several = f'--config.stages="{tuple(name.split(","))}"'
            raise UserError(f"config.stages={name} is one text; a tuple of them is needed: {several}")
        if name not in STAGES:  # else its file is not read here
            STAGES.find(name)
    if not names:
        raise UserError(f"config.stages is empty: name the stages to run, --stage=A,B; known: {', '.join(STAGES)}")


def _check_folders(run: WorkDirectory, is_read: bool) -> None:
    """The work directory can be made and written to, or is only read; it and its bases have whole configs."""
    if strange := set("*?[") & set(str(run.folder)):
        what = f"'{min(strange)}' stands for other characters where files are looked for"
        raise UserError(f"--workdir={run.folder}: {what}; name a folder without it")
    place = run.folder.absolute()
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise UserError(f"--workdir={run.folder}: {place} is a file, where a folder belongs; use another --workdir")
    if not is_read:
        _refuse_mounted_bucket(place, run.folder)
        _check_writable(place, run.folder)
    if (run.folder / CONFIG).exists():
        kept_config(run.folder)
    _ = run.chain  # reads the configs of all


def _refuse_mounted_bucket(place: Path, folder: Path) -> None:
    """Files of a mounted bucket come one by one, and no folder gets its name at once: half of one would count."""
    lines = _MOUNTS.read_text(encoding="utf-8").splitlines() if _MOUNTS.exists() else []
    mounts = [[part.replace("\\040", " ") for part in line.split()[:3]] for line in lines]
    above = [(at, bucket, kind) for bucket, at, kind in mounts if place.resolve().is_relative_to(at)]
    at, bucket, kind = max(above, key=lambda mount: len(mount[0]), default=("", "", ""))
    if kind == "fuse.gcsfuse":
        why = f"gcsfuse has mounted a bucket at {at}, good for data that is read, but unable to rename a folder at once"
        way = f"write to the bucket itself, --workdir=gs://{bucket}/{folder.resolve().relative_to(at)}"
        raise UserError(f"--workdir={folder}: {why}: {way}")


def _check_writable(place: Path, folder: Path) -> None:
    """By writing: of /proc, or as root, the mode of a folder says too much."""
    try:
        with files.scratch(place):
            pass
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise
        why = "no permission to write" if error.errno in (errno.EACCES, errno.EPERM) else "nothing can be written"
        raise UserError(f"--workdir={folder}: {why} to {place}; use another --workdir, or change its mode") from error

"""Fields that name files and folders, with commas between them; some take data sets of TFDS too."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from retrieval.common import files
from retrieval.common.errors import UserError, no_path
from retrieval.data.corpora import tfds_source


def split(value: str) -> list[str]:
    """The parts of a field that takes several."""
    return [part for part in value.split(",") if part]


def local(values: Iterable[str]) -> list[Path]:
    """The files and folders among some sources. The name and the version of a data set of TFDS say all about it."""
    return [Path(value) for value in values if not tfds_source.is_source(value)]


def existing(paths: Sequence[Path]) -> Sequence[Path]:
    """The paths, all of which exist.

    Raises:
      UserError: one does not.
    """
    for path in paths:
        if not path.exists():
            raise no_path(path)
        files.refuse_special(path)
    return paths


def checked(
    field: str, values: Sequence[str], of_folders: bool | None = False, tfds: str = "", words: Sequence[str] = ()
) -> list[Path]:
    """The files or folders that a field names, once each is known to exist and to be readable.

    Args:
      of_folders: whether the field takes folders instead of files; None for either.
      tfds: the data set of TFDS that the field takes too. Its sources are checked and left out.
      words: what the field takes besides paths, for the hint.

    Raises:
      UserError: a path does not exist, is of the other kind, is empty or cannot be read.
    """
    for source in filter(tfds_source.is_source, values if tfds else ()):
        tfds_source.check_source(source, tfds)
    paths = local(values) if tfds else list(map(Path, values))
    for path in paths:
        if not path.exists():
            raise no_path(path, field, words)
        files.refuse_special(path)
        if of_folders is not None and path.is_dir() != of_folders:
            kinds = ("folders", "a file") if of_folders else ("files, separated by commas", "a folder")
            raise UserError(f"{path}: {kinds[1]}, but {field} takes {kinds[0]}")
        if not os.access(path, os.R_OK):
            raise UserError(f"{path}: no permission to read it, in {field}; change its mode")
        if path.is_file() and not path.stat().st_size:
            raise UserError(f"{path}: the file is empty, in {field}; copy or download it again")
    return paths

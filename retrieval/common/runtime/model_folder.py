"""A folder with a model that somebody published, as every room sees it: where its encoder lies, and its sums.

A folder of sentence-transformers has a `modules.json`, whose first module is the encoder, in the folder itself or
below it. Above the two towers that the stage `export` writes there is no encoder, but one in `query` and one in
`document`. What that stage writes has the SHA-256 of its files beside them. A folder of PEFT has an adapter that stands
on another model, its base.
"""

import functools
import re
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hub

MODULES = "modules.json"
SUMS = "checksums.json"
QUERY, DOCUMENT = "query", "document"
CARD = "README.md"  # which people edit
ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_ENTRY = {"idx", "name", "path", "type"}
_LONGEST = 255  # bytes of a name that file systems take
_LARGEST, _MOST = 1 << 22, 100  # bytes of an adapter's settings, and modules, far beyond any that is published
# No path leads out of the folder; they are of ASCII.
_PATH = re.compile(r"(\w[\w.-]*|\.)?", re.ASCII)
_PACKAGES = ("sentence_transformers.", "pylate.models.")  # PyLate's are of late interaction


class Module(NamedTuple):
    """A module of sentence-transformers: the last part of its type, such as 'Pooling', and its folder."""

    kind: str
    folder: Path


def has_modules(folder: Path) -> bool:
    """Whether a folder is one that sentence-transformers loads."""
    return (folder / MODULES).is_file()


def has_two_towers(folder: Path) -> bool:
    """Whether a folder is an export of two towers, each in a folder of its own."""
    return has_modules(folder) and has_modules(folder / QUERY) and has_modules(folder / DOCUMENT)


def modules(folder: Path) -> list[Module]:
    """The modules of a folder in the order in which they are applied.

    Raises:
      UserError: the file is none of sentence-transformers, or one of them has settings or code of its own.
    """
    path = folder / MODULES
    entries = files.read_json(path)
    if not isinstance(entries, list) or not 0 < len(entries) <= _MOST or not all(map(_is_entry, entries)):
        raise UserError(f"{path}: not 1 to {_MOST} modules, with a type and a path in this folder each; copy it again")
    for entry in entries:
        if entry.keys() - _ENTRY or not entry["type"].startswith(_PACKAGES):
            what = f"the module {entry['type'][:80]!r} has settings or code of its own, which are not run here"
            raise UserError(f"{path}: {what}; take another model")
    return [Module(entry["type"].rpartition(".")[2], folder / entry["path"]) for entry in entries]


def encoder_folder(folder: Path) -> Path:
    """Where the config, the weights and the tokenizer of a model are: the folder itself, or one below it."""
    if not has_modules(folder):
        return folder
    if has_two_towers(folder):
        return encoder_folder(folder / DOCUMENT)
    kind, place = modules(folder)[0]
    return place if kind == "Transformer" else folder


def base_of(folder: Path) -> Path | None:
    """The folder of the model that a folder's adapter stands on, of the hub or of the disk; None without an adapter.

    Raises:
      UserError: there is no such model.
    """
    path = folder / ADAPTER
    if not path.is_file():
        return None
    files.check_size(path, _LARGEST)
    record = files.read_json(path)
    record = record if isinstance(record, dict) else {}
    name, revision = record.get("base_model_name_or_path"), record.get("revision")
    if not isinstance(name, str) or not name:
        raise UserError(f"{path}: no base_model_name_or_path, the model that the adapter stands on; copy it again")
    places = [place for place in (Path(name), folder / name) if place.is_dir()]
    base = places[0] if places else None
    if not base and (name.startswith((".", "/", "~")) or name.count("/") != 1):
        raise UserError(f"{path}: the adapter stands on {name[:99]!r}, and there is no such folder: write where it is")
    base = base or hub.local(f"{hub.PREFIX}{name}" + (f"@{revision}" if isinstance(revision, str) else ""))
    if (base / ADAPTER).is_file():
        raise UserError(f"{path}: it stands on another adapter, {base}; take one that stands on a whole model")
    return encoder_folder(base)


def module_files(folder: Path) -> list[Path]:
    """The files that say what a model does beside its encoder: of its modules, and of what stands before texts."""
    if not has_modules(folder):
        return []
    encoder, folders = encoder_folder(folder), {module.folder for module in modules(folder)}
    below = [path for each in sorted(folders - {encoder}) for path in sorted(each.glob("*")) if path.is_file()]
    return [folder / MODULES, *sorted(folder.glob("config_sentence_transformers.json")), *below]


def write_sums(folder: Path) -> None:
    """Writes the SHA-256 of the files of a folder beside them, without that of its model card."""
    files.write_manifest(folder, but=(CARD,), name=SUMS)


def check_sums(folder: Path) -> None:
    """Compares the files of a folder with the sums beside them; a folder of others, which has none, passes.

    Raises:
      UserError: a file is not what was written.
    """
    path = folder / SUMS
    if path.is_file():
        _check_sums(folder, tuple(map(files.state, sorted(folder.rglob("*")))))


@functools.lru_cache(maxsize=64)  # a run asks many times
def _check_sums(folder: Path, states: tuple) -> None:
    remedy = f"copy it again; or, if you changed it on purpose, delete {folder / SUMS}"
    files.verify_manifest(folder, remedy, name=SUMS)


def _is_entry(entry: Any) -> bool:
    kind, path = (entry.get("type"), entry.get("path")) if isinstance(entry, dict) else (None, None)
    return isinstance(kind, str) and isinstance(path, str) and len(path) <= _LONGEST and bool(_PATH.fullmatch(path))

"""The folder of a target: its files, a README, `check.jsonl`, and last of all `manifest.json`.

manifest.json    {"format": 1, "target", "vectors": what they are, "files": [{"file", "bytes", "sha256", "rows"}, ...]}
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.store import Store, all_of, is_url
from retrieval.export.vectors.targets import Place, Target
from retrieval.export.vectors.vectors import Vectors

_log = logging.getLogger(__name__)

CHECK, _README = "check.jsonl", "README.md"


def write(
    out: str, target: Target, vectors: Vectors, queries: Vectors | None, check: Sequence[str], scratch: Path
) -> dict[str, int]:
    """Writes `OUT/TARGET`, in place of what was handed over there before; a folder whole or not at all.

    Args:
      out: a folder, or an address on a store, where what has no `manifest.json` does not count.
      check: the lines of `check.jsonl`.
      scratch: where files lie until they are on a store.

    Returns:
      How many rows, files and bytes there are.

    Raises:
      UserError: a row cannot be stored there, something else lies there, or it cannot be written to.
    """
    address = f"{out.rstrip('/') or '/'}/{target.name}"
    if is_url(out):
        with files.scratch(scratch) as folder:
            counts = _make(folder / target.name, address, target, vectors, queries, check)
            _upload(folder / target.name, Store(address))
        return counts
    path = Path(address)
    if path.exists() and not (path / files.MANIFEST).exists():
        raise _other(str(path))
    try:
        return _make(path, address, target, vectors, queries, check)
    except (FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}): name another config.handover.out") from error


def _make(
    path: Path, address: str, target: Target, vectors: Vectors, queries: Vectors | None, check: Sequence[str]
) -> dict[str, int]:
    with files.atomic(path) as folder:
        folder.mkdir()
        rows = target.write(Place(folder, address), vectors, queries) | {CHECK: len(check)}
        files.write_text(folder / CHECK, "".join(f"{line}\n" for line in check))
        files.write_text(folder / _README, f"# {target.title}\n\n{target.load}")
        listed = [
            {"file": name, "bytes": (folder / name).stat().st_size, "sha256": sum}
            | ({"rows": rows[name]} if name in rows else {})
            for name, sum in files.checksums(folder, filter(Path.is_file, folder.rglob("*"))).items()
        ]
        said: dict[str, Any] = {"format": 1, "target": target.name, "vectors": vectors.described, "files": listed}
        files.write_json(folder / files.MANIFEST, said)
    return {"rows": vectors.rows, "files": len(listed), "bytes": sum(each["bytes"] for each in listed)}


def _upload(folder: Path, store: Store) -> None:
    """Puts the files on a store, the manifest last; what was there goes, the manifest first."""
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    there = store.sums().keys()
    if files.MANIFEST not in there and not there <= names:  # what was cut off has the same names
        raise _other(store.url)
    store.delete(files.MANIFEST)
    all_of(store.delete, there - names)
    all_of(lambda name: store.upload(name, folder / name), names - {files.MANIFEST})
    store.upload(files.MANIFEST, folder / files.MANIFEST)


def _other(address: str) -> UserError:
    return UserError(f"{address}: something else is there without a {files.MANIFEST}: name another config.handover.out")

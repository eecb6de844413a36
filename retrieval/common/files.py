"""Files that are written whole or not at all, and fingerprints of what they hold."""

import collections
import contextlib
import errno
import fcntl
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TextIO

from retrieval.common.errors import UserError, library_errors
from retrieval.common.parsing import foreign_json

if TYPE_CHECKING:
    import numpy as np

_TEMPORARY = ".tmp-"
_OF_DISKS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")  # NumPy's words, which leave the reason out
MANIFEST = "manifest.json"
_LOOK = ("path", "size", "time")  # what is the same as long as a file has not been written to

LOCK = ".lock"
_locks: list[TextIO] = []


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Yields a temporary path beside `path`; on success it takes the place of `path`.

    The temporary may become a file or a folder. After an error, or a kill, `path` is what it was before;
    what a kill leaves behind is removed by `remove_temporaries`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{path.name}")
    remove(temporary)
    try:
        with naming_failures(path):
            yield temporary
            sync(temporary)
            if path.is_dir():
                if not temporary.is_dir():
                    raise UserError(f"{path}: a folder is there, and a file is to be written; give it another name")
                remove(path)
            os.replace(temporary, path)
            _sync(path.parent)
    except BaseException:
        remove(temporary)
        raise


@contextlib.contextmanager
def naming_failures(path: Path) -> Iterator[None]:
    """Around what writes below a path: that the disk is full or broken comes as an `OSError` that names a path.

    Whatever the library that writes makes of it.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        number = disk_failure(error)
        if number not in _OF_DISKS or getattr(error, "filename", None):
            raise
        raise OSError(number, os.strerror(number), str(path)) from error


def disk_failure(error: Exception) -> int | None:
    """The number of the system's error that is behind one of writing; None where a library says nothing of one."""
    if isinstance(error, OSError) and error.errno:
        return error.errno
    said = _CUT_SHORT.sub(os.strerror(errno.ENOSPC), str(error))
    return next((number for number in _OF_DISKS if os.strerror(number) in said), None)


@contextlib.contextmanager
def scratch(folder: Path | None = None) -> Iterator[Path]:
    """Yields a folder that is deleted afterwards, below `folder`; by default where the system has temporary files.

    What a kill leaves below `folder` is removed by `remove_temporaries`. Of the system's nobody knows, and embeddings
    of millions of texts may fill its disk.
    """
    with (
        naming_failures(folder or Path(tempfile.gettempdir())),
        tempfile.TemporaryDirectory(prefix=f"{_TEMPORARY}{os.getpid()}-", dir=folder) as name,
    ):
        yield Path(name)


def copy(source: Path, path: Path) -> None:
    """Copies a file, whole or not at all."""
    with atomic(path) as temporary:
        shutil.copyfile(source, temporary)


def remove_temporaries(folder: Path, name: str = "*") -> None:
    """Deletes what interrupted `atomic` writes left below `folder`, of every file or of those with a name (a glob)."""
    for leftover in list(folder.rglob(f"{_TEMPORARY}*-{name}")):
        remove(leftover)


def is_temporary(path: Path) -> bool:
    """Whether this is what an `atomic` write writes to before it is whole."""
    return path.name.startswith(_TEMPORARY)


def lock(folder: Path) -> None:
    """Makes this process the one that writes below `folder`, until it ends, however it ends.

    Raises:
      UserError: another process is.
    """
    file = (folder / LOCK).open("a+")
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        raise UserError(
            f"{folder}: another run writes to it ({file.read().strip()}); wait for it, end it, or use another --workdir"
        ) from None
    file.truncate(0)
    file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
    file.flush()
    _locks.append(file)  # closed, it would be no lock


def remove(path: Path) -> None:
    """Deletes a file, or a folder with all it holds; nothing happens where there is none."""
    if path.is_dir():
        shutil.rmtree(path)
    elif os.path.lexists(path):  # a disk that is mounted to be read alone refuses even to delete nothing
        path.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes `value` as indented JSON, whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def json_line(value: Any, where: str) -> str:
    """A value in one line of JSON, and its end; a date is ISO 8601, and what has no form in JSON is refused."""
    try:
        return json.dumps(value, ensure_ascii=False, default=_plain).encode().decode() + "\n"  # halves of pairs fail
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(f"{where} cannot be written as JSON: {error}") from error


def _plain(value: Any) -> Any:
    for method in ("isoformat", "tolist"):  # of dates; of numbers and arrays
        if hasattr(value, method) and type(value).__name__ != "datetime64":  # which may count nanoseconds
            return getattr(value, method)()
    raise TypeError(f"{value!r:.40} is of type {type(value).__name__}")


def write_text(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_array(path: Path, array: "np.ndarray") -> None:
    """Writes a .npy file, as `read_array` reads it."""
    import numpy as np

    with atomic(path) as temporary, temporary.open("wb") as file:
        np.save(file, array, allow_pickle=False)


def write_rows(path: Path, shape: tuple[int, ...], parts: "Iterable[np.ndarray]") -> None:
    """Writes rows as one .npy file of float32, a part at a time.

    Plainly: a write to mapped memory that finds the disk full ends the process with SIGBUS.
    """
    import numpy as np

    with atomic(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for rows in parts:
            file.write(np.ascontiguousarray(rows, "<f4").data)


def refuse_special(path: str | Path) -> None:
    """Checks that a path, if it is there, leads to a file or a folder: to read anything else may wait for ever."""
    path = Path(path)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError(f"{path}: a pipe, a device or a socket cannot be read twice: write it to a file, and name that")


def check_size(path: Path, most: int) -> None:
    """Checks that a file is not far larger, in bytes, than any of its kind: to parse it may take minutes."""
    if path.stat().st_size > most:
        raise UserError(f"{path}: has more than {most} bytes, and no file of its kind needs so many; copy it again")


def read_json(path: Path) -> Any:
    """Reads a JSON file.

    Raises:
      UserError: the file is missing, unreadable, not JSON, or gives two values the same name; the message names the
        file and the line.
    """
    refuse_special(path)
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_unambiguous, **foreign_json.NUMBERS)
    except FileNotFoundError as error:
        raise UserError(f"{path}: no such file") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except foreign_json.ERRORS as error:
        raise UserError(f"{path}: not valid JSON ({error})") from error


def read_array(path: Path, remedy: str, mapped: bool = False) -> "np.ndarray":
    """Reads a .npy file of numbers or strings; nothing in it is unpickled.

    Args:
      remedy: what to do about an error, the end of its message.
      mapped: whether it stays on the disk, and parts of it are read where they are asked for.

    Raises:
      UserError: the file is none.
    """
    import numpy as np  # late, like all that worker processes of `prepare` can do without

    with library_errors(path, remedy):
        array = np.load(path, mmap_mode="r" if mapped else None, allow_pickle=False)
        if not isinstance(array, np.ndarray):
            raise ValueError("several arrays where one belongs")
        return array


def read_arrays(path: Path, remedy: str) -> "dict[str, np.ndarray]":
    """Reads what `numpy.savez` wrote, as `read_array` does; no array is larger than its file.

    Raises:
      UserError: the file is no such archive.
    """
    import numpy as np

    with library_errors(path, remedy):
        with zipfile.ZipFile(path) as archive:
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("compressed, which nothing here writes")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}


def fingerprint(value: Any) -> str:
    """A short SHA-256 of a JSON-like value; equal values give equal fingerprints."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def state(path: Path) -> tuple[int, ...]:
    """What changes with a file; () where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_mtime_ns, status.st_size, status.st_ino


def describe(path: Path, known: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The SHA-256 of a file, or of every file of a folder, and what tells whether it has to be read again.

    Args:
      known: what this function said before: a file that has its size and time still is not read.

    Returns:
      For every file its path, size and time of modification (ns), its `name` below the folder, and its `sum`.
    """
    top = path if path.is_dir() else path.parent
    paths = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    looks = [
        {"path": str(p), "size": p.stat().st_size, "time": p.stat().st_mtime_ns, "name": str(p.relative_to(top))}
        for p in paths
    ]
    before = {tuple(one[key] for key in _LOOK): one["sum"] for one in known}
    sums = [before.get(tuple(look[key] for key in _LOOK)) for look in looks]
    read = checksums(top, [p for p, value in zip(paths, sums) if value is None])
    return [look | {"sum": value or read[look["name"]]} for look, value in zip(looks, sums)]


def move_into(folder: Path, path: Path) -> None:
    """Moves a file or folder into `folder`, under its own name or with a number where that is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    names = itertools.chain([path.name], (f"{path.name}-{number}" for number in itertools.count(2)))
    os.replace(path, next(folder / name for name in names if not (folder / name).exists()))


def write_manifest(folder: Path, but: Collection[str] = (), name: str = MANIFEST) -> None:
    """Writes a manifest into `folder`: the SHA-256 of every file in it, by its path below `folder`.

    Args:
      but: names of files that are left out.
      name: of the manifest.
    """
    files = [path for path in folder.rglob("*") if path.is_file() and path.name not in (name, *but)]
    write_json(folder / name, checksums(folder, files))


def verify_manifest(folder: Path, remedy: str, name: str = MANIFEST) -> None:
    """Compares the files of `folder` with the manifest that `write_manifest` left there.

    Args:
      remedy: what to do about an error, the end of its message.

    Raises:
      UserError: there is no manifest, or a file is missing or not what it was when it was written.
    """
    sums = read_json(folder / name)
    if not isinstance(sums, dict) or not sums:
        raise UserError(f"{folder / name}: not a list of files and sums; {remedy}")
    verify_checksums(folder, sums, remedy)


def checksums(folder: Path, files: Iterable[Path]) -> dict[str, str]:
    """The SHA-256 of files by their paths below `folder`, in order; a thread for every core."""
    files = sorted(files)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return {path.relative_to(folder).as_posix(): sum for path, sum in zip(files, pool.map(_sha256, files))}


def verify_checksums(folder: Path, sums: Mapping[str, str], remedy: str) -> None:
    """Compares files with what `checksums` gave for them.

    Args:
      remedy: what to do about an error, the end of its message.

    Raises:
      UserError: a file is missing or not what it was.
    """
    for name in sums:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise UserError(f"{folder}: '{name}' among its sums is a file of another folder; {remedy}")
        if not (folder / name).is_file():
            raise UserError(f"{folder / name}: missing, though it was written; {remedy}")
    now = checksums(folder, [folder / name for name in sums])
    for name, expected in sums.items():
        if now[name] != expected:
            raise UserError(f"{folder / name}: damaged, its SHA-256 is not that of what was written; {remedy}")


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs; of two with one name Python would silently drop the first, and a sum with it."""
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(name for name, count in collections.Counter(name for name, _ in pairs).items() if count > 1)
        raise ValueError(f"'{twice}' is there twice")
    return value


def sync(path: Path) -> None:
    """Flushes a file, or a folder and everything below it, to the disk."""
    for item in [path, *path.rglob("*")] if path.is_dir() else [path]:
        _sync(item)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

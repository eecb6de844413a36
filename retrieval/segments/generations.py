"""States of documents on a disk, each a generation.

segments/0003/                        a segment
segments/generations/000007.json      the segments of a generation, with the sums of their manifests
segments/generations/000007-0003.npy  which documents of a segment are dead in it
segments/CURRENT                      000007 sha256:..., the newest generation and its sum; replaced last

Whoever reads sees one whole generation. The last `_KEPT` stay, for those that are being read. A segment that none of
these names is what a killed change left: the next change deletes it. The folder is no output of a stage, for a stage's
is deleted where it is made anew, and nothing else has these documents.
"""

import contextlib
import fcntl
import functools
import itertools
import json
import re
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.segments import segment
from retrieval.segments.segment import REMEDY, Recipe, Segment
from retrieval.segments.state import State

FOLDER, CURRENT = "segments", "CURRENT"
_GENERATIONS, _CHANGING, _MERGING = "generations", "changing.lock", "merging.lock"
_KEPT = 3
_LINE = re.compile(r"(\d{6}) sha256:([0-9a-f]{64})\n")


class Generations:
    """The folder of one run. Threads and processes may change it: one at a time does."""

    def __init__(self, folder: Path, made_with: Callable[[], Mapping[str, Any]], recipe: Recipe):
        """Args:
        folder: 'segments' of a work directory; it may be missing.
        made_with: gives what all segments have to be made with, such as the model, as JSON has it.
        recipe: what is made of passages.
        """
        self.folder, self._made_with, self._recipe = folder, functools.cache(made_with), recipe
        self._open: weakref.WeakValueDictionary[tuple[str, str], Segment] = weakref.WeakValueDictionary()

    def read(self) -> State | None:
        """The newest generation, None before the first one. Segments that somebody has open are not read again.

        Raises:
          UserError: a file is missing or damaged, or it was made with another model or other words.
        """
        while line := current(self.folder):
            try:
                return self._read(line)
            except (UserError, FileNotFoundError):
                if line == current(self.folder):
                    raise  # otherwise it was deleted, after newer ones had come
        return None

    def _read(self, line: str) -> State:
        if not (match := _LINE.fullmatch(line)):
            raise UserError(f"{self.folder / CURRENT}: damaged; {REMEDY}")
        files.verify_checksums(self.folder / _GENERATIONS, {f"{match[1]}.json": match[2]}, REMEDY)
        return self._state(match[1])

    def read_kept(self, generation: int) -> State:
        """A generation, one of the last.

        Raises:
          UserError: it is not kept, or as `read`.
        """
        kept = sorted(path.stem for path in (self.folder / _GENERATIONS).glob("*.json"))
        if f"{generation:06d}" not in kept:
            known = ", ".join(str(int(name)) for name in kept) or "none"
            raise UserError(f"{self.folder}: generation {generation} is not kept, of which there are {known}")
        return self._state(f"{generation:06d}")

    def _state(self, name: str) -> State:
        folder = self.folder / _GENERATIONS
        value = files.read_json(folder / f"{name}.json")
        for what, ours in self._made_with().items():
            if value["made_with"].get(what) != ours:
                raise UserError(
                    f"{self.folder}: these documents were indexed with another {what} than the run has now: set it "
                    "back, or make a run of the documents in another --workdir"
                )
        files.verify_checksums(folder, value["dead"], REMEDY)
        segments = tuple(self._segment(each, seal) for each, seal in value["segments"].items())
        dead = (files.read_array(folder / f"{name}-{each.name}.npy", REMEDY) for each in segments)
        return State(int(name), segments, tuple(dead))

    def _segment(self, name: str, seal: str) -> Segment:
        if there := self._open.get((name, seal)):
            return there
        folder = self.folder / name
        files.verify_checksums(folder, {files.MANIFEST: seal}, REMEDY)
        return self._keep_open(segment.load(folder, self._recipe))

    def _keep_open(self, read: Segment) -> Segment:
        self._open[read.name, read.seal] = read
        return read

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """Around a change: others wait. It begins by deleting what killed changes have left."""
        with _locked(self.folder / _CHANGING):
            self._sweep()
            yield

    @contextlib.contextmanager
    def merging(self) -> Iterator[bool]:
        """Around a merge, beside which changes go on; gives whether this is the only one."""
        with _locked(self.folder / _MERGING, waits=False) as is_alone:
            yield is_alone

    def keep(self, made: Segment) -> Segment:
        """Writes a segment under the next free number. It counts once a generation names it."""
        numbers = [int(path.name) for path in self.folder.iterdir() if path.name.isdecimal()]
        for number in itertools.count(max(numbers, default=0) + 1):
            folder = self.folder / f"{number:04d}"
            with contextlib.suppress(FileExistsError):  # of a merge, or of a change beside it
                folder.mkdir()
                break
        return self._keep_open(segment.save(made, folder, self._recipe))

    def commit(self, state: State) -> None:
        """Makes a state of segments that are kept the newest one; to be called while `changing`."""
        folder, name = self.folder / _GENERATIONS, f"{state.generation:06d}"
        for each, dead in zip(state.segments, state.dead):
            with files.atomic(folder / f"{name}-{each.name}.npy") as temporary, temporary.open("wb") as file:
                np.save(file, dead, allow_pickle=False)
        listed = {each.name: each.seal for each in state.segments}
        dead = files.checksums(folder, [folder / f"{name}-{each}.npy" for each in listed])
        value = {"parent": state.generation - 1, "made_with": dict(self._made_with()), "segments": listed, "dead": dead}
        files.write_text(folder / f"{name}.json", json.dumps(value, indent=2, ensure_ascii=False) + "\n")
        (seal,) = files.checksums(folder, [folder / f"{name}.json"]).values()
        files.write_text(self.folder / CURRENT, f"{name} sha256:{seal}\n")
        self._sweep()

    def _sweep(self) -> None:
        """Deletes what is older than the generations that are kept, or was never one."""
        newest = int((current(self.folder) or "0").partition(" ")[0])
        named: set[str] = set()
        for path in sorted((self.folder / _GENERATIONS).glob("*")):
            number = path.name[:6]
            if number.isdecimal() and not newest - _KEPT < int(number) <= newest:
                files.remove(path)
            elif path.suffix == ".json":
                named |= files.read_json(path)["segments"].keys()
        with self.merging() as is_alone:  # else one that nobody names may be what is merged now
            for path in self.folder.iterdir() if is_alone else ():
                if path.name.isdecimal() and path.name not in named:
                    files.remove(path)


def current(folder: Path) -> str:
    """The line that names the newest generation of a folder; '' before the first one."""
    try:
        return (folder / CURRENT).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeError) as error:
        raise UserError(f"{folder / CURRENT}: cannot be read ({error}); {REMEDY}") from error


@contextlib.contextmanager
def _locked(path: Path, waits: bool = True) -> Iterator[bool]:
    """Holds a lock, also against other threads; gives whether it does, which is certain where it waits."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if waits else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True

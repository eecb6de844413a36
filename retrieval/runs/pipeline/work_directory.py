"""A work directory: its config, the stages that this lists, and the work directories that it stands on.

What the stages write that its own config does not list is read from its base. So one corpus, one set of questions and
one BM25 index serve many runs.
"""

import dataclasses
import functools
from pathlib import Path
from typing import Any, NamedTuple, Self

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts
from retrieval.common.runtime.artefacts import Artefacts
from retrieval.common.runtime.store import is_url
from retrieval.config import fields
from retrieval.runs.pipeline.stage import listed_as

CONFIG = "config.json"

# What configs, records and the files of stages are like. A change that an older work directory must not go on with
# raises it.
FORMAT = 2  # padding is -1


class SearchRequest(NamedTuple):
    """What `--stage=search` looks for.

    Attributes:
      queries: a file of queries, one a line; '-' is standard input.
      as_json: whether hits are printed for programs.
    """

    query: str = ""
    queries: str = ""
    as_json: bool = False


_NOTHING = SearchRequest()


@dataclasses.dataclass(frozen=True)
class WorkDirectory:
    """Where everything of a run lives.

    Attributes:
      lock: the file of pinned versions whose packages make up the pydocs corpus.
      request: what `--stage=search` looks for.
      remote: of a work directory on a store what gets its files into `folder`, and puts them there.
    """

    config: ConfigDict
    folder: Path
    lock: Path
    request: SearchRequest = _NOTHING
    remote: Artefacts | None = None

    @classmethod
    def opened(cls, value: str, field: str, lock: Path) -> Self:
        """The work directory that a field of the config names, to be read.

        Raises:
          UserError: that is none.
        """
        folder = artefacts.local(value)
        if not (folder / CONFIG).exists():
            where = f"no config.json in {folder.absolute()}"
            raise UserError(f"{field}={value}: not a work directory ({where}); name that of a run")
        return cls(kept_config(folder, field), folder, lock, remote=artefacts.copy_of(value) if is_url(value) else None)

    @functools.cached_property
    def base(self) -> Self | None:
        """The one that `config.base` names.

        Raises:
          UserError: that is not a work directory.
        """
        if not self.config.get("base"):  # of a config.json, which may be anything
            return None
        return self.opened(self.config.base, "config.base", self.lock)

    @functools.cached_property
    def chain(self) -> list[Self]:
        """This one, its base, the base of that, and so on.

        Raises:
          UserError: one of them stands on itself.
        """
        runs = [self]
        while base := runs[-1].base:
            if base.folder.resolve() in [run.folder.resolve() for run in runs]:
                what = f"config.base of {runs[-1].display_path} leads back to {base.display_path}"
                raise UserError(f"{what}: take another base")
            runs.append(base)
        return runs

    def put(self, *names: str) -> None:
        """Puts files and folders that are finished on the store, where the work directory is on one.

        Raises:
          UserError: something cannot be written, or another run has taken over.
        """
        if self.remote and self.remote.writes:
            self.remote.put(names)

    @property
    def display_path(self) -> str:
        """Where the work directory is, for people."""
        return self.remote.url if self.remote else str(self.folder)

    def as_seen_by(self, stage: str) -> Self:
        """The run as a stage sees it: with the stages alone that come before it, for the others have no output yet.

        So a base's index can be read by a run that is to make one of its own.
        """
        stages = tuple(self.config.stages)
        if stage not in stages:
            return self
        config = self.config.copy_and_resolve_references()
        config.stages = stages[: stages.index(stage)]
        return dataclasses.replace(self, config=config)

    def owner(self, stage: str) -> Self:
        """The one whose folder has what a stage writes: the first of the chain whose config lists the stage."""
        return next((run for run in self.chain if run.lists(stage)), self)

    def lists(self, stage: str) -> bool:
        """Whether the config lists a stage; of one that gives a model, whether it lists any of these."""
        return listed_as(stage, self.config.stages) in self.config.stages

    def record(self, stage: str) -> Path:
        """What a finished stage was made from, how long it took and what it has to tell the report."""
        return self.owner(stage).own_record(stage)

    def own_record(self, stage: str) -> Path:
        """The same for a stage of this run, whichever of the chain it is read from."""
        return self.folder / "stages" / f"{listed_as(stage, self.config.stages)}.json"


def kept_config(folder: Path, field: str = "--workdir") -> ConfigDict:
    """The config that a work directory keeps, with tuples where JSON has lists, as the config files have them.

    Args:
      field: the flag or the field of the config that names the folder, for errors.

    Raises:
      UserError: the file is missing, or no config of a run; or another version made the folder.
    """
    path, remedy = folder / CONFIG, f"put back the file that the run wrote, or name another folder in {field}"
    try:
        value = files.read_json(path)
    except UserError as error:
        raise UserError(f"{error}; {remedy}") from error
    if not isinstance(value, dict) or not isinstance(value.get("stages"), list):
        raise UserError(f"{path}: not the config of a run; {remedy}")
    for path in sorted((folder / "stages").glob("*.json")):
        try:
            record = files.read_json(path)
        except UserError:  # who reads the record says so
            continue
        check_format(record, str(folder))
    return ConfigDict(fields.with_tuples(value))


def check_format(record: Any, place: str) -> None:
    """Checks that a record is of this version.

    Args:
      place: the work directory, for the error.

    Raises:
      UserError: it is not.
    """
    if isinstance(record, dict) and record.get("format") != FORMAT:
        way = "go on with that version, or make the run anew in another --workdir"
        raise UserError(f"{place}: another version of this program made this work directory; {way}")

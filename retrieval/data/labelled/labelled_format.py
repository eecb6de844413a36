"""The formats of labelled examples, which `config.pairs.files` and `config.sets.labelled` take.

A format is one file of this package, or of a plugin. `config.pairs.format` names the format of files that are not
recognised.
"""

import contextlib
import itertools
import logging
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from retrieval.common.errors import UserError, listed
from retrieval.common.parsing import parquet_files, text_files
from retrieval.common.runtime import hub_datasets
from retrieval.data.corpora import source_paths
from retrieval.data.formats import Format, Formats, Options
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Counts, Example, Groups
from retrieval.data.labelled.record_fields import Shape

_log = logging.getLogger(__name__)

OPTIONS = ("pairs.format", "pairs.queries", "pairs.collection", "split.seed", "sets.mind_split", "pairs.fields")
# A word that tells the split, in the name of a file or of a folder above it, as the `datasets` library finds it.
_SPLIT = re.compile(r"(?<![a-z])((train)(ing)?|test(ing)?|val(idation)?|dev(elopment)?|eval(uation)?)(?![a-z])", re.I)


class Settings(NamedTuple):
    """What the config says about files of labelled examples.

    Attributes:
      format: the name of the format of files that are not JSON; '' where each file's is recognised.
      queries, collection: the files with the texts of ids; '' where there are none.
      seed: of the order of the queries.
      until: the time from which on MIND's impressions are not trained on; '' for none.
      fields: what the fields of JSON lines and the columns of Parquet are called; '' for the usual names.
    """

    format: str = ""
    queries: str = ""
    collection: str = ""
    seed: int = 0
    until: str = ""
    fields: str = ""

    @classmethod
    def of(cls, options: Options) -> "Settings":
        """Those of a config, by the dotted names of OPTIONS."""
        return cls(*(options[name] for name in OPTIONS))

    @property
    def text_files(self) -> list[Path]:
        """The files with the texts of ids."""
        named = filter(None, (self.queries, self.collection))
        return [path for name in named for path in (files(name) if hub_datasets.is_name(name) else [Path(name)])]


class Reading(NamedTuple):
    """How a file of labelled examples is read.

    Attributes:
      settings: what the config says about it.
      folder: where temporary files may lie.
      pool: negatives that a query keeps.
      counts: of what is left out.
      in_order: whether the examples must stand in the order of the file, each with all of its negatives.
    """

    settings: Settings
    folder: Path
    pool: int
    counts: Counts
    in_order: bool = False


class LabelledFormat(Format[Path, Reading, Example]):
    """A format of labelled examples. A format of one's own overrides `read`, and what else differs.

    Attributes:
      first: the first character of its files, '[' or '{', if they are JSON.
      of_pages: whether an example is a page, whose negatives were seen beside its positives. A query is a user then,
        who has many pages, and those of an evaluation set may be of the same users.
      needs: 'queries' and 'collection', of which it reads the texts of ids.
    """

    first: str = ""
    of_pages: bool = False
    needs: Sequence[str] = ()

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        """The examples one after the other, to look at the first before a run. Errors are those of `read`.

        A format that has to read all before it gives the first overrides this. Texts may be missing then.
        """
        return self.read(path, Reading(settings, path.parent, sys.maxsize, Counts(), in_order=True))

    def placed(self, path: Path, settings: Settings, counts: Counts) -> Iterator[tuple[str, Example]]:
        """The examples of `sample`, each after the place where it stands; counts what is left out, where it can."""
        return ((str(path), one) for one in self.sample(path, settings))

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        """Whether a file without a named format is of this one.

        Args:
          line: its first line; '' if the file is JSON, which is recognised by `first`.

        Raises:
          UserError: the file may be of this format or of another one.
        """
        return False

    def shape(self, path: Path, settings: Settings) -> Shape:
        """What the examples of a file are, as its first record tells."""
        return Shape(self.what, is_apart=self.of_pages)

    def needed(self, path: Path, settings: Settings) -> Sequence[str]:
        """What it needs to read a file, as `needs` says."""
        return self.needs

    def check(self, path: Path, settings: Settings) -> None:
        """Checks that the settings are enough to read a file of this format."""
        for field in self.needed(path, settings):
            if not getattr(settings, field):
                remedy = f"set config.pairs.{field}" + (f", as in {self.setting}" if self.needs else "")
                own = "; ids of a prepared corpus are for config.sets.labelled" if field == "collection" else ""
                raise UserError(f"{path}: ids, whose texts are elsewhere: {remedy}{own}")


LABELLED: Formats[LabelledFormat] = Formats("format", "retrieval.data.labelled", "format")
register = LABELLED.add


def format_of(path: Path, settings: Settings) -> LabelledFormat:
    """The format of a file: what its beginning says, and for lines with tabs `config.pairs.format`.

    JSON and Parquet need no name, so the field can name one file's format beside files of these. If it names a format
    of JSON with the same first character, that is taken.

    Raises:
      UserError: no format is recognised, or two may be.
    """
    if parquet_files.is_parquet(path):
        return LABELLED["parquet"]
    if not (first := text_files.first_character(path)):
        raise UserError(f"{path}: the file is empty; copy or download it again, or leave it out")
    named = LABELLED.find(settings.format, "config.pairs.format") if settings.format else None
    if named and (first not in "[{" or first == named.first):
        return named
    if first in "[{":
        return LABELLED["dpr" if first == "[" else "jsonl"]
    _, line = next(text_files.lines(path), ("", ""))
    for form in LABELLED.values():
        if form.recognises(path, line, settings):
            return form
    known = ", ".join(sorted(LABELLED))
    raise UserError(f"{path}, line 1: no format that is known; docs/reference/formats.md shows what {known} look like")


def files(value: str) -> list[Path]:
    """The files that `config.pairs.files` names; of a folder those of Parquet with its train split, in order.

    A folder whose files name no split is read as a whole. Those of a data set of the hub are downloaded first.

    Raises:
      UserError: a folder has no such file, or several; or as `hub_datasets.local`.
    """
    return [path for named in source_paths.split(value) for path in _files(named)]


def _files(named: str) -> Sequence[Path]:
    if hub_datasets.is_name(named):
        return hub_datasets.local(named)
    return _train_split(Path(named)) if Path(named).is_dir() else [Path(named)]


def _train_split(folder: Path) -> list[Path]:
    names = [path.relative_to(folder) for path in sorted(folder.rglob(f"*{parquet_files.SUFFIX}")) if path.is_file()]
    names = [name for name in names if not any(part.startswith(".") for part in name.parts)]
    split_of = {name: _split(name) for name in names}
    chosen = [name for name, split in split_of.items() if split and split[2]] if any(split_of.values()) else names
    if len({name.parent for name in chosen}) != 1:
        there = listed(map(str, chosen or names)) or "no such file"
        needed = f"needed is one train split, train-*{parquet_files.SUFFIX}, and there are {there}"
        raise UserError(f"{folder}: {needed}; name a file or one folder in config.pairs.files")
    return [folder / name for name in chosen]


def _split(path: Path) -> re.Match[str] | None:
    return next(filter(None, (_SPLIT.search(name) for name in reversed(path.parts))), None)


def check(path: Path, settings: Settings) -> None:
    """Checks that the format of a file is known, that the settings are enough to read it, and the first example."""
    next(sample(path, settings), None)


def sample(path: Path, settings: Settings) -> Iterator[Example]:
    """The examples of a file, as `LabelledFormat.sample` gives them."""
    form = format_of(path, settings)
    form.check(path, settings)
    return form.sample(path, settings)


def shape(path: Path, settings: Settings) -> Shape:
    """What the examples of a file are, as `LabelledFormat.shape` says."""
    return format_of(path, settings).shape(path, settings)


@contextlib.contextmanager
def grouped(
    paths: Sequence[Path], settings: Settings, folder: Path, pool: int, more: Iterable[Example] = ()
) -> Iterator[tuple[Groups, Counts]]:
    """The labelled examples of some files by query, in the order of the seed, and what is counted on the way.

    Args:
      folder: where temporary files may lie.
      pool: negatives that a query keeps.
      more: other examples.

    Raises:
      UserError: a file is not what its format says.
    """
    counts = Counts()
    examples = (example for path in paths for example in _read(path, Reading(settings, folder, pool, counts)))
    with grouping.grouped(itertools.chain(more, examples), folder, pool, counts, seed=settings.seed) as groups:
        yield groups, counts


def in_order(paths: Sequence[Path], settings: Settings, folder: Path) -> Iterator[Example]:
    """The labelled examples as the files have them, one file after the other. Arguments are those of `grouped`.

    What is left out is not counted: `grouped` reads the same files.
    """
    for path in paths:
        yield from format_of(path, settings).read(path, Reading(settings, folder, sys.maxsize, Counts(), in_order=True))


def _read(path: Path, reading: Reading) -> Iterator[Example]:
    form = format_of(path, reading.settings)
    form.check(path, reading.settings)
    _log.info("%s: %s", path, form.shape(path, reading.settings).what)
    return form.read(path, reading)

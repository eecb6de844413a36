"""The formats of evaluation sets: `config.sets.NAME` takes what the format NAME reads.

A format is one file of this package, or of a plugin:

    @register
    class Squad(SetFormat):
        name, what, setting, example = "reqa", "SQuAD as ReQA", "--config.sets.reqa=FILE.json,…", '{"data": …}'

        def read(self, value, given):
            yield read_squad(split(value))
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.config.fields import PATHS, Field, declare
from retrieval.config.tree import declared
from retrieval.data.corpora import source_paths
from retrieval.data.sets.beir import RetrievalSet
from retrieval.errors import UserError
from retrieval.registry import Table

Options = Mapping[str, Any]

_NUMBERS = {2: "two", 3: "three"}


class Given(NamedTuple):
    """What a run gives to a format.

    Attributes:
      options: the values of the fields that the format names as its own.
      corpus: the folder of the prepared corpus, which may be missing.
      folder: where temporary files may lie.
    """

    options: Options
    corpus: Path
    folder: Path


class SetFormat:
    """A format of evaluation sets. A format of one's own overrides `read`, and what else differs.

    Methods take the value of `config.sets.NAME`, which is neither empty nor False.

    Attributes:
      name: of the format and of its field, and of the set unless `names` says otherwise.
      what: what people call it.
      setting: the setting that takes it, in words.
      example: a line of it, with ⇥ for a tab.
      options: other fields that it reads, as dotted names.
      is_judged: whether its queries have judgements. Without them no set can be divided for training.
      of_folders: whether the field takes folders instead of files.
      tfds: the data set of TFDS that the field takes too.
      parts: what each file is, where the field takes so many files of different kinds.
      holds_out: whether it asks with texts of the corpus that training is not to read.
    """

    name: str
    what: str
    setting: str
    example: str
    options: Sequence[str] = ()
    is_judged: bool = True
    of_folders: bool = False
    tfds: str = ""
    parts: Sequence[str] = ()
    holds_out: bool = False

    def read(self, value: Any, given: Given) -> Iterator[RetrievalSet]:
        """The sets.

        Raises:
          UserError: a file is not what the format says.
        """
        raise NotImplementedError(f"the format '{self.name}' of evaluation sets reads nothing")

    def names(self, value: Any) -> list[str]:
        """The names of the sets."""
        return [self.name]

    def sources(self, value: Any) -> list[str]:
        """The files, the folders and the data sets of TFDS that the field names."""
        return source_paths.split(value)

    def inputs(self, value: Any, options: Options) -> list[Path]:
        """The files and folders that are read."""
        return source_paths.local(self.sources(value))

    def check(self, value: Any, options: Options, has_corpus: bool) -> None:
        """Checks in seconds what the field names.

        Args:
          has_corpus: whether there is a prepared corpus, or a stage that makes one.

        Raises:
          UserError: a file is missing, or is not what it should be.
        """
        self.check_parts(value)
        for path in source_paths.checked(f"config.sets.{self.name}", self.sources(value), self.of_folders, self.tfds):
            self.check_path(path, options)

    def check_parts(self, value: Any) -> None:
        """Checks how many files the field names, where each is of another kind.

        Raises:
          UserError: not as many as there are parts.
        """
        count = len(source_paths.split(value)) if self.parts else 0
        if count != len(self.parts):
            needed, there = len(self.parts), "1 file" if count == 1 else f"{count} files"
            raise UserError(
                f"config.sets.{self.name}={value}: {there}, but {_NUMBERS.get(needed, needed)} are needed, of "
                f"{', '.join(self.parts)}: {self.setting}"
            )

    def check_path(self, path: Path, options: Options) -> None:
        """Checks the beginning of a file, or what a folder holds.

        Raises:
          UserError: it is not what the format says.
        """

    def preview(self, value: Any) -> RetrievalSet | None:
        """Opens what takes no longer than some seconds, so that a mistake in it is said before hours of work.

        Returns:
          the set, where it has been read whole.

        Raises:
          UserError: as `read`.
        """
        return None

    def has_answers(self, name: str, value: Any, options: Options) -> bool:
        """Whether the questions of the set `name` have answers, texts that a passage may hold."""
        return False


SETS: Table[SetFormat] = Table("format of evaluation sets", "retrieval.data.sets", "set")


def register(kind: type[SetFormat]) -> type[SetFormat]:
    """Adds a format to SETS, and that of a plugin to the config, as `config.sets.NAME`. To be used as a decorator."""
    form = SETS.register(kind.name, kind())
    if f"sets.{form.name}" not in declared():
        declare("sets", **{form.name: Field("", PATHS, f"{form.what}: {form.setting}")})
    return kind


def all_sets() -> list[SetFormat]:
    """The formats by name: the order of imports has no say in that of the sets."""
    return [SETS[name] for name in sorted(SETS)]

"""What the formats of data have in common: those of documents, of corpora, of labelled examples and of sets.

A format is one file of the package of its kind, or of a plugin:

    @register
    class Diary(DocumentFormat):
        name, what, suffixes, example = "diary", "diaries", (".diary",), "Monday. It rained."
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from retrieval.common.registry import Table
from retrieval.config.fields import PATHS, Field, declare, declared

Options = Mapping[str, Any]  # values of fields of a config, by their dotted names
Source = TypeVar("Source")
Context = TypeVar("Context")
Item = TypeVar("Item")


class Format(Generic[Source, Context, Item]):
    """A format of data. Each kind says what a source is, what else `read` takes, and what it makes of these.

    Attributes:
      name: of the format.
      what: what people call it.
      setting: the setting that takes it, in words.
      suffixes: how the names of its files end, in lower case, where that tells them apart.
      example: a line of it, with ⇥ for a tab and ⏎ for the end of a line.
      options: other fields of the config that it reads, as dotted names.
    """

    name: str
    what: str
    setting: str = ""
    suffixes: tuple[str, ...] = ()
    example: str = ""
    options: Sequence[str] = ()

    def has_suffix(self, path: Path) -> bool:
        """Whether a file is of this format by its name. It may be gzipped."""
        return path.name.lower().removesuffix(".gz").endswith(self.suffixes)

    def read(self, source: Source, context: Context) -> Iterator[Item]:
        """What a source holds, one after the other.

        Raises:
          UserError: it is not what the format says; with file and line.
        """
        raise NotImplementedError(f"the format '{self.name}' reads nothing")


Kind = TypeVar("Kind", bound=Format)


class Formats(Table[Kind]):
    """The formats of a kind, by name."""

    def __init__(self, kind: str, package: str, word: str = "", group: str = ""):
        """Arguments are those of `Table`.

        Args:
          group: of the config, in which each format has a field of its own that takes its files; '' for none.
        """
        super().__init__(kind, package, word)
        self._group = group

    def add(self, form: type[Kind]) -> type[Kind]:
        """Adds a format, and its field to the config where that has none. To be used as a decorator."""
        entry = self.register(form.name, form())
        if self._group and f"{self._group}.{entry.name}" not in declared():
            declare(self._group, **{entry.name: Field("", PATHS, f"{entry.what}: {entry.setting}")})
        return form

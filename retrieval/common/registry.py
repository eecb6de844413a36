"""Tables of behaviour: named entries of one kind, such as losses or stages. Plugins add theirs to the same tables."""

import importlib
import pkgutil
import sys
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from retrieval.common.errors import UserError, unknown_name

Entry = TypeVar("Entry")


class Table(Mapping[str, Entry], Generic[Entry]):
    """Entries by name: the built-in ones, then those of plugins, in the order in which they were registered.

    A built-in entry registers itself when its file is imported, which is when it is first asked for. Which file that
    is, the package says in `NAMES`: the word for the kind -> the file -> the names of its entries.
    """

    def __init__(self, kind: str, package: str = "", word: str = ""):
        """Makes a table.

        Args:
          kind: what an entry is, for errors: 'stage', 'loss'.
          package: that of the trunk with entries; '' where there is none.
          word: for the kind in `NAMES`, of that package and of those of methods; '' where nothing registers itself.
        """
        self.kind = kind
        self._package, self._word = package, word
        self._entries: dict[str, Entry] = {}
        self._modules: dict[str, str] | None = None

    def register(self, name: str, entry: Entry) -> Entry:
        """Adds an entry, and returns it.

        Raises:
          UserError: another entry has the name.
        """
        of_house = self._files().get(name)  # a module that is not imported yet is not who calls
        if name in self._entries or (of_house and of_house not in sys.modules):
            raise UserError(f"the {self.kind} '{name}' is registered twice: rename the one of the plugin")
        self._entries[name] = entry
        return entry

    def find(self, name: str, field: str = "") -> Entry:
        """The entry of a name.

        Args:
          field: the field of the config that has the name, for the error.
        """
        if name not in self:
            raise unknown_name(f"{self.kind} in {field}" if field else self.kind, name, self)
        return self[name]

    def __getitem__(self, name: str) -> Entry:
        if name not in self._entries and name in self._files():
            importlib.import_module(self._files()[name])
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._files()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._files(), *self._entries)))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _files(self) -> dict[str, str]:
        """The modules that register the built-in entries, by the names of these."""
        if self._modules is None:
            methods = importlib.import_module("retrieval.methods")
            packages = [
                self._package,
                *(f"{methods.__name__}.{of.name}" for of in pkgutil.iter_modules(methods.__path__)),
            ]
            self._modules = {
                name: f"{package}.{file}"
                for package in filter(None, packages)
                for file, names in getattr(importlib.import_module(package), "NAMES", {}).get(self._word, {}).items()
                for name in names.split()
            }
        return self._modules

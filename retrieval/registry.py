"""Tables of behaviour: named entries of one kind, such as losses or stages. Plugins add theirs to the same tables."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from retrieval.errors import UserError, unknown_name

Entry = TypeVar("Entry")


class Table(Mapping[str, Entry], Generic[Entry]):
    """Entries by name, in the order in which they were registered.

    The entries of the house register themselves: a table imports the modules of its package when it is first read.
    """

    def __init__(self, kind: str, package: str = ""):
        """Makes an empty table.

        Args:
          kind: what an entry is, for errors: 'stage', 'loss'.
          package: the package whose modules register the entries of the house; '' where the caller registers them.
        """
        self.kind = kind
        self._package = package
        self._entries: dict[str, Entry] = {}

    def register(self, name: str, entry: Entry) -> Entry:
        """Adds an entry, and returns it.

        Raises:
          UserError: another entry has the name.
        """
        if name in self._entries:
            raise UserError(f"the {self.kind} '{name}' is registered twice: rename the one of the plugin")
        self._entries[name] = entry
        return entry

    def find(self, name: str, field: str = "") -> Entry:
        """The entry of a name.

        Args:
          field: the field of the config that has the name, for the error.

        Raises:
          UserError: there is none; the message has the names that are near.
        """
        self._load()
        if name not in self._entries:
            raise unknown_name(f"{self.kind} in {field}" if field else self.kind, name, self._entries)
        return self._entries[name]

    def __getitem__(self, name: str) -> Entry:
        self._load()
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._entries)

    def __len__(self) -> int:
        self._load()
        return len(self._entries)

    def _load(self) -> None:
        package, self._package = self._package, ""
        if package:
            for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
                importlib.import_module(f"{package}.{module.name}")

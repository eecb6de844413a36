"""Tables of behaviour: named entries of one kind, such as losses or stages. Plugins add theirs to the same tables."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from retrieval.errors import UserError, unknown_name

Entry = TypeVar("Entry")

_OF_EXAMPLES = ("task", "format")


class Table(Mapping[str, Entry], Generic[Entry]):
    """Entries by name, in the order in which they were registered.

    The built-in entries register themselves. A table imports their modules when it is first read: those of its package
    in the trunk, and of each method the files that are named after what they register. A method's `examples.py` may
    register tasks and formats.
    """

    def __init__(self, kind: str, package: str = "", file: str = ""):
        """Makes an empty table.

        Args:
          kind: what an entry is, for errors: 'stage', 'loss'.
          package: the package or the module of the trunk that registers entries; '' where there is none.
          file: the word in the name of a method's files that register entries: 'stage' is `methods/NAME/stage.py`,
            `methods/NAME/ANY_stage.py` and `methods/NAME/stage_and_recipe.py`. '' where methods register none.
        """
        self.kind = kind
        self._package, self._file = package, file
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
        (package, self._package), (file, self._file) = (self._package, ""), (self._file, "")
        if package:
            for module in _modules(package):
                importlib.import_module(module)
        if file:
            for method in _modules("retrieval.methods"):
                for module in _modules(method):
                    name = module.rpartition(".")[2]
                    if file in name.split("_") or (name == "examples" and file in _OF_EXAMPLES):
                        importlib.import_module(module)


def _modules(name: str) -> list[str]:
    """The modules of a package, or a module itself."""
    path = getattr(importlib.import_module(name), "__path__", None)
    return [f"{name}.{module.name}" for module in pkgutil.iter_modules(path)] if path else [name]

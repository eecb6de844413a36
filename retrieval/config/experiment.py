"""What an experiment's file, `configs/NAME.py`, is made of: the defaults of all fields, and its sizes."""

import importlib
import pkgutil
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common.errors import UserError, first_line, unknown_name
from retrieval.config import fields


def defaults(plugins: Sequence[str] = ()) -> ConfigDict:
    """A config with the default of every field.

    Args:
      plugins: modules that declare further fields; the config names them, so that every process of a run has them.

    Raises:
      UserError: a plugin cannot be imported.
    """
    load_plugins(plugins)
    config = ConfigDict(fields.nested(fields.defaults()))
    config.plugins = tuple(plugins)
    return config


def check(config: ConfigDict) -> None:
    """Checks that a config has every field, those of its plugins too, and no other, each with a value that it may have.

    Raises:
      UserError: it does not, or a plugin cannot be imported.
    """
    plugins: Any = config.get("plugins", ())
    fields.check_value("plugins", plugins, fields.TEXTS)
    load_plugins(plugins)
    set_values = dict(fields.flatten(config.to_dict()))
    for path in set_values:
        if path not in fields.declared():
            if message := explained(path):
                raise UserError(message)
            raise unknown_name("field", f"config.{path}", [f"config.{known}" for known in fields.declared()])
    for path, field in fields.declared().items():
        if path not in set_values:
            raise UserError(f"config.{path} is missing: start from retrieval.config.experiment.defaults()")
        value = set_values[path]
        if value != field.default or type(value) is not type(field.default):  # tables whose default counts stay unread
            fields.check_value(path, value, field.kind)


def explained(field: str) -> str:
    """An error's message for a field that is gone, alone or with its group; empty for any other."""
    tables = tomllib.loads(Path(__file__).with_name("removed_fields.toml").read_text(encoding="utf-8"))
    ways = tables.pop("replaced") | {name: of["instead"] for of in tables.values() for name in of["names"].split()}
    gone = next((name for name in ways if f"{field}.".startswith(f"{name}.")), "")
    return gone and f"config.{field} is gone: {ways[gone]}"


def check_early(config: ConfigDict) -> None:
    """`check`, as far as it needs no imports that take seconds.

    Raises:
      UserError: a field has a value that it may not have.
    """
    declared = fields.declared()
    for path, value in fields.flatten(config.to_dict()):
        if path in declared and declared[path].kind.at_once:
            fields.check_value(path, value, declared[path].kind)


def sized(size: str, **makers: Callable[[], ConfigDict]) -> ConfigDict:
    """The config of one size of an experiment, such as 'paper' or 'local'.

    Raises:
      UserError: the experiment has no such size.
    """
    if size not in makers:
        raise unknown_name("size of a config", size, makers)
    return makers[size]()


def load_plugins(names: Sequence[str]) -> None:
    """Imports the modules of `config.plugins`, which add entries to the tables and fields to the config.

    A plugin may be a package, as a method is: then all of its modules are imported.

    Raises:
      UserError: there is no such module, or it raises something.
    """
    for name in names:
        try:
            package = importlib.import_module(name)
            for module in pkgutil.iter_modules(getattr(package, "__path__", ())):
                importlib.import_module(f"{name}.{module.name}")
        except UserError:
            raise
        except Exception as error:  # whatever a module raises
            why = f"{type(error).__name__}: {first_line(error)}"
            raise UserError(f"config.plugins: '{name}' cannot be imported ({why}); mend it or PYTHONPATH") from error

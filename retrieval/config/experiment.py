"""What an experiment's file, `configs/NAME.py`, is made of: the defaults of all fields, and its sizes."""

import importlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.config import fields, source_cache
from retrieval.errors import UserError, first_line, no_path, unknown_name

_OF_RUNS = ("base", "vocab")  # paths that a run reads whatever its stages are


def defaults(plugins: Sequence[str] = ()) -> ConfigDict:
    """A config with the default of every field.

    Args:
      plugins: modules that declare further fields; the config names them, so that every process of a run has them.

    Raises:
      UserError: a plugin cannot be imported.
    """
    house = _house_defaults()
    load_plugins(plugins)
    config = ConfigDict(fields.nested(house | fields.defaults()))
    config.plugins = tuple(plugins)
    return config


def check(config: ConfigDict) -> None:
    """Checks that a config has every field, those of its plugins too, and no other, each with a value that it may have.

    Raises:
      UserError: it does not, or a plugin cannot be imported.
    """
    plugins: Any = config.get("plugins", ())
    fields.check_value("plugins", plugins, fields.TEXTS)
    load_fields()
    load_plugins(plugins)
    fields.check(config.to_dict())


def check_early(config: ConfigDict, is_new: bool, stages: Collection[str]) -> None:
    """`check`, as far as the kinds of the fields are known without imports; and that paths lead somewhere.

    Args:
      is_new: whether nothing is done yet. What is done does without the files that it was made from, and so does a run
        with a base: of them only the stages know which they read.
      stages: those that are to run. What none of them reads may be missing.

    Raises:
      UserError: a field has a value that it may not have, or a path leads nowhere.
    """
    if fields.declared() or config.get("plugins"):  # a plugin may add names to a table
        return
    given = dict(fields.flatten(config.to_dict()))
    for path, data in source_cache.cached("kinds", _kinds).items():
        kind = fields.kind_of(data)
        if path in given:
            fields.check_value(path, given[path], kind)
    if is_new:
        for path, readers in source_cache.cached("readers", _readers_of_paths).items():
            reads = path in _OF_RUNS or not set(stages).isdisjoint(readers)
            if path in given and reads and (path == "base" or not config.get("base")):
                _check_paths(path, given[path])


def _kinds() -> dict[str, Any]:
    load_fields()
    kept = {path: fields.as_data(field.kind) for path, field in fields.declared().items()}
    return {path: data for path, data in kept.items() if data}


def _readers_of_paths() -> dict[str, list[str]]:
    """Fields that name files or folders -> the stages that read them."""
    from retrieval.pipeline.stage import readers_of

    load_fields()
    return {path: readers_of(path) for path, field in fields.declared().items() if field.kind is fields.PATHS}


def _check_paths(field: str, value: str) -> None:
    """Raises `UserError` where a part can be nothing but a path, and is not there."""
    for part in value.split(","):
        if "/" in part and not set(":*?[=") & set(part) and not Path(part).exists():
            raise no_path(Path(part), f"config.{field}")


def sized(size: str, **makers: Callable[[], ConfigDict]) -> ConfigDict:
    """The config of one size of an experiment, such as 'paper' or 'local'.

    Raises:
      UserError: the experiment has no such size.
    """
    if size not in makers:
        raise unknown_name("size of a config", size, makers)
    return makers[size]()


def _house_defaults() -> dict[str, Any]:
    """The defaults of the package's fields. Where nothing has been imported that declares one, nothing is."""
    if fields.declared():  # which may be those of plugins too
        load_fields()
        return fields.defaults()
    return {path: fields.with_tuples(value) for path, value in source_cache.cached("fields", _declared).items()}


def _declared() -> dict[str, Any]:
    load_fields()
    source_cache.cached("kinds", _kinds)  # else the second command would have to wait too
    source_cache.cached("readers", _readers_of_paths)
    return fields.defaults()


def load_fields() -> None:
    """Imports what declares fields, which takes seconds: the tables of behaviour, and the fields of every run."""
    from retrieval.data.corpora.corpus_kind import CORPORA
    from retrieval.data.examples.task_kind import TASKS
    from retrieval.data.sets.set_format import SETS
    from retrieval.pipeline.stage import STAGES
    from retrieval.recipes.recipe import RECIPES
    from retrieval.search.index_kind import INDEXES
    from retrieval.training.loss_kind import LOSSES

    importlib.import_module("retrieval.config.run_fields")
    for table in (STAGES, RECIPES, CORPORA, TASKS, LOSSES, SETS, INDEXES):
        len(table)  # which imports its entries


def load_plugins(names: Sequence[str]) -> None:
    """Imports the modules of `config.plugins`, which add entries to the tables and fields to the config.

    Raises:
      UserError: there is no such module, or it raises something.
    """
    for name in names:
        try:
            importlib.import_module(name)
        except UserError:
            raise
        except Exception as error:  # whatever a module raises
            raise UserError(
                f"config.plugins: '{name}' cannot be imported ({type(error).__name__}: {first_line(error)}); mend it, "
                "or put its folder on PYTHONPATH"
            ) from error

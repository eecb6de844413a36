"""Mistakes in flags, in the words of people who type them: the nearest name, and what to write instead."""

import difflib
import re
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict

from retrieval.cli import config_files
from retrieval.config import removed_fields
from retrieval.errors import UserError, listed, near, unknown_name

_EXAMPLES = {"--config": "configs/ict_bfs_wlp.py:local", "--workdir": "runs/quickstart", "--stage": "evaluate,report"}


def no_config(flag: str) -> UserError:
    """For a file that is missing, or has no `get_config`."""
    path = _path(flag)
    if path.is_file():
        return UserError(f"{flag}: no get_config in it; take a config such as configs/ict_bfs_wlp.py:local")
    known = list(config_files.described())
    names = {Path(file).stem: file for file in reversed(known)}
    meant = [names[name] for name in near(path.stem, names)]
    hint = f"did you mean --config={' or '.join(meant)}? " if meant else ""
    return UserError(f"{flag}: no such file; {hint}known: {listed(known)}")


def unfit_config(flag: str, value: Any) -> UserError:
    """For a file whose `get_config` returns something else than a config that has fields."""
    try:
        getattr(value, "keys", None)
    except OSError as error:  # the library's stand-in for a config that could not be read, of any attribute
        return UserError(f"{flag}: {error.__cause__}; mend that file") if _path(flag).is_file() else no_config(flag)
    returned = "nothing" if value is None else f"{'a' if value else 'an empty'} {type(value).__name__}"
    return UserError(f"{flag}: get_config() returned {returned}; return a ConfigDict with the fields of an experiment")


def where(error: Exception) -> str:
    """What an exception says, and the line that it comes from."""
    if isinstance(error, SyntaxError | OSError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {message} ({frame.filename}, line {frame.lineno})"


def unknown_flag(name: str) -> UserError:
    """For a flag that there is not, which may have been meant for a field of the config."""
    config = flags.FLAGS["config"].value  # the flags count as not parsed
    fields = [f"config.{field}" for field in _fields(config)] if isinstance(config, ConfigDict) else []
    modules = flags.FLAGS.flags_by_module_dict().items()
    ours = [
        flag.name
        for module, of_module in modules
        if "retrieval" in module
        for flag in of_module
        if "." not in flag.name
    ]
    meant = near(name, ours)[:1] + [field for field in fields if field.endswith(f".{name}")][:2]
    if not meant:
        return unknown_name("flag", f"--{name}", [f"--{flag}" for flag in ours])
    return UserError(
        f"unknown flag '--{name}': did you mean {' or '.join(f'--{flag}' for flag in meant)}? "
        f"known: {', '.join(f'--{flag}' for flag in sorted(ours))}, and --config.FIELD for every field of the config"
    )


def explained(message: str) -> str:
    """The message of a flag library, with what to write instead."""
    message = re.sub(r'\["(.*?)"\]', r".\1", message)  # runs["bm25-0"], which was typed with a dot
    if missing := re.match(r"Missing value for flag (\S+)", message):
        return f"{missing[1]} has no value: write {missing[1]}={_EXAMPLES.get(missing[1], 'VALUE')}"
    if broken := re.match(r"flag (--config=.*?): ", message):  # with the stack trace of the config file
        return f"{broken[1]}: {message.strip().splitlines()[-1].strip()}; mend that file, or take another"
    if wrong := re.match(r"flag (--(config\.)?(\S*?)=(.*?)): ", message):
        return f"{wrong[1]}: {_needed(wrong[3]) if wrong[2] else _taken(wrong[3])}"
    return message.partition("\n")[0]


def unknown_field(config: ConfigDict, parent: Any, names: Sequence[str], depth: int) -> UserError:
    """For a field that is not in its group `parent`: it may be gone, or in another, or the parent no group."""
    if message := removed_fields.explained(".".join(names)):
        return UserError(message)
    field, path = ".".join(["config", *names]), ".".join(["config", *names[:depth]])
    beside = list(parent.keys()) if isinstance(parent, ConfigDict) else []
    alike = difflib.get_close_matches(names[-1], beside, n=1, cutoff=0.85)  # step: steps
    alike += [name for name in beside if names[-1] in name.split("_")]  # layers: num_layers
    meant = [".".join([*names[:depth], name]) for name in alike]
    meant += [known for known in _fields(config) if f".{known}".endswith(f".{names[-1]}")]
    if meant and depth == len(names) - 1:
        hints = [f"config.{name}" for name in dict.fromkeys(meant)]
        return UserError(f"unknown field '{field}': did you mean {' or '.join(hints[:3])}?")
    if not isinstance(parent, ConfigDict):
        return UserError(f"unknown field '{field}': {path} has no fields; set it as --{path}=VALUE")
    return unknown_name("field", f"{path}.{names[depth]}", _prefixed(names[:depth], parent.keys()))


def group(field: str, values: ConfigDict) -> UserError:
    """For a field that has fields of its own."""
    names = _prefixed([field], values.keys())
    return UserError(f"config.{field} is a group of fields; set one of {listed(names)}")


def _taken(name: str) -> str:
    """What the value of a flag that is no field has to be."""
    parser = flags.FLAGS[name].parser
    if not isinstance(parser, flags.IntegerParser | flags.FloatParser):
        return "True or False is needed"
    kind = "a whole number" if isinstance(parser, flags.IntegerParser) else "a number"
    if parser.upper_bound is not None:
        return f"{kind} from {parser.lower_bound} to {parser.upper_bound} is needed"
    return f"{kind} is needed" if parser.lower_bound is None else f"{kind} of {parser.lower_bound} or more is needed"


def _needed(field: str) -> str:
    """What the value of a field has to be, by what it is without the flag."""
    value: Any = flags.FLAGS["config"].value
    for name in field.split("."):
        value = value[name]
    if isinstance(value, bool):
        return "True or False is needed"
    kinds = {int: "a whole number", float: "a number", str: "a text"}
    return f"{kinds.get(type(value), 'a tuple')} is needed, such as {value!r}"


def _fields(config: ConfigDict, prefix: str = "") -> list[str]:
    """The dotted names of all fields."""
    nested = [
        _fields(value, f"{prefix}{name}.") if isinstance(value, ConfigDict) else [prefix + name]
        for name, value in config.items()
    ]
    return [field for fields in nested for field in fields]


def _prefixed(parents: Sequence[str], names: Sequence[str]) -> list[str]:
    return [".".join(["config", *parents, name]) for name in names]


def _path(flag: str) -> Path:
    """The file that --config=FILE:ARGUMENT names."""
    return Path(flag.partition("=")[2].partition(":")[0])

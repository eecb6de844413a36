"""What the commands share: the flags --config and --workdir, and errors in the words of people who type them."""

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters comes as an exception

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from retrieval import hosts
from retrieval.errors import UserError, listed, near, unknown_name

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: configs/NAME.py, or configs/NAME.py:local.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder that everything is written to, and resumed from.")

_EXAMPLES = {"--config": "configs/ict_bfs_wlp.py:local", "--workdir": "runs/quickstart", "--stage": "evaluate,report"}

_OVERRIDE = re.compile(r"--?(no)?config\.")

_REMEDIES = dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    "name a path that is there and may be read, and a --workdir that may be written to",
)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, with an error for people where the flag libraries raise one for programmers.

    Raises:
      UserError: no config, a config that does not load, an unknown field or flag, or a value of the wrong type.
    """
    overrides = [argument for argument in argv if _OVERRIDE.match(argument)]
    plain = [argument for argument in argv if argument not in overrides]
    configs = [argument for argument in plain if re.match("--?config=", argument)]
    if len(configs) > 1:
        raise UserError(f"--config is there twice, {configs[0]} and {configs[-1]}: leave one out")
    rest = _parse(plain)
    if CONFIG.value is None:
        if overrides:
            raise UserError(
                f"{overrides[0]}: --config is missing, the experiment whose field is to be set, such as "
                "--config=configs/ict_bfs_wlp.py:local"
            )
        return rest
    for override in overrides:
        _check_field(CONFIG.value, _OVERRIDE.sub("", override).split("=")[0])
    flags.FLAGS.unparse_flags()
    return _parse(argv)


def refuse_arguments(argv: Sequence[str]) -> None:
    """Everything is a flag.

    Raises:
      UserError: there is an argument that is none.
    """
    if len(argv) > 1:
        raise UserError(f"unexpected argument '{argv[1]}'; every setting is a flag such as --config.train.steps=100")


def run(main: Callable[[Sequence[str]], int | None]) -> None:
    """Runs a command: a `UserError` becomes one message and exit status 2, a `PreemptedError` one and 75."""
    _set_up_logging()
    hosts.heed_sigterm()
    try:
        app.run(main, flags_parser=parse_flags)
    except hosts.PreemptedError as notice:
        print(notice, file=sys.stderr)
        sys.exit(hosts.EXIT_CODE)
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_explain(error))
    except Exception:
        if hosts.is_alone():
            raise
        traceback.print_exc()
        hosts.leave(1)


def _parse(argv: Sequence[str]) -> list[str]:
    # ml_collections looks for the overrides in sys.argv, whatever the arguments that are parsed.
    given, sys.argv = sys.argv, list(argv)
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        raise _unknown_flag(error.flagname) from error
    except (flags.Error, TypeError) as error:
        raise UserError(_told(str(error))) from error
    except UserError:
        raise
    except Exception as error:  # what a config file raises, which may be anything
        if isinstance(error, AttributeError) and error.name == "get_config":
            raise _no_config(_config_flag(argv)) from error
        raise UserError(f"{_config_flag(argv)}: {_where(error)}; mend that file, or take another") from error
    finally:
        sys.argv = given
    if not isinstance(CONFIG.value, ConfigDict | None):  # for a missing file the library gives an object that raises
        raise _no_config(_config_flag(argv))
    return rest


def _config_flag(argv: Sequence[str]) -> str:
    """The argument that names the config, as it was written."""
    places = [place for place, argument in enumerate(argv) if re.match("--?config(=|$)", argument)]
    if not places:
        return "--config"
    return argv[places[-1]] if "=" in argv[places[-1]] else f"--config={''.join(argv[places[-1] + 1 :][:1])}"


def _no_config(flag: str) -> UserError:
    """For a file that is missing, or no config."""
    path = Path(flag.partition("=")[2].partition(":")[0])
    if path.is_file():
        return UserError(f"{flag}: no get_config in it; take a config such as configs/ict_bfs_wlp.py:local")
    folder = Path(__file__).resolve().parent.parent
    known = [str(file.relative_to(folder)) for file in sorted((folder / "configs").rglob("*.py"))]
    names = {Path(file).stem: file for file in known}
    found = [names[name] for name in near(path.stem, names)]
    hint = f"did you mean --config={' or '.join(found)}? " if found else ""
    return UserError(f"{flag}: no such file; {hint}known: {listed(known)}")


def _where(error: Exception) -> str:
    """What an exception says, and the line that it comes from."""
    if isinstance(error, SyntaxError | OSError):
        return str(error)
    frame = traceback.extract_tb(error.__traceback__)[-1]
    message = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {message} ({frame.filename}, line {frame.lineno})"


def _unknown_flag(name: str) -> UserError:
    """For a flag that there is not, which may have been meant for a field of the config."""
    config = flags.FLAGS["config"].value  # the flags count as not parsed
    fields = [f"config.{field}" for field in _fields(config)] if isinstance(config, ConfigDict) else []
    modules = flags.FLAGS.flags_by_module_dict().items()
    own = [flag.name for module, found in modules if "retrieval" in module for flag in found if "." not in flag.name]
    meant = near(name, own)[:1] + [field for field in fields if field.endswith(f".{name}")][:2]
    if not meant:
        return unknown_name("flag", f"--{name}", [f"--{flag}" for flag in own])
    return UserError(
        f"unknown flag '--{name}': did you mean {' or '.join(f'--{flag}' for flag in meant)}? "
        f"known: {', '.join(f'--{flag}' for flag in sorted(own))}, and --config.FIELD for every field of the config"
    )


def _told(message: str) -> str:
    """The message of a flag library, with what to write instead."""
    if missing := re.match(r"Missing value for flag (\S+)", message):
        return f"{missing[1]} has no value: write {missing[1]}={_EXAMPLES.get(missing[1], 'VALUE')}"
    if wrong := re.match(r"flag (--(config\.)?(\S*?)=(.*?)): ", message):
        return f"{wrong[1]}: {_needed(wrong[3] if wrong[2] else '')}"
    return message.partition("\n")[0]


def _needed(field: str) -> str:
    """What the value of a field has to be, by what it is without the flag; without a field, that of a switch."""
    value = flags.FLAGS["config"].value if field else True
    for name in field.split(".") if field else []:
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


def _check_field(config: ConfigDict, field: str) -> None:
    known, names = config, field.split(".")
    for depth, name in enumerate(names):
        if not isinstance(known, ConfigDict) or name not in known:
            raise _unknown_field(config, known, names, depth)
        known = known[name]
    if isinstance(known, ConfigDict):
        raise UserError(f"config.{field} is a group of fields; set one of {listed(_prefixed([field], known.keys()))}")


def _unknown_field(config: ConfigDict, parent: Any, names: Sequence[str], depth: int) -> UserError:
    """For a field that is not in its group `parent`: it may be in another, or the parent no group."""
    field, path = ".".join(["config", *names]), ".".join(["config", *names[:depth]])
    meant = [known for known in _fields(config) if f".{known}".endswith(f".{names[-1]}")]
    if meant and depth == len(names) - 1:
        return UserError(f"unknown field '{field}': did you mean {' or '.join(f'config.{m}' for m in meant[:3])}?")
    if not isinstance(parent, ConfigDict):
        return UserError(f"unknown field '{field}': {path} has no fields; set it as --{path}=VALUE")
    return unknown_name("field", f"{path}.{names[depth]}", _prefixed(names[:depth], parent.keys()))


def _prefixed(parents: Sequence[str], names: Sequence[str]) -> list[str]:
    return [".".join(["config", *parents, name]) for name in names]


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("retrieval")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def _explain(error: OSError) -> str:
    where = error.filename or "a file"
    if error.errno == errno.ENOSPC:
        return f"{where}: the disk is full; free some space and start again, what was finished is kept"
    remedy = _REMEDIES.get(error.errno, "mend that and start again, what was finished is kept")
    return f"{where}: {error.strerror or error}; {remedy}"


def _fail(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr, flush=True)
    hosts.leave(2)

"""What the commands share: the flags --config and --workdir, and errors in the words of people who type them."""

import errno
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters comes as an exception

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from retrieval import hosts, terminal
from retrieval.errors import UserError, unknown_name

CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: configs/NAME.py, or configs/NAME.py:local.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder that everything is written to, and resumed from.")


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, with an error for people where the flag libraries raise one for programmers.

    Raises:
      UserError: no config, a config that does not load, an unknown field or flag, or a value of the wrong type.
    """
    overrides = [argument for argument in argv if argument.startswith("--config.")]
    plain = [argument for argument in argv if argument not in overrides]
    rest = _parse(plain)
    if CONFIG.value is None:
        if overrides:
            raise UserError(f"{overrides[0]}: --config is missing, the experiment whose field is to be set")
        return rest
    for override in overrides:
        _check_field(CONFIG.value, override.removeprefix("--config.").split("=")[0])
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
    except SystemExit as end:
        hosts.leave(end.code or 0)
    except hosts.PreemptedError as notice:
        print(terminal.printable(str(notice)), file=sys.stderr)
        hosts.leave(hosts.EXIT_CODE, str(notice))
    except UserError as error:
        _fail(str(error))
    except OSError as error:
        _fail(_explain(error))
    except Exception as error:
        if hosts.is_alone():
            raise
        hosts.leave_after(error)


def _parse(argv: Sequence[str]) -> list[str]:
    # ml_collections looks for the overrides in sys.argv, whatever the arguments that are parsed.
    given, sys.argv = sys.argv, list(argv)
    try:
        rest = flags.FLAGS(argv)
        if not isinstance(
            CONFIG.value, ConfigDict | None
        ):  # for a missing file the library gives an object that raises
            raise UserError(
                f"{next(a for a in argv if a.startswith('--config'))}: no such file, or no get_config in it"
            )
        return rest
    except (OSError, ImportError, SyntaxError) as error:
        raise UserError(f"--config: {error}") from error
    except (flags.Error, TypeError, ValueError) as error:
        raise UserError(str(error)) from error
    finally:
        sys.argv = given


def _check_field(config: ConfigDict, field: str) -> None:
    known = config
    *parents, leaf = field.split(".")
    for depth, name in enumerate([*parents, leaf]):
        if not isinstance(known, ConfigDict) or name not in known:
            names = known.keys() if isinstance(known, ConfigDict) else []
            raise unknown_name("field", ".".join(["config", *parents[:depth], name]), _prefixed(parents[:depth], names))
        known = known[name]
    if isinstance(known, ConfigDict):
        raise UserError(
            f"config.{field} is a group of fields; set one of {', '.join(_prefixed([field], known.keys()))}"
        )


def _prefixed(parents: Sequence[str], names: Sequence[str]) -> list[str]:
    return [".".join(["config", *parents, name]) for name in names]


def _set_up_logging() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("retrieval")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


class _Formatter(logging.Formatter):
    """Messages may quote the data."""

    def format(self, record: logging.LogRecord) -> str:
        return terminal.printable(super().format(record))


def _explain(error: OSError) -> str:
    where = error.filename or "a file"
    if error.errno == errno.ENOSPC:
        return f"{where}: the disk is full; free some space and start again, what was finished is kept"
    return f"{where}: {error.strerror or error}"


def _fail(message: str) -> NoReturn:
    print(terminal.printable(f"error: {message}"), file=sys.stderr, flush=True)
    hosts.leave(2, message)

"""The command line: flags, the config that they name, and errors in the words of people who type them.

`--config=NAME:ARGUMENT` takes `configs/NAME.py`, or a file; `--config.FIELD=VALUE` sets a field of that config, or of
the one that a work directory keeps.
"""

import ast
import contextlib
import errno
import logging
import re
import runpy
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags
from ml_collections import ConfigDict
from ml_collections.config_flags.tuple_parser import TupleParser

from retrieval import configs
from retrieval.common import terminal
from retrieval.common.errors import UserError, listed, near
from retrieval.common.runtime import artefacts, devices, ending, hosts, signals
from retrieval.config import experiment, fields

_log = logging.getLogger(__name__)

CONFIG = flags.DEFINE_string("config", None, "The experiment: NAME or NAME:local of configs/NAME.py, or a file.")
WORKDIR = flags.DEFINE_string("workdir", None, "Folder to write to and resume from: PATH or gs://BUCKET/PATH.")
_SCRATCH = flags.DEFINE_string("scratch", None, "Local folder of a --workdir on a store, if not below TMPDIR.")
FOLDER = Path(configs.__path__[0])

_OVERRIDE = re.compile(r"--?(no)?config\.([^=]+)(?:=(.*))?", re.DOTALL)
_HELP = re.compile(r"--?(?:help|h)(?:=(.*))?")
_FLAG = re.compile(r"--?(?:no)?([a-z][\w.-]*)")
_SWITCH = {"true": True, "1": True, "false": False, "0": False}
_KINDS = {bool: "True or False", int: "a whole number", float: "a number", str: "a text"}
# What `parse_flags` has made of --config and its fields.
_config: ConfigDict | None = None
_complete: Callable[[ConfigDict], None] | None = None  # of its file, for what depends on fields that the shell has set
_set_fields: list[str] = []


def config() -> Any:
    """The config that the flags name, with the fields that they set; None where they name none."""
    return _config


def overridden() -> list[str]:
    """The fields of the config that were set in the shell."""
    return list(_set_fields)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, and returns what is none. Without --config, fields are set in the work directory's config."""
    global _config, _complete, _set_fields
    _refuse_twice(argv)
    overrides = [match for word in argv if (match := _OVERRIDE.fullmatch(word))]
    _config, _complete, _set_fields = None, None, [override[2] for override in overrides]
    rest = _parse([word for word in argv if not _OVERRIDE.fullmatch(word)])
    if (WORKDIR.value or "").startswith("~"):  # which a shell expands at the beginning of a word alone
        raise UserError(f"--workdir={WORKDIR.value}: '~' is no folder here; write $HOME, or the whole path")
    if _SCRATCH.value:
        artefacts.set_scratch(Path(_SCRATCH.value))
    if CONFIG.value is not None:
        _config = load_config(CONFIG.value)
    elif overrides:
        _config = kept(artefacts.local(WORKDIR.value) if WORKDIR.value else None, overrides[0][0])
    if _config is not None:
        if overrides and "plugins" in _config:  # which the config of a study has not
            _set(_config, [each for each in overrides if each[2] == "plugins"])
            _add_plugins(_config)
        _set(_config, overrides)
        if _complete:
            with _errors_of_a_file(f"--config={CONFIG.value}"):
                _complete(_config)
            _set(_config, overrides)  # which count more
    return rest


def load_config(value: str) -> ConfigDict:
    """The config that --config=value names."""
    global _complete
    name, colon, argument = expanded(value).partition(":")
    flag = f"--config={value}"
    if not Path(name).is_file():
        names = {Path(file).stem: file for file in reversed(list(described()))}
        meant = [names[each] for each in near(Path(name).stem, names)]
        hint = f"did you mean --config={' or '.join(meant)}? " if meant else ""
        raise UserError(f"{flag}: no such file; {hint}known: {listed(described())}")
    with _errors_of_a_file(flag):
        names_of = runpy.run_path(name, run_name="config_file")
        made, _complete = names_of["get_config"](*[argument] * bool(colon)), names_of.get("complete")
    if not isinstance(made, ConfigDict) or not made:
        raise UserError(f"{flag}: get_config() returned {made!r:.50}; return a ConfigDict with all fields")
    made.lock()
    return made


@contextlib.contextmanager
def _errors_of_a_file(flag: str) -> Iterator[None]:
    """Makes one `UserError` of whatever a config's file raises, with its line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        what = str(error).partition("\n")[0]
        if not isinstance(error, SyntaxError | OSError):
            frame = traceback.extract_tb(error.__traceback__)[-1]
            what = f"{type(error).__name__}: {what} ({frame.filename}, line {frame.lineno})"
        raise UserError(f"{flag}: {what}; mend that file, or take another") from error


def _set(config: ConfigDict, overrides: Sequence[re.Match[str]]) -> None:
    """Sets fields as matches of `_OVERRIDE` say."""
    for override in overrides:
        negated, path, text = override.groups()
        parent = value = config
        for name in path.split("."):
            if not isinstance(value, ConfigDict) or name not in value:
                raise _unknown_field(config, path)
            parent, value = value, value[name]
        if isinstance(value, ConfigDict):
            fields_of = listed(f"config.{path}.{name}" for name in value)
            raise UserError(f"config.{path} is a group of fields; set one of {fields_of}")
        if text is None and not isinstance(value, bool):
            raise UserError(f"{override[0]} has no value: write --config.{path}=VALUE")
        text = str(not negated) if text is None else text
        try:
            parent[path.rpartition(".")[2]] = _value(text, value)
        except (ValueError, TypeError, KeyError, SyntaxError) as error:
            needed = _KINDS.get(type(value), "a tuple")
            raise UserError(f"--config.{path}={text}: {needed} is needed, such as {value!r}") from error


def _value(text: str, now: Any) -> Any:
    """A text as a value of the type that a field has now."""
    if isinstance(now, bool):
        return _SWITCH[text.lower()]
    if isinstance(now, int | float | str):
        return type(now)(text)
    return TupleParser().parse(text) if isinstance(now, tuple | list) else ast.literal_eval(text)


def _add_plugins(config: ConfigDict) -> None:
    """Imports the plugins of a config: the fields that they declare can be set like any other."""
    before = fields.defaults()
    experiment.load_plugins(config.plugins)
    if added := {path: value for path, value in fields.defaults().items() if path not in before}:
        with config.unlocked():
            config.update(ConfigDict(fields.nested(added)))


def kept(folder: Path | None, word: str) -> ConfigDict:
    """The config that a work directory keeps, which a word of the command needs."""
    from retrieval.runs.pipeline import preflight  # takes a second

    if not folder:
        raise UserError(f"{word}: --config is missing, such as --config=bm25:local, or a --workdir that has one")
    if not (folder / artefacts.CONFIG).exists():
        runs = [path.parent.name for path in sorted(folder.parent.glob(f"*/{artefacts.CONFIG}"))]
        meant = " or ".join(str(folder.with_name(name)) for name in near(folder.name, runs) or runs[:3])
        hint = f"did you mean {meant}? " if runs else ""
        raise UserError(f"--workdir={folder}: no such run; {hint}a new one needs --config, such as --config=bm25:local")
    return preflight.read_config(folder)


def described() -> dict[str, str]:
    """The experiments of `configs/`, and what each says of itself first; a file without `get_config` is a helper."""
    experiments = {}
    for path in sorted(FOLDER.rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "get_config" for node in module.body):
            what = (ast.get_docstring(module) or "").partition("\n\n")[0]
            experiments[path.relative_to(FOLDER.parent).as_posix()] = " ".join(what.split())
    return experiments


def expanded(value: str) -> str:
    """The value of --config with the file that a name stands for: 'dpr:local' is configs/dpr.py with 'local'.

    So is 'configs/dpr.py:local', in any folder. What is a file already, or names none of `configs/`, stays as it is.
    """
    name, colon, argument = value.partition(":")
    path = FOLDER / f"{name.removeprefix('configs/').removesuffix('.py')}.py"
    is_name = bool(name) and not Path(name).is_file() and path.is_file() and FOLDER in path.resolve().parents
    return f"{path}{colon}{argument}" if is_name else value


def refuse_arguments(argv: Sequence[str]) -> None:
    """Everything is a flag."""
    if len(argv) > 1:
        raise UserError(f"unexpected argument '{argv[1]}'; stages come first, then --flags and --config.FIELD=VALUE")


def our_flags() -> list[flags.Flag]:
    """The flags of our modules."""
    of_modules = flags.FLAGS.flags_by_module_dict().items()
    return [flag for name, of_module in of_modules if "retrieval" in name for flag in of_module]


def run(
    main: Callable[[Sequence[str]], Any],
    manual: Callable[[str], str] | None = None,
    computes: Callable[[], bool] = lambda: False,
    written_out: Callable[[Sequence[str]], list[str]] = list,
) -> None:
    """Runs a command: a `UserError` becomes one message and exit status 2, a signal one and 75 or 130.

    Args:
      manual: what --help=WORD says, where that is more than the flags; without a word one screen.
      computes: whether it computes for long, and is to have large pages of memory; asked when its flags are parsed.
      written_out: the flags that its words stand for.
    """

    def parse(argv: list[str]) -> list[str]:
        whole = [argv[0], *written_out(argv[1:])]
        rest = parse_flags(whole)
        if computes():  # after an error in the flags
            devices.restart_with_large_pages()
        if whole != argv:
            _log.info("this is: python -m retrieval.main %s", shlex.join(whole[1:]))
        return rest

    topics = [match[1] or "" for word in sys.argv[1:] if (match := _HELP.fullmatch(word))]
    if manual and topics:
        with terminal.while_read():
            print(manual(topics[0]), flush=True)
        return
    terminal.set_up_logging()
    try:
        ending.heed_signals()
        app.run(main, flags_parser=parse)
    except SystemExit as end:
        ending.leave(int(end.code or 0))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or signals.received:  # what else goes wrong then is no news
            _stop(error)
        if message := _message(error):
            _fail(message)
        if hosts.is_alone() or not isinstance(error, Exception):
            raise
        ending.leave_after(error)


def _stop(error: BaseException) -> NoReturn:
    """Ends the process after a signal, with what is said about it."""
    is_notice = isinstance(error, signals.PreemptedError)
    why = str(error) if is_notice else signals.INTERRUPTED
    with contextlib.suppress(OSError):  # of a terminal that is gone
        print(terminal.printable(why), file=sys.stderr, flush=True)
    ending.leave(signals.EXIT_CODE if is_notice else signals.STATUS[signals.received or signal.SIGINT], why)


def _fail(message: str) -> NoReturn:
    print(terminal.printable(f"error: {message}"), file=sys.stderr, flush=True)
    ending.leave(2, message)


def _message(error: BaseException) -> str | None:
    """What is said about an error that is the user's to mend; None of others."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError):
        where = error.filename2 or error.filename or "a file"  # the first of two is what a copy was to be of
        what = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or error
        return f"{where}: {what}; mend that, or use another path, and start again: what was finished is kept"
    return devices.explained(error)


def _refuse_twice(argv: Sequence[str]) -> None:
    """The flag library would take the last of two and say nothing."""
    firsts: dict[str, str] = {}
    for flag in filter(None, map(_FLAG.match, argv)):
        if (first := firsts.setdefault(flag[1], flag.string)) != flag.string:
            raise UserError(f"--{flag[1]} is there twice, {first} and {flag.string}: leave one out")


def _parse(argv: Sequence[str]) -> list[str]:
    try:
        return flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        name, ours = error.flagname, sorted(flag.name for flag in our_flags())
        meant = [*near(name, ours)[:1], *(f"config.{each}" for each in fields.declared() if each.endswith(f".{name}"))]
        hint = f"did you mean {' or '.join(f'--{each}' for each in meant[:3])}? " if meant else ""
        known = ", ".join(f"--{flag}" for flag in ours)
        raise UserError(f"unknown flag '--{name}': {hint}known: {known}, and --config.FIELD=VALUE") from error
    except flags.Error as error:
        message = str(error).partition("\n")[0].removeprefix("flag ")
        raise UserError(re.sub(r"\('Non-boolean.*", "True or False is needed", message)) from error


def _unknown_field(config: ConfigDict, path: str) -> UserError:
    """For a field that there is not: it may be gone, in another group, or spelled otherwise."""
    if message := experiment.explained(path):
        return UserError(message)
    known, name = [known for known, _ in fields.flatten(config.to_dict())], path.rpartition(".")[2]
    alike = [each for each in known if f".{each}".endswith((f".{name}", f"_{name}"))]
    meant = list(dict.fromkeys([*near(path, known), *alike]))[:3]
    hint = f"did you mean {' or '.join(f'config.{each}' for each in meant)}?" if meant else "see --help"
    return UserError(f"unknown field 'config.{path}': {hint}")

"""What the commands share: flags, and errors in the words of people who type them."""

import contextlib
import errno
import logging
import re
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from absl import app, flags
from ml_collections import ConfigDict, config_flags

from retrieval import terminal
from retrieval.cli import config_files, flag_errors
from retrieval.config import fields
from retrieval.errors import UserError
from retrieval.runtime import artefacts, ending, hosts, large_pages, platforms, signals

CONFIG = config_flags.DEFINE_config_file(
    "config", None, "The experiment: NAME or NAME:local of configs/NAME.py, or a file."
)
WORKDIR = flags.DEFINE_string(
    "workdir", None, "Folder that everything is written to, and resumed from: PATH or gs://BUCKET/PATH."
)
_SCRATCH = flags.DEFINE_string(
    "scratch", None, "Where a --workdir such as gs://bucket/run has its local folder, if not below that of TMPDIR."
)

# Stands for --config where a work directory keeps its own: a file that takes the work directory as its argument.
_KEPT = Path(__file__).parent / "workdir_config.py"

_CONFIG = re.compile(r"--?config(=|$)")
_OVERRIDE = re.compile(r"--?(no)?config\.")
_FIELD = re.compile(r"--?config\.[^=]+")  # without its value

_HELP = re.compile(r"--?(?:help|h)(?:=(.*))?")

# Flags that have one value.
_ONCE = ("config", "workdir", "scratch", "stage", "query", "queries", "only")

_REMEDIES = dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    "name a path that is there and may be read, and a --workdir that may be written to",
)


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, with an error for people where the flag libraries raise one for programmers.

    Without --config, fields are set in the config that the work directory keeps.

    Raises:
      UserError: no config, a config that does not load, an unknown field or flag, or a value of the wrong type.
    """
    argv = _with_config_first(_with_values(_with_files(argv)))
    overrides = [argument for argument in argv if _OVERRIDE.match(argument)]
    plain = [argument for argument in argv if argument not in overrides]
    _refuse_twice(plain, _ONCE)
    _refuse_twice(argv, [f"config.{_field_of(override)}" for override in overrides])
    rest = _parse(plain)
    if (WORKDIR.value or "").startswith("~"):  # which a shell expands at the beginning of a word alone
        raise UserError(f"--workdir={WORKDIR.value}: '~' is no folder here; write $HOME, or the whole path")
    if _SCRATCH.value:
        artefacts.set_scratch(Path(_SCRATCH.value))
    if not overrides:
        return rest
    if CONFIG.value is None:
        flag = _kept(overrides[0])
        argv, plain = ([words[0], flag, *words[1:]] for words in (argv, plain))
        _parse(plain)
    _load_plugins(plain, overrides)
    config: Any = CONFIG.value
    for override in overrides:
        _check_field(config, _field_of(override))
    flags.FLAGS.unparse_flags()
    return _parse([_in_brackets(word) if word in overrides else word for word in argv])


def overridden() -> list[str]:
    """The fields of the config that were set in the shell."""
    flag: Any = flags.FLAGS[CONFIG.name]  # of ml_collections, which knows more than other flags
    return [] if CONFIG.value is None else list(flag.override_values)


def refuse_arguments(argv: Sequence[str]) -> None:
    """Everything is a flag.

    Raises:
      UserError: there is an argument that is none.
    """
    if len(argv) > 1:
        raise UserError(
            f"unexpected argument '{argv[1]}'; stages come before all flags, as in `retrieval search --workdir=X`, and "
            "every setting is a flag such as --config.train.steps=100"
        )


def run(
    main: Callable[[Sequence[str]], int | None],
    manual: Callable[[str], str] | None = None,
    has_flags: bool = True,
    computes: bool = False,
) -> None:
    """Runs a command: a `UserError` becomes one message and exit status 2, a signal one and 75 or 130.

    Args:
      manual: what --help=WORD says, where that is more than the flags; without a word everything.
      has_flags: whether the arguments are those of `parse_flags`; otherwise the command gets them as they are.
      computes: whether it is to have large pages of memory.
    """

    def parse(argv: list[str]) -> list[str]:
        rest = parse_flags(argv) if has_flags else _as_they_are(argv)
        if computes:  # wrong flags are told before
            large_pages.restart_with()
        return rest

    asked = [match[1] or "" for word in sys.argv[1:] if (match := _HELP.fullmatch(word))]
    if manual and asked:
        with terminal.while_read():
            print(manual(asked[0]), flush=True)
        return
    _set_up_logging()
    try:
        ending.heed_signals()
        app.run(main, flags_parser=parse)
    except SystemExit as end:
        ending.leave(int(end.code or 0))
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) or signals.received():  # what else goes wrong then is no news
            _stop(error)
        if isinstance(error, UserError):
            _fail(str(error))
        if isinstance(error, OSError):
            _fail(_explain(error))
        if advice := platforms.explained(error):
            _fail(advice)
        if hosts.is_alone() or not isinstance(error, Exception):
            raise
        ending.leave_after(error)


def _stop(error: BaseException) -> NoReturn:
    """Ends the process after a signal, with what is said about it."""
    is_notice = isinstance(error, signals.PreemptedError)
    why = str(error) if is_notice else signals.INTERRUPTED
    with contextlib.suppress(OSError):  # of a terminal that is gone
        print(terminal.printable(why), file=sys.stderr, flush=True)
    ending.leave(signals.EXIT_CODE if is_notice else signals.STATUS[signals.received() or signal.SIGINT], why)


def _as_they_are(argv: list[str]) -> list[str]:
    flags.FLAGS.mark_as_parsed()
    return argv


def _with_files(argv: Sequence[str]) -> list[str]:
    """The arguments with the file of a config that is named by its name alone."""
    words = list(argv)
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if flag.lstrip("-") != CONFIG.name or not flag.startswith("-"):
            continue
        if equals:
            words[place] = f"{flag}={config_files.expanded(value)}"
        elif place + 1 < len(words):
            words[place + 1] = config_files.expanded(words[place + 1])
    return words


def _with_values(argv: Sequence[str]) -> list[str]:
    """The arguments with `=` between a field and its value: whoever picks out the fields has their values too."""
    words: list[str] = []
    for word in argv:
        if words and _FIELD.fullmatch(words[-1]) and not word.startswith("-"):
            words[-1] += f"={word}"
        else:
            words.append(word)
    return words


def _with_config_first(argv: Sequence[str]) -> list[str]:
    """The arguments with --config before those that set its fields, as ml_collections needs them."""
    place = next((place for place, word in enumerate(argv) if _CONFIG.match(word)), 0)
    end = place + (1 if "=" in argv[place] else 2)
    return [*argv[:1], *argv[place:end], *argv[1:place], *argv[end:]] if place else list(argv)


def _refuse_twice(argv: Sequence[str], names: Sequence[str]) -> None:
    """The flag library would take the last of two and say nothing."""
    for name in names:
        flag = re.compile(rf"--?(no)?{re.escape(name)}(=.*)?", re.DOTALL)
        places = [place for place, word in enumerate(argv) if flag.fullmatch(word)]
        if len(places) > 1:
            first, last = (
                argv[place] if "=" in argv[place] else " ".join(argv[place : place + 2])
                for place in (places[0], places[-1])
            )
            raise UserError(f"--{name} is there twice, {first} and {last}: leave one out")


def _parse(argv: Sequence[str]) -> list[str]:
    # ml_collections looks for the overrides in sys.argv, whatever the arguments that are parsed.
    given, sys.argv = sys.argv, list(argv)
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        raise flag_errors.unknown_flag(error.flagname) from error
    except flags.Error as error:
        raise UserError(flag_errors.explained(str(error))) from error
    except UserError:
        raise
    except Exception as error:  # what a config file raises, which may be anything
        if isinstance(error, AttributeError) and error.name == "get_config":
            raise flag_errors.no_config(_config_flag(argv)) from error
        raise UserError(f"{_config_flag(argv)}: {flag_errors.where(error)}; mend that file, or take another") from error
    finally:
        sys.argv = given
    if flags.FLAGS[CONFIG.name].present and not (isinstance(CONFIG.value, ConfigDict) and CONFIG.value):
        raise flag_errors.unfit_config(_config_flag(argv), CONFIG.value)
    return rest


def _kept(override: str) -> str:
    """The --config that stands for the config which the work directory keeps."""
    workdir = WORKDIR.value
    if not workdir or not (artefacts.local(workdir) / artefacts.CONFIG).exists():
        raise UserError(
            f"{override}: --config is missing, the experiment whose field is to be set, such as "
            "--config=configs/ict_bfs_wlp.py:local (it can be left out where --workdir has a config.json)"
        )
    return f"--{CONFIG.name}={_KEPT}:{workdir}"


def _load_plugins(plain: Sequence[str], overrides: Sequence[str]) -> None:
    """Imports the plugins of the config, and parses again: the fields that they declare can be set like any other."""
    from retrieval.config import experiment  # not for worker processes, which import this file

    config: Any = CONFIG.value
    if "plugins" not in config:  # the config of a study, whose runs have their own
        return
    before = len(fields.declared())
    if named := [override for override in overrides if _field_of(override) == "plugins"]:
        flags.FLAGS.unparse_flags()
        _parse([*plain, *named])
        config = CONFIG.value
        delattr(flags.FLAGS, "config.plugins")  # it sets the field of this config alone, and another is to be parsed
    experiment.load_plugins(config.plugins)
    if named or len(fields.declared()) > before:
        flags.FLAGS.unparse_flags()
        _parse(plain)


def _config_flag(argv: Sequence[str]) -> str:
    """The argument that names the config, as it was written."""
    places = [place for place, argument in enumerate(argv) if _CONFIG.match(argument)]
    if not places:
        return "--config"
    return argv[places[-1]] if "=" in argv[places[-1]] else f"--config={''.join(argv[places[-1] + 1 :][:1])}"


def _field_of(override: str) -> str:
    """The field that an argument such as --config.train.steps=5 sets: train.steps."""
    return _OVERRIDE.sub("", override).split("=")[0]


def _in_brackets(override: str) -> str:
    """The argument with names such as bm25-0, a run of a study, as ml_collections reads them: runs["bm25-0"]."""
    field = _field_of(override)
    first, *others = field.split(".")
    read = "".join([first, *(f".{name}" if name.isidentifier() else f'["{name}"]' for name in others)])
    return override.replace(field, read, 1)


def _check_field(config: ConfigDict, field: str) -> None:
    known, names = config, field.split(".")
    for depth, name in enumerate(names):
        if not isinstance(known, ConfigDict) or name not in known:
            raise flag_errors.unknown_field(config, known, names, depth)
        known = known[name]
    if isinstance(known, ConfigDict):
        raise flag_errors.group(field, known)


def _set_up_logging() -> None:
    handler = _Handler()
    handler.setFormatter(_Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("retrieval")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    logging.getLogger("absl").addFilter(_is_news)
    sys.unraisablehook = _report_dropped


def _is_news(record: logging.LogRecord) -> bool:
    """Whether nobody tells it otherwise: Orbax logs with a traceback what it raises, too."""
    return record.levelno < logging.ERROR or "orbax" not in record.pathname


def _report_dropped(dropped: "sys.UnraisableHookArgs") -> None:
    """What Python cannot raise, unless it comes again, or comes after the error that has ended a save."""
    error = dropped.exc_value
    if not isinstance(error, KeyboardInterrupt) and str(error) != "Event loop is closed":
        sys.__unraisablehook__(dropped)


class _Handler(logging.StreamHandler):
    """Messages stand on lines of their own: a bar of progress gives way, and comes again below."""

    def emit(self, record: logging.LogRecord) -> None:
        bar: Any = getattr(sys.modules.get("tqdm"), "tqdm", None)  # not imported for this alone
        with bar.external_write_mode(self.stream) if getattr(bar, "_instances", ()) else contextlib.nullcontext():
            super().emit(record)


class _Formatter(logging.Formatter):
    """Messages may quote the data."""

    def format(self, record: logging.LogRecord) -> str:
        return terminal.printable(super().format(record))


def _explain(error: OSError) -> str:
    where = error.filename2 or error.filename or "a file"  # the first of two is what a copy was to be of
    if error.errno == errno.ENOSPC:
        return f"{where}: the disk is full; free some space and start again, what was finished is kept"
    remedy = _REMEDIES.get(error.errno or 0, "mend that and start again, what was finished is kept")
    return f"{where}: {error.strerror or error}; {remedy}"


def _fail(message: str) -> NoReturn:
    print(terminal.printable(f"error: {message}"), file=sys.stderr, flush=True)
    ending.leave(2, message)

"""The command line: flags, errors and the order of the stages.

    python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart
    python -m retrieval.main --workdir=runs/quickstart --stage=search --query='how do I read a zip archive'

Any field of a config can be set from the shell: --config.train.batch_size=64. For a work directory that exists,
--config can be left out: it keeps its own.
"""

import errno
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # what matters comes as an exception

from absl import app, flags
from absl import logging as absl_logging
from ml_collections import ConfigDict, config_flags

from retrieval import files
from retrieval.errors import UserError, unknown_name

REPOSITORY = Path(__file__).resolve().parent.parent

_CONFIG = config_flags.DEFINE_config_file("config", None, "The experiment: configs/NAME.py, or configs/NAME.py:local.")
_WORKDIR = flags.DEFINE_string("workdir", None, "Folder that everything is written to, and resumed from.")
_STAGE = flags.DEFINE_list(
    "stage", None, "Stages to run instead of those that the config lists, such as evaluate,report."
)
_QUERY = flags.DEFINE_string("query", "", "What --stage=search looks for.")


def main(argv: Sequence[str]) -> None:
    """Runs the stages that the config lists, or those of --stage."""
    # Worker processes import this file: they must not have to import JAX and TensorFlow with it.
    from retrieval.stages.run import Run, open_run, run_stage
    from retrieval.stages.table import STAGES

    absl_logging.set_verbosity(absl_logging.WARNING)  # seqio and orbax tell much of no use here
    if len(argv) > 1:
        raise UserError(f"unexpected argument '{argv[1]}'; every setting is a flag such as --config.train.steps=100")
    if not _WORKDIR.value:
        raise UserError("--workdir is missing: the folder to write to, such as --workdir=runs/quickstart")
    config = _CONFIG.value or _config_of(Path(_WORKDIR.value))
    names = _STAGE.value or config.stages
    for name in names:
        if name not in STAGES:
            raise unknown_name("stage", name, STAGES)
    run = Run(config, Path(_WORKDIR.value), REPOSITORY / "requirements.lock", _QUERY.value)
    open_run(run, STAGES)
    for name in names:
        run_stage(run, name, STAGES)


def _config_of(folder: Path) -> ConfigDict:
    if not (folder / "config.json").exists():
        raise UserError(
            "--config is missing: an experiment such as --config=configs/ict_bfs_wlp.py:local "
            f"(it can be left out only for a work directory that has a config.json; {folder} has none)"
        )
    return ConfigDict(files.read_json(folder / "config.json"))


def parse_flags(argv: Sequence[str]) -> list[str]:
    """Parses the flags, with an error for people where the flag libraries raise one for programmers.

    Raises:
      UserError: no config, a config that does not load, an unknown field or flag, or a value of the wrong type.
    """
    overrides = [argument for argument in argv if argument.startswith("--config.")]
    plain = [argument for argument in argv if argument not in overrides]
    rest = _parse(plain)
    if _CONFIG.value is None:
        if overrides:
            raise UserError(f"{overrides[0]}: --config is missing, the experiment whose field is to be set")
        return rest
    for override in overrides:
        _check_field(_CONFIG.value, override.removeprefix("--config.").split("=")[0])
    flags.FLAGS.unparse_flags()
    return _parse(argv)


def _parse(argv: Sequence[str]) -> list[str]:
    # ml_collections looks for the overrides in sys.argv, whatever the arguments that are parsed.
    given, sys.argv = sys.argv, list(argv)
    try:
        rest = flags.FLAGS(argv)
        if not isinstance(
            _CONFIG.value, ConfigDict | None
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
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logger = logging.getLogger("retrieval")
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)


def _explain(error: OSError) -> str:
    where = error.filename or "a file"
    if error.errno == errno.ENOSPC:
        return f"{where}: the disk is full; free some space and start again, what was finished is kept"
    return f"{where}: {error.strerror or error}"


def run() -> None:
    """Entry point: a `UserError` becomes one message and exit status 2."""
    _set_up_logging()
    try:
        app.run(main, flags_parser=parse_flags)
    except UserError as error:
        sys.exit(_fail(str(error)))
    except OSError as error:
        sys.exit(_fail(_explain(error)))


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    run()

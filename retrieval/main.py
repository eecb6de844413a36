"""A run: the stages that a config lists, in one work directory.

    python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart
    python -m retrieval.main --workdir=runs/quickstart --stage=search --query='how do I read a zip archive'

Any field of a config can be set from the shell: --config.train.batch_size=64. For a work directory that exists,
--config can be left out: it keeps its own.
"""

from collections.abc import Sequence
from pathlib import Path

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from retrieval import command_line, hosts
from retrieval.errors import UserError, unknown_name
from retrieval.work_config import read_config

REPOSITORY = Path(__file__).resolve().parent.parent

_STAGE = flags.DEFINE_list(
    "stage", None, "Stages to run instead of those that the config lists, such as evaluate,report."
)
_QUERY = flags.DEFINE_string("query", "", "What --stage=search looks for.")
_MULTIHOST = flags.DEFINE_bool("multihost", False, "This is one of the hosts of a pod, which share the work directory.")


def main(argv: Sequence[str]) -> None:
    """Runs the stages that the config lists, or those of --stage."""
    absl_logging.set_verbosity(absl_logging.WARNING)  # jax, seqio and orbax tell much of no use here
    command_line.refuse_arguments(argv)
    workdir = command_line.WORKDIR.value
    if not workdir:
        raise UserError("--workdir is missing: the folder to write to, such as --workdir=runs/quickstart")
    if _MULTIHOST.value:
        hosts.connect()
    # Worker processes import this file: they must not have to import JAX and TensorFlow with it.
    from retrieval.stages.run import Run, open_run, run_stage
    from retrieval.stages.table import STAGES

    config = command_line.CONFIG.value or _config_of(Path(workdir))
    names = _STAGE.value or config.stages
    for name in names:
        if name not in STAGES:
            raise unknown_name("stage", name, STAGES)
    run = Run(config, Path(workdir), REPOSITORY / "requirements.lock", _QUERY.value)
    hosts.on_first(lambda: open_run(run, STAGES))
    for name in names:
        run_stage(run, name, STAGES)


def _config_of(folder: Path) -> ConfigDict:
    if not (folder / "config.json").exists():
        raise UserError(
            "--config is missing: an experiment such as --config=configs/ict_bfs_wlp.py:local "
            f"(it can be left out only for a work directory that has a config.json; {folder} has none)"
        )
    return read_config(folder / "config.json")


if __name__ == "__main__":
    command_line.run(main)

"""A run: the stages that a config lists, in one work directory.

    python -m retrieval.main --config=configs/ict_bfs_wlp.py:local --workdir=runs/quickstart
    python -m retrieval.main --workdir=runs/quickstart --stage=search --query='how do I read a zip archive'

A published model over your own documents, in runs/own. A RUN that is left out is the newest one that can be searched:

    retrieval own DATA/docs --model=hf:NAME --labels=DATA/pairs.jsonl
    retrieval search 'how do I reset my password' RUN
    retrieval serve RUN

One alone, or a model and a reranker, as an API without documents:

    retrieval serve --model=hf:NAME --model=hf:RERANKER

Hard negatives for your pairs by any embedder, finished runs side by side:

    retrieval --config=mine:hf:NAME --workdir=runs/mined --config.pairs.files=DATA/pairs.jsonl
    retrieval compare runs/one runs/two

Other words before the flags are stages: `evaluate report` is --stage=evaluate,report.
`inspect` looks at the passages and the labelled queries of a run for what may be wrong with them.
Any field of a config can be set from the shell: --config.train.batch_size=64. A work directory keeps its config, with
the fields that were set. So --config can be left out for one that exists, and other fields can be set in it. A run that
was cut off goes on with the same command. Stages are listed by --help=stages. So are experiments, formats, fields and
flags by their names. All of it is --help=all, and what has a word --help=WORD.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from absl import flags
from absl import logging as absl_logging
from ml_collections import ConfigDict

from retrieval import LOCK, __version__, cli, verbs
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, hosts, signals
from retrieval.common.runtime.store import is_url

_STAGE = flags.DEFINE_list("stage", None, "Stages to run instead of the config's, such as evaluate,report.")
_QUERY = flags.DEFINE_string("query", "", "What --stage=search looks for.")
_QUERIES = flags.DEFINE_string("queries", "", "A file of queries for --stage=search, one a line; - is standard input.")
_JSON = flags.DEFINE_bool("json", False, "--stage=search prints JSON, one line a query.")
_GRACE = flags.DEFINE_float("grace", signals.GRACE, "Seconds from SIGTERM to the end; on spot machines of GKE 12.", 1)
_CHECK = flags.DEFINE_bool("check", False, "Check config, files and devices, and end before the first stage.")
_MULTIHOST = flags.DEFINE_bool("multihost", False, "This is one of the hosts of a pod, which have one work directory.")


def main(argv: Sequence[str]) -> None:
    """Runs the stages that the config lists, or those of --stage."""
    absl_logging.set_verbosity(absl_logging.WARNING)  # jax, seqio and orbax tell much of no use here
    cli.refuse_arguments(argv)
    workdir = cli.WORKDIR.value
    if not workdir:
        raise UserError("--workdir is missing: the folder to write to, such as --workdir=runs/quickstart")
    signals.grace = _GRACE.value
    if _MULTIHOST.value:
        hosts.connect()
    if not is_url(workdir):
        _run(workdir, Path(workdir))
    elif _STAGE.value and _only_read(_STAGE.value):
        copy = artefacts.copy_of(workdir)
        _run(workdir, copy.folder, copy)
    else:
        with artefacts.opened(workdir) as copy, artefacts.logged(copy):
            _run(workdir, copy.folder, copy)


def _run(workdir: str, folder: Path, copy: artefacts.Artefacts | None = None) -> None:
    """Runs the stages in a folder, which may be the local one of a work directory on a store."""
    # Worker processes import this file: they must not have to import JAX and TensorFlow with it.
    from retrieval.config import experiment

    config = cli.config() or cli.kept(folder, f"--workdir={workdir}")
    names = _stages(config)
    hosts.on_first(lambda: experiment.check_early(config))  # before imports that take a second
    from retrieval.data.labelled import sources
    from retrieval.runs.pipeline import overrides, preflight
    from retrieval.runs.pipeline.protected import check_run
    from retrieval.runs.pipeline.run import Run
    from retrieval.runs.pipeline.runner import run_stage, take_run
    from retrieval.runs.pipeline.work_directory import SearchRequest

    sources.fill_in(config)
    overrides.settle(config, cli.overridden())
    search = SearchRequest(_QUERY.value, _QUERIES.value, _JSON.value)
    run = Run(config, folder, LOCK, search, copy)
    hosts.on_first(lambda: preflight.check(run, names, cli.overridden()))
    if _CHECK.value:
        print(f"checked: {', '.join(names)}")
        return
    experiment.load_plugins(config.plugins)  # on every host
    hosts.on_first(lambda: check_run(run) if _only_read(names) else take_run(run))
    for name in names:
        run_stage(run, name)


def _stages(config: ConfigDict) -> Sequence[str]:
    """The stages to run."""
    if "runs" in config and "stages" not in config:
        raise UserError("--config is that of a study, which is a table of runs: python -m retrieval.study does them")
    if _STAGE.value == []:
        raise UserError("--stage has no value: name stages, such as --stage=evaluate,report, or leave it out")
    names: Any = _STAGE.value or config.get("stages", ())
    if "search" not in names and (options := [flag.name for flag in (_QUERY, _QUERIES, _JSON) if flag.value]):
        raise UserError(f"--{options[0]} is of --stage=search, and the stages are {', '.join(names)}: leave it out")
    return names


def _only_read(names: Sequence[str]) -> bool:
    """Whether the stages write nothing: then no other run has to wait."""
    from retrieval.runs.pipeline.stage import STAGES

    return all(name in STAGES and STAGES[name].reads_only for name in names)


def manual(word: str = "") -> str:
    """What --help says."""
    from retrieval import reference

    return reference.manual(__doc__ or "", word)


def program() -> None:
    """The command `retrieval`: as `python -m retrieval.main`, which finds plugins in the current folder.

    `retrieval compare` is the module of this name. Other words are those of `verbs`, or stages.
    """
    sys.path.insert(0, "")
    if sys.argv[1:2] == ["compare"]:
        from retrieval import compare

        del sys.argv[1]
        compare.program()
    elif len(sys.argv) == 1:
        from retrieval import reference

        print(reference.first(__doc__ or ""))
    elif sys.argv[1:] == ["--version"]:
        print(f"retrieval {__version__}")
    else:
        cli.run(main, manual, computes=lambda: _STAGE.value != ["search"], written_out=verbs.written_out)


if __name__ == "__main__":
    program()

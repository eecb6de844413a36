"""A study: a table of runs, each a plain `retrieval.main` run in a folder of its own, and their results side by side.

    python -m retrieval.study --config=configs/studies/pretraining_tasks.py:local --workdir=runs/tasks \\
        --config.corpus=DUMP.xml.bz2 --config.vocab=vocab.txt --config.questions=dev-v1.1.json

A run may name others of the table as its `base` and its `train.init_from`: it starts when they are finished, so what
runs share is done once. Called again, a study goes on: finished runs are skipped, failed ones are tried again.
"""

import logging
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from absl import flags
from absl import logging as absl_logging

from retrieval import cli
from retrieval.common.errors import UserError
from retrieval.common.runtime.store import is_url
from retrieval.studies import run_table, study_report
from retrieval.studies.run_table import Entry
from retrieval.studies.study_results import Results

_log = logging.getLogger("retrieval.study")  # also where the module is the program

_ONLY = flags.DEFINE_list("only", ["*"], "Runs of the study to do, with those that they need: names or patterns, a,b*.")
_LIST = flags.DEFINE_bool("list", False, "Prints the runs of the study and which are done, and does none.")
_LOG = "log.txt"


def main(argv: Sequence[str]) -> int:
    """Does the runs that are not finished, writes the study's report; returns 1 where a run failed."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    cli.refuse_arguments(argv)
    config, workdir = cli.config(), cli.WORKDIR.value
    if config is None or "runs" not in config or "stages" in config:
        raise UserError("--config is missing, or not that of a study: configs/studies/pretraining_tasks.py:local")
    if not workdir or is_url(workdir):
        raise UserError("--workdir is the folder of a study, which must be on a disk: --workdir=runs/tasks")
    folder, report = Path(workdir), study_report.report_of(config)
    table = run_table.read_table(config, folder)
    report.check(table)
    chosen, done = run_table.select(table, _ONLY.value), run_table.finished(table)
    run_table.check_table(chosen)
    if _LIST.value:
        print("\n".join(f"{'done' if name in done else 'to do'}\t{name}" for name in chosen))
        return 0
    run_table.take_table(table, folder)
    run_table.check_sources(config, [entry for name, entry in chosen.items() if name not in done])

    def write_report() -> None:
        study_report.write_study(folder, report, Results(folder, done, run_table.pretrainings(table)))

    failed = do_runs(chosen, done, write_report)
    write_report()
    for name, reason in failed.items():
        _log.error("%s: %s", name, reason)
    _log.info("report: %s", folder / "study.md")
    return 1 if failed else 0


def do_runs(table: Mapping[str, Entry], done: set[str], after_each: Callable[[], None]) -> dict[str, str]:
    """Does the runs of a table that are not in `done`, one after the other, and adds them to it.

    Returns:
      The runs that failed, or that need one that did: name -> why. The rest is carried on.
    """
    waiting, failed = [entry for name, entry in table.items() if name not in done], dict[str, str]()
    _log.info("%d runs, of which %d are finished", len(table), len(table) - len(waiting))
    with tempfile.TemporaryDirectory(prefix="retrieval-compiled-") as compiled:
        for entry in waiting:
            began, name = time.perf_counter(), entry.name
            if missing := failed.keys() & set(entry.needs):
                failed[name] = f"not started, it needs {', '.join(missing)}"
            elif status := _finish(_start(entry, compiled)):
                failed[name] = _why(entry.run.folder / _LOG, status)
                _log.error("%s failed: %s", name, failed[name])
            else:
                done.add(name)
                _log.info("%s: done in %.0f s", name, time.perf_counter() - began)
                try:
                    after_each()
                except UserError as error:  # what a run has that cannot be shown ends no other
                    _log.warning("the report could not be written: %s", error)
    return failed


def _start(entry: Entry, compiled: str) -> subprocess.Popen:
    """Starts a run; what it prints goes to log.txt in its folder.

    Args:
      compiled: a folder for compiled functions: runs of one study compile the same ones.
    """
    command = [sys.executable, "-m", "retrieval.studies.one_run", f"--workdir={entry.run.folder}"]
    variables = os.environ | {"JAX_COMPILATION_CACHE_DIR": compiled}
    with open(entry.run.folder / _LOG, "w", encoding="utf-8") as log:
        # Its standard input is closed when this process is gone, however it ends.
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT, env=variables)


def _finish(process: subprocess.Popen) -> int:
    """The exit status of a run. Where this process is interrupted the run ends first: its folder is then free."""
    try:
        return process.wait()
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _why(log: Path, status: int) -> str:
    """The last error of a run's log."""
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    ending = f"killed by signal {-status}" if status < 0 else (errors or lines or ["no output"])[-1]
    return f"{ending} (all of it: {log})"


if __name__ == "__main__":
    cli.run(main, computes=lambda: True)

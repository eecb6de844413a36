"""Stages of a finished run that are done again in a copy of it, with SIGKILLs: the copy has to end as the run did."""

import dataclasses
import shutil
import signal

import numpy as np

from support import children
from support.run_results import metrics, state

# What the stages of the methods write; a log of training has times, so its metrics are compared.
WRITES = {
    "train": ["checkpoints", "metrics"],
    "tokens": ["tokens"],
    "maxsim": ["late"],
    "sparse": ["sparse", "searched"],
    "evaluate": ["runs", "per_query", "results.json"],
}


def without(run, folder, stages):
    """A copy of a run as it was before some stages."""
    written = {name for stage in stages for name in WRITES[stage]} | {"report.md", "report.html", "plots"}
    shutil.copytree(run.folder, folder, ignore=lambda place, _: written if place == str(run.folder) else ())
    for stage in stages:
        (folder / "stages" / f"{stage}.json").unlink()
    return dataclasses.replace(run, folder=folder)


def is_struck(copy, run, stages, landmark, after=0.0):
    """Does the stages in a process that kills itself; whether it came to that.

    Args:
      landmark: a file or a folder, or a pattern of one that the finished run has: the process waits for it.
      after: seconds that it waits then.
    """
    place = next(run.folder.glob(landmark)).relative_to(run.folder) if "*" in landmark else landmark
    log, moment = copy.folder.with_suffix(".log"), children.Strike([copy.folder / place], after)
    code = children.run([f"--workdir={copy.folder}", f"--stage={','.join(stages)}"], log, moment)
    assert code in (0, -signal.SIGKILL), log.read_text()
    return code != 0


def assert_same(copy, run, stages):
    """All that the stages wrote is the same, to the last bit."""
    for name in (name for stage in stages if stage != "train" for name in WRITES[stage]):
        ours, theirs = (
            {path.relative_to(of.folder): path for path in [of.folder / name, *(of.folder / name).rglob("*")]}
            for of in (copy, run)
        )
        assert ours.keys() == theirs.keys()
        for path in (path for path in ours if ours[path].is_file() and path.suffix != ".json"):
            assert _contents(ours[path]) == _contents(theirs[path]), path
    if "train" in stages:
        assert metrics(copy.folder) == metrics(run.folder)
        for a, b in zip(state(copy.folder), state(run.folder), strict=True):
            np.testing.assert_array_equal(a, b)


def _contents(path):
    """The bytes of a file; of lists of a search all but the seconds that it took."""
    if "searched" not in path.parts:
        return path.read_bytes()
    with np.load(path) as arrays:
        return [arrays[name].tobytes() for name in ("scores", "rows")]

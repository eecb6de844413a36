"""Ranked lists of stages that search in a way of their own; `evaluate` puts them beside those of its indexes.

searched/STAGE/SET.npz    scores and rows [Q, K], the system's name, and what the report says about the search
"""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from retrieval import files
from retrieval.data.sets.beir import Judged
from retrieval.errors import UserError
from retrieval.pipeline import records
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Read
from retrieval.stages.rankings import Ranking

_FOLDER = "searched"


def folder_of(stage: str) -> str:
    """Where a stage writes its lists, below the work directory; it names the folder in `Stage.writes`."""
    return f"{_FOLDER}/{stage}"


def read_by_evaluate() -> list[Read]:
    """The stages that write lists: a run reads those that it has."""
    return [Read(name, optional=True) for name, stage in STAGES.items() if folder_of(name) in stage.writes]


def write(folder: Path, name: str, ranking: Ranking) -> None:
    """Writes the lists of a set, whole or not at all."""
    facts = {"system": ranking.system, "seconds": ranking.seconds, "step": ranking.step, "notes": dict(ranking.notes)}
    folder.mkdir(parents=True, exist_ok=True)
    with files.atomic(folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, scores=ranking.scores, rows=ranking.rows, facts=np.array(json.dumps(facts)))


def read(run: Run, value: Judged) -> Iterator[Ranking]:
    """The lists of a set, of every stage that wrote some.

    Raises:
      UserError: they are of another number of queries than the set has, or damaged.
    """
    for stage in (read.stage for read in read_by_evaluate()):
        holder = run.holder(stage)
        path = holder.folder / folder_of(stage) / f"{value.name}.npz"
        if not (records.is_done(holder, stage) and path.exists()):
            continue
        arrays = files.read_arrays(path, f"--stage={stage} makes it again")
        facts = json.loads(str(arrays["facts"]))
        if len(arrays["rows"]) != len(value.queries) or arrays["rows"].max(initial=-1) >= len(value.candidates):
            raise UserError(f"{path}: older than the set '{value.name}'; --stage={stage} makes it again")
        yield Ranking(
            facts["system"], arrays["scores"], arrays["rows"], facts["seconds"], facts["step"], notes=facts["notes"]
        )

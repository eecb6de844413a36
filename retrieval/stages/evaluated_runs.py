"""The runs that the stage `evaluate` wrote, for the stages that go on from them."""

from collections.abc import Mapping, Sequence

from retrieval.errors import UserError, unknown_name
from retrieval.pipeline.run import Run
from retrieval.stages import run_files
from retrieval.stages.run_files import RunFile


def check(run: Run, stage: str, depth: int, field: str) -> None:
    """Checks that runs are written, and long enough.

    Args:
      stage: that reads them.
      depth: how many results of a query it needs.
      field: of `config` that says so, with its value.

    Raises:
      UserError: `evaluate` writes none, or shorter ones.
    """
    evaluated = run.holder("evaluate").config
    if "evaluate" not in evaluated.stages or not evaluated.evaluate.runs:
        raise UserError(
            f"stage '{stage}' reads the runs that the stage 'evaluate' writes: add 'evaluate' to config.stages, with "
            "config.evaluate.runs=True, or name a run that has it in config.base"
        )
    if evaluated.evaluate.depth < depth:
        raise UserError(
            f"config.{field}, but runs have config.evaluate.depth={evaluated.evaluate.depth} results: raise that to "
            f"{depth}, or take fewer"
        )


def by_set(run: Run, sets: Sequence[str], systems: Mapping[str, str]) -> dict[str, dict[str, RunFile]]:
    """The run files of systems: set -> system -> file. A set that has none of them is left out.

    Args:
      systems: as tables name them; each with the field of `config` that asks for it.

    Raises:
      UserError: a system has no run for any set.
    """
    folder = run.holder("evaluate").folder / "runs"
    paths = {name: {path.stem: path for path in sorted((folder / name).glob("*.trec"))} for name in sets}
    known = dict.fromkeys(stem for of_set in paths.values() for stem in of_set)
    stems = {system: run_files.tag(system) for system in systems}
    for system, field in systems.items():
        if stems[system] not in known:
            raise unknown_name(f"system in config.{field}, which has no run in {folder},", system, known)
    runs = {
        name: {system: RunFile(system, of_set[stem]) for system, stem in stems.items() if stem in of_set}
        for name, of_set in paths.items()
    }
    return {name: of_set for name, of_set in runs.items() if of_set}

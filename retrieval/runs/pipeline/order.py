"""Whether stages can run in an order: what each of them reads is there, or made before, and of now."""

from collections.abc import Sequence
from typing import NoReturn

from retrieval.common.errors import UserError
from retrieval.runs.pipeline import protected
from retrieval.runs.pipeline.records import changed_fields, inconsistent, is_done, needs, stages_to_rerun, stale_stages
from retrieval.runs.pipeline.stage import STAGES, Protected, in_order, listed_as
from retrieval.runs.pipeline.work_directory import CONFIG, WorkDirectory


def check(run: WorkDirectory, names: Sequence[str]) -> None:
    """Checks that every stage comes after those whose output it reads, unless these have run.

    Raises:
      UserError: it does not, or it would read what is out of date, or was not made from the same.
    """
    for name in protected.extended(run) if (run.folder / CONFIG).exists() else ():
        if name not in names:
            fields = " or ".join(f"config.{field}" for field in (STAGES[name].protected or Protected()).extendable)
            again = ",".join(stages_to_rerun(run, [name, *names]))
            raise UserError(
                f"stage '{name}' is finished with less than {fields} says: --stage={again} goes on with it, or "
                "leave the field as it was"
            )
    for place, name in enumerate(names):
        if need := _later(run, names, place):
            raise _out_of_order(run, names, name, need)
        check_stage(run, names, place)
        _check_fields(run, names, place)


def check_stage(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """Checks that what the stage at a place reads is there, of now, and made from the same; errors as of `check`."""
    check_is_there(run, names, place)
    _check_outdated(run, names, place)
    if misfit := inconsistent(run, names[place]):
        raise UserError(
            f"stage '{names[place]}' would read what stage '{misfit.stage}' of {misfit.owner.display_path} made of "
            f"another '{misfit.other}' than that of {misfit.ours.display_path}, which it reads too: add "
            f"'{misfit.stage}' to config.stages, or take the '{misfit.other}' of the base"
        )


def check_is_there(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """Checks that the stage at a place is the run's own, and that what it reads has run, or will have."""
    name = names[place]
    if (listed := listed_as(name, run.config.stages)) != name:
        raise UserError(f"stage '{name}': the model of this run is that of its stage '{listed}': --stage={listed}")
    if run.owner(name) is not run:
        there = run.owner(name).display_path
        raise UserError(f"stage '{name}' is one of the base, {there}: run it there, or add it to config.stages")
    for read, owner in needs(run, name):
        need, is_own = read.stage, owner.folder == run.folder
        if (is_own and need in names[:place]) or is_done(owner, need):
            continue
        if need in owner.config.stages and is_own:
            _refuse_missing(run, names, name, need)
        if need in owner.config.stages:
            raise UserError(
                f"stage '{name}' reads what stage '{need}' writes, not run in {owner.display_path}: run it there"
            )
        if read.required:  # it may have run all the same, named in the shell
            raise UserError(
                f"stage '{name}' reads what stage '{need}' writes, and no run has that: run --stage={need},{name}, or "
                "set config.base to a run that has it"
            )


def _check_fields(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """What a stage reads of its own run was made with the fields of now; of a fixed stage `fixed` says so."""
    for read, owner in needs(run, names[place]):
        need = read.stage
        if owner.folder != run.folder or need in names[:place] or read.is_optional or not is_done(owner, need):
            continue
        if not STAGES[need].protected and (changes := changed_fields(run, need)):
            field, (old, new) = next(iter(changes.items()))
            raise UserError(
                f"stage '{names[place]}' would read what stage '{need}' made with config.{field}={old!r}, which is "
                f"{new!r} now: put it back, or make all of it anew: --stage={','.join(stages_to_rerun(run, names))}"
            )


def _later(run: WorkDirectory, names: Sequence[str], place: int) -> str | None:
    """A stage behind the one at `place` whose output that reads."""
    for read, owner in needs(run, names[place]):
        is_seen = not read.from_base_if_later or read.stage in owner.config.stages
        is_behind = read.stage in names[place + 1 :] and read.stage not in names[:place]
        if owner.folder == run.folder and is_seen and is_behind and not read.is_optional:
            return read.stage
    return None


def _out_of_order(run: WorkDirectory, names: Sequence[str], name: str, need: str) -> UserError:
    """For a stage before one whose output it reads. Where no order will do, one of the two is to come from a base."""
    order = in_order(names, run.config)
    if any(_later(run, order, place) for place in range(len(order))):
        return UserError(
            f"stage '{name}' reads what '{need}' writes, and each waits for the other: set config.base to a run that "
            "has a corpus, or leave one of them out of config.stages"
        )
    return UserError(f"stage '{name}' comes before '{need}', whose output it reads: --stage={','.join(order)}")


def _refuse_missing(run: WorkDirectory, names: Sequence[str], name: str, need: str) -> NoReturn:
    """Says all that has to run, or that a corpus or a model which is missing could be read from the base."""
    why = f"stage '{name}' reads what stage '{need}' writes"
    if STAGES[need].protected and any(need in base.config.stages for base in run.chain[1:]):
        raise UserError(
            f"{why}. config.stages has '{need}', so that is not read from config.base={run.config.base}: leave it out, "
            f'with --config.stages="{tuple(names)}"'
        )
    raise UserError(f"{why}, which has not run: --stage={','.join(stages_to_rerun(run, names))}")


def _check_outdated(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """What a stage reads was made from what there is when it comes to read it."""
    name = names[place]
    stale = stale_stages(run, name, names[:place])
    if not stale:
        return
    need, owner = stale[0]
    is_own = owner.folder == run.folder
    again = [need for need, of in stale if of.folder == owner.folder]
    again = stages_to_rerun(run if is_own else owner, [*names, *again] if is_own else again)
    where = "" if is_own else f" in {owner.display_path}"
    raise UserError(
        f"stage '{name}' would read what stage '{need}' made{where} before what that reads was made anew: make it "
        f"again{where}: --stage={','.join(again)}"
    )

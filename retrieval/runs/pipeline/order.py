"""Whether stages can run in an order: what each of them reads is there, or made before, and of now."""

from collections.abc import Sequence

from retrieval.common.errors import UserError
from retrieval.runs.pipeline import protected
from retrieval.runs.pipeline.records import (
    changed_fields,
    check_consistent,
    is_done,
    needs,
    stages_to_rerun,
    stale_stages,
)
from retrieval.runs.pipeline.stage import STAGES, Protected, in_order, listed_as
from retrieval.runs.pipeline.work_directory import CONFIG, WorkDirectory


def check(run: WorkDirectory, names: Sequence[str]) -> None:
    """Checks that every stage comes after those whose output it reads, unless these have run, and are of now."""
    for name in protected.extended(run) if (run.folder / CONFIG).exists() else ():
        if name not in names:
            fields = " or ".join(f"config.{field}" for field in (STAGES[name].protected or Protected()).extendable)
            again = f"--stage={','.join(stages_to_rerun(run, [name, *names]))} goes on with it"
            raise UserError(f"stage '{name}' is finished with less than {fields} says: {again}, or put that back")
    for place, name in enumerate(names):
        if need := _later(run, names, place):
            raise _out_of_order(run, names, name, need)
        check_stage(run, names, place)
        _check_fields(run, names, place)


def check_stage(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """Checks that what the stage at a place reads is there, of now, and made from the same."""
    check_is_there(run, names, place)
    _check_outdated(run, names, place)
    check_consistent(run, names[place])


def check_is_there(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """Checks that the stage at a place is the run's own, and that what it reads has run, or will have."""
    name = names[place]
    if (listed := listed_as(name, run.config.stages)) != name:
        raise UserError(f"stage '{name}': the model of this run is that of its stage '{listed}': --stage={listed}")
    if (owner := run.owner(name)) is not run:
        way = "run it there, or add it to config.stages"
        raise UserError(f"stage '{name}' is one of the base, {owner.display_path}: {way}")
    for read, owner in needs(run, name):
        need, is_own = read.stage, owner.folder == run.folder
        if (is_own and need in names[:place]) or is_done(owner, need):
            continue
        why = f"stage '{name}' reads what stage '{need}' writes"
        if need in owner.config.stages and not is_own:
            raise UserError(f"{why}, not run in {owner.display_path}: run it there")
        if need in owner.config.stages:
            if STAGES[need].protected and any(need in base.config.stages for base in run.chain[1:]):
                way = f'leave it out, with --config.stages="{tuple(names)}"'
                raise UserError(f"{why}. config.stages has '{need}', so that of config.base is not read: {way}")
            raise UserError(f"{why}, which has not run: --stage={','.join(stages_to_rerun(run, names))}")
        if read.required:  # it may have run all the same, named in the shell
            way = f"run --stage={need},{name}, or set config.base to a run that has it"
            raise UserError(f"{why}, and no run has that: {way}")


def _check_fields(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """What a stage reads of its own run was made with the fields of now; of a fixed stage `fixed` says so."""
    for read, owner in needs(run, names[place]):
        need = read.stage
        if owner.folder != run.folder or need in names[:place] or read.is_optional or not is_done(owner, need):
            continue
        if not STAGES[need].protected and (changes := changed_fields(run, need)):
            field, (old, new) = next(iter(changes.items()))
            what = f"what stage '{need}' made with config.{field}={old!r}, which is {new!r} now"
            way = f"put it back, or make all of it anew: --stage={','.join(stages_to_rerun(run, names))}"
            raise UserError(f"stage '{names[place]}' would read {what}: {way}")


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
        way = "set config.base to a run that has a corpus, or leave one of them out of config.stages"
        return UserError(f"stage '{name}' reads what '{need}' writes, and each waits for the other: {way}")
    return UserError(f"stage '{name}' comes before '{need}', whose output it reads: --stage={','.join(order)}")


def _check_outdated(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """What a stage reads was made from what there is when it comes to read it."""
    name = names[place]
    if not (stale := stale_stages(run, name, names[:place])):
        return
    need, owner = stale[0]
    again = [need for need, of in stale if of.folder == owner.folder]
    is_own = owner.folder == run.folder
    again = stages_to_rerun(run, [*names, *again]) if is_own else stages_to_rerun(owner, again)
    where = "" if is_own else f" in {owner.display_path}"
    what = f"what stage '{need}' made{where} before what that reads was made anew"
    raise UserError(f"stage '{name}' would read {what}: make it again{where}: --stage={','.join(again)}")

"""Whether stages can run in an order: what each of them reads is there, or made before, and of now."""

from collections.abc import Sequence
from typing import NoReturn

from retrieval.errors import UserError
from retrieval.pipeline import runner
from retrieval.pipeline.records import changed_fields, is_done, mixed, needs, outdated, to_make
from retrieval.pipeline.stage import STAGES, Fixed, Read, in_order
from retrieval.pipeline.work_directory import CONFIG, WorkDirectory


def check(run: WorkDirectory, names: Sequence[str]) -> None:
    """Checks that every stage comes after those whose output it reads, unless these have run.

    Raises:
      UserError: it does not, or it would read what is out of date, or was not made from the same.
    """
    for name in runner.grown(run) if (run.folder / CONFIG).exists() else ():
        if name not in names:
            fields = " or ".join(f"config.{field}" for field in (STAGES[name].fixed or Fixed()).grows)
            again = ",".join(to_make(run, [name, *names]))
            raise UserError(
                f"stage '{name}' is finished with less than {fields} says: --stage={again} goes on with it, or "
                "leave the field as it was"
            )
    for place, name in enumerate(names):
        if run.holder(name) is not run:
            there = run.holder(name).place
            raise UserError(f"stage '{name}' is one of the base, {there}: run it there, or add it to config.stages")
        if need := _later(run, names, place):
            raise _out_of_order(run, names, name, need)
        for read, holder in needs(run, name):
            _check_is_there(run, names, place, read, holder)
        _check_outdated(run, names, place)
        if found := mixed(run, name):
            raise runner.refusal(found, name)


def _check_is_there(run: WorkDirectory, names: Sequence[str], place: int, read: Read, holder: WorkDirectory) -> None:
    """What a stage reads has run with the fields of now, or will have."""
    name, need, is_own = names[place], read.stage, holder.folder == run.folder
    if is_own and need in names[:place]:
        return
    is_listed, is_made = need in holder.config.stages, is_done(holder, need)
    if is_listed and not is_made and is_own:
        _refuse_missing(run, names, name, need)
    if is_listed and not is_made:
        raise UserError(
            f"stage '{name}' reads what stage '{need}' writes, which has not run in {holder.place}: run it there"
        )
    if read.required and not is_made:  # it may have run all the same, named in the shell
        raise UserError(
            f"stage '{name}' reads what stage '{need}' writes, and no run has that: run --stage={need},{name}, or set "
            "config.base to a run that has it"
        )
    # Of a stage that is fixed `check_run` says which fields differ.
    if (
        is_own
        and is_made
        and not read.is_optional
        and not STAGES[need].fixed
        and (changes := changed_fields(run, need))
    ):
        field, (old, new) = next(iter(changes.items()))
        raise UserError(
            f"stage '{name}' would read what stage '{need}' made with config.{field}={old!r}, which is {new!r} now: "
            f"put it back, or make all of it anew: --stage={','.join(to_make(run, names))}"
        )


def _later(run: WorkDirectory, names: Sequence[str], place: int) -> str | None:
    """A stage behind the one at `place` whose output that reads."""
    for read, holder in needs(run, names[place]):
        is_seen = not read.earlier or read.stage in holder.config.stages
        is_behind = read.stage in names[place + 1 :] and read.stage not in names[:place]
        if holder.folder == run.folder and is_seen and is_behind and not read.is_optional:
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
    if STAGES[need].fixed and any(need in base.config.stages for base in run.chain[1:]):
        raise UserError(
            f"{why}. config.stages has '{need}', so that is not read from config.base={run.config.base}: leave it out, "
            f'with --config.stages="{tuple(names)}"'
        )
    raise UserError(f"{why}, which has not run: --stage={','.join(to_make(run, names))}")


def _check_outdated(run: WorkDirectory, names: Sequence[str], place: int) -> None:
    """What a stage reads was made from what there is when it comes to read it."""
    name = names[place]
    stale = outdated(run, name, names[:place])
    if not stale:
        return
    need, holder = stale[0]
    is_own = holder.folder == run.folder
    again = [need for need, of in stale if of.folder == holder.folder]
    again = to_make(run if is_own else holder, [*names, *again] if is_own else again)
    where = "" if is_own else f" in {holder.place}"
    raise UserError(
        f"stage '{name}' would read what stage '{need}' made{where} before what that reads was made anew: make it "
        f"again{where}: --stage={','.join(again)}"
    )

"""Whether stages can run in an order: what each of them reads is there, or made before, and of now."""

from collections.abc import Sequence
from typing import NoReturn

from retrieval.errors import UserError
from retrieval.pipeline import runner
from retrieval.pipeline.records import fitting, has_settings, is_done, needs, outdated, to_make
from retrieval.pipeline.stage import STAGES
from retrieval.pipeline.work_directory import CONFIG, WorkDirectory


def check(run: WorkDirectory, names: Sequence[str]) -> None:
    """Checks that every stage comes after those whose output it reads, unless these have run.

    Raises:
      UserError: it does not, or it would read what is out of date, or what was made with another model.
    """
    for name in runner.grown(run) if (run.folder / CONFIG).exists() else ():
        if name not in names:
            fields = " or ".join(f"config.{field}" for field in STAGES[name].grows)
            again = ",".join(to_make(run, [name, *names]))
            raise UserError(
                f"stage '{name}' is finished with less than {fields} says: --stage={again} goes on with it, or "
                "leave the field as it was"
            )
    for place, name in enumerate(names):
        if run.holder(name) is not run:
            place = run.holder(name).place
            raise UserError(f"stage '{name}' is one of the base, {place}: run it there, or add it to config.stages")
        if need := _later(run, names, place):
            raise _out_of_order(run, names, name, need)
        for need, holder in needs(run, name):
            is_own = holder.folder == run.folder
            made = is_own and need in names[:place]
            missing = need in holder.config.stages and not made and not is_done(holder, need)
            if need in STAGES[name].requires and need not in (*holder.config.stages, *names[:place]):
                _refuse_absent(run, name, need)
            if missing and is_own:
                _refuse_missing(run, names, name, need)
            if missing:
                where = f" in {holder.place}: run it there"
                raise UserError(f"stage '{name}' reads what stage '{need}' writes, which has not run{where}")
            # Of a stage that is fixed `check_run` says which values differ.
            if is_own and not made and not STAGES[need].fixed and is_done(run, need):
                _check_settings(run, names, name, need)
        _check_outdated(run, names, place)
        _check_model(run, name)


def _later(run: WorkDirectory, names: Sequence[str], place: int) -> str | None:
    """A stage behind the one at `place` whose output that reads."""
    for need, holder in needs(run, names[place]):
        is_seen = holder is run or need in holder.config.stages  # by a stage that looks back
        if holder.folder == run.folder and is_seen and need in names[place + 1 :] and need not in names[:place]:
            return need
    return None


def _out_of_order(run: WorkDirectory, names: Sequence[str], name: str, need: str) -> UserError:
    """For a stage before one whose output it reads. Where no order will do, one of the two is to come from a base."""
    order = [stage for stage in STAGES if stage in names]
    if any(_later(run, order, place) for place in range(len(order))):
        return UserError(
            f"stage '{name}' reads what '{need}' writes, and each waits for the other: set config.base to a run that "
            "has a corpus, or leave one of them out of config.stages"
        )
    return UserError(f"stage '{name}' comes before '{need}', whose output it reads: --stage={','.join(order)}")


def _refuse_absent(run: WorkDirectory, name: str, need: str) -> None:
    """No run of the chain lists the stage; it may have run all the same, named in the shell."""
    if not is_done(run, need):
        raise UserError(
            f"stage '{name}' reads what stage '{need}' writes, and no run has that: run --stage={need},{name}, or set "
            "config.base to a run that has it"
        )


def _refuse_missing(run: WorkDirectory, names: Sequence[str], name: str, need: str) -> NoReturn:
    """Says all that has to run, or that a corpus or a model which is missing could be read from the base."""
    why = f"stage '{name}' reads what stage '{need}' writes"
    if STAGES[need].fixed and any(need in base.config.stages for base in run.chain[1:]):
        raise UserError(
            f"{why}. config.stages has '{need}', so that is not read from config.base={run.config.base}: leave it out, "
            f'with --config.stages="{tuple(names)}"'
        )
    raise UserError(f"{why}, which has not run: --stage={','.join(to_make(run, names))}")


def _check_settings(run: WorkDirectory, names: Sequence[str], name: str, need: str) -> None:
    """What a stage reads was made with the settings that the config names."""
    if not has_settings(run, need):
        fields = ", ".join(f"config.{field}" for field in STAGES[need].settings)
        raise UserError(
            f"stage '{name}' would read what stage '{need}' made with other settings; of {fields} one has changed "
            f"since: put it back, or make all of it anew: --stage={','.join(to_make(run, names))}"
        )


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


def _check_model(run: WorkDirectory, name: str) -> None:
    """What a stage reads of others was made with one model: that of a base is not that of a run on it that trains."""
    stage = STAGES[name]
    seen = run.before(name) if stage.looks_back else run
    for need, holder in fitting(run, name):
        if holder.folder == run.folder or STAGES[need].looks_back:
            continue  # what a stage looks back at is of the model before on purpose
        for below, theirs in needs(holder, need):
            ours = seen.holder(below)
            if STAGES[below].of_model and below in theirs.config.stages and ours.folder != theirs.folder:
                raise UserError(
                    f"stage '{name}' would read what stage '{need}' of {holder.place} made of its own '{below}', and "
                    f"beside it that of {ours.place}: add '{need}' to config.stages"
                )

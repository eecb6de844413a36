"""Fields that are set in the shell: they count for what this run does, not for what its base has done."""

import json
from collections.abc import Collection

from ml_collections import ConfigDict

from retrieval.errors import UserError
from retrieval.pipeline.records import get_field
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES
from retrieval.recipes.initial_parameters import TOWERS
from retrieval.recipes.recipe import recipe_of


def check(run: Run, names: Collection[str], fields: Collection[str]) -> None:
    """Checks that a stage of this run reads each field, where one of the base would read another value of its own.

    Args:
      names: the stages that are asked for.
      fields: what was set in the shell.

    Raises:
      UserError: only the base would read it.
    """
    _check_towers(run, names, fields)
    for field in fields:
        readers = [name for name, stage in STAGES.items() if _is_among((*stage.settings, *stage.uses), field)]
        if {*run.config.stages, *names} & set(readers):
            continue
        for name in readers:
            holder = run.holder(name)
            if holder is not run and _value(holder.config, field) != _value(run.config, field):
                raise UserError(
                    f"config.{field}: no stage of this run reads it, but '{name}', which is one of the base, "
                    f"{holder.place}: set it there, or add '{name}' to config.stages"
                )


def _check_towers(run: Run, names: Collection[str], fields: Collection[str]) -> None:
    """The towers of a base are as they were trained there, also where a stage of this run encodes with them."""
    trainer = run.holder("train")
    is_own = trainer is run or "train" not in trainer.config.stages
    if is_own or not recipe_of(trainer.config).has_towers or "plan" in names:
        return
    for field in fields:
        if _is_among(TOWERS, field) and _value(trainer.config, field) != _value(run.config, field):
            raise UserError(
                f"config.{field}: the towers of {trainer.place} were trained with another value, and are used as they "
                "are: leave it out, or train others, in a --workdir of their own"
            )


def _is_among(fields: Collection[str], field: str) -> bool:
    """Whether a field, or a group that it is in, is one of these."""
    return any(f"{field}.".startswith(f"{other}.") for other in fields)


def _value(config: ConfigDict, field: str) -> str:
    """As JSON, for which lists and tuples are the same."""
    try:
        return json.dumps(get_field(config, field))
    except KeyError:  # of a version without the field
        return ""

"""The table of what refreshes make. `config.mine.refresh_makes` names an entry, which `train` alone opens.

A refresh makes a *version* of the labelled pairs with the parameters that the model has at that step. A version is a
folder of shards as the stage `pairs` writes them. The kind (`refresh.RefreshKind`) says which records these have;
`refresh` and `versions` do the rest: when one is made, where it lies, which batches are of it, and how a run that was
cut off goes on.
"""

from typing import Any

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.registry import Table
from retrieval.config.fields import declared

FOLDER = "refreshed"
REFRESHES: Table[Any] = Table("kind of refresh", "retrieval.runs.pairs", "refresh")
# The fields that decide when there is a refresh, and which negatives one mines.
_WHEN = tuple(f"mine.{name}" for name in ("refresh_makes", "refresh_every", "patience", "turn_rate", "refresh_share"))
MINED = ("split.seed", *(f"mine.{name}" for name in ("answers", "negatives", "first", "last")))
MINED += tuple(f"mine.{name}" for name in ("margin", "relative_margin", "sampling"))  # which negatives are mined


def settings() -> list[str]:
    """The fields that decide what refreshes make, and when; of a kind with fields of its own the group of these."""
    own = (path for path, field in declared().items() if field.partner[0] == "mine.refresh_makes")
    return [*_WHEN, *MINED, *dict.fromkeys(path.rpartition(".")[0] for path in own)]


def refresh_of(config: ConfigDict) -> Any:
    """The `RefreshKind` that a config refreshes pairs by; None where it refreshes none."""
    return REFRESHES.find(config.mine.refresh_makes, "config.mine.refresh_makes") if config.mine.refresh_every else None


def check(config: ConfigDict) -> None:
    """Checks that a refresh would come, and change something, and what it makes."""
    mine, steps = config.mine, config.train.steps
    if mine.patience and not config.loop.validate_every:
        way = "set config.loop.validate_every, or config.mine.patience=0"
        raise UserError(f"config.mine.patience={mine.patience} counts validations, and there are none: {way}")
    if mine.refresh_every and not mine.patience and mine.refresh_every >= steps:
        what = f"never comes in config.train.steps={steps}: lower it, or set 0 for no refresh"
        raise UserError(f"config.mine.refresh_every={mine.refresh_every} {what}")
    if mine.turn_rate and (schedule := config.train.schedule) != "linear":
        way = f"and config.train.schedule={schedule} is another: set that to linear, or config.mine.turn_rate=0"
        raise UserError(f"config.mine.turn_rate={mine.turn_rate:g} plans a linear schedule anew, {way}")
    if refresh := refresh_of(config):
        refresh.check(config)

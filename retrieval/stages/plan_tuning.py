"""A plan that tunes itself: settings of the same training, compiled one after the other, and the fastest that fits.

The fields are tried in turn, each with the best values of those before it. So the number of programs is the sum of the
values and not their product. What was compiled is kept in `plan_tuning.json`: a tuning that was cut off goes on.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import files
from retrieval.models.transformer import REMAT
from retrieval.runtime import ending, signals

_log = logging.getLogger(__name__)

KEPT = "plan_tuning.json"
_BATCH = "train.batch_size"
_CHUNKS, _SHARED = 3, 8  # chunk sizes that are tried at most, and devices that share parameters at most
_UNROLLED = (1, 2, 4)  # and all layers
_REFUSAL = 120  # characters of a refusal that are shown

# The fields whose values are tried in turn.
FIELDS = ("model.remat", "train.chunk_size", "model.unroll", "mesh.fsdp")

# Dotted fields of the config and their values.
Settings = dict[str, Any]


class Outcome(NamedTuple):
    """What a plan says of some settings.

    Attributes:
      fits: None where the memory of a device is not known.
      peak: bytes of a device; None where they are not known.
      cost: of an example, in seconds or in operations; None where the step does not compile.
      refusal: why the settings do not go together, or do not compile.
      cost_by: what says the cost.
    """

    fits: bool | None
    peak: float | None
    cost: float | None
    refusal: str = ""
    cost_by: str = ""

    def is_better(self, other: "Outcome") -> bool:
        """What fits is better than what does not; then what costs less, or needs less where neither fits.

        A bound says nothing beside an estimate: neither is better.
        """
        if (self.fits is False) != (other.fits is False):
            return other.fits is False
        if self.fits is False:
            return _or_infinite(self.peak) < _or_infinite(other.peak)
        return self.cost_by == other.cost_by and _or_infinite(self.cost) < _or_infinite(other.cost)


class Tuning(NamedTuple):
    """What was tried, in order, beginning with the config as it is.

    Attributes:
      best: settings of the same training.
      others: settings with another batch, which train otherwise.
    """

    tried: list[tuple[Settings, Outcome]]
    best: Settings
    others: list[tuple[Settings, Outcome]]

    @property
    def outcome(self) -> Outcome:
        """That of the best settings."""
        return next(outcome for settings, outcome in self.tried if settings == self.best)

    @property
    def first(self) -> Outcome:
        """The first that fits, which the others are compared with; that of the config as it is where none does."""
        outcomes = [outcome for _, outcome in self.tried]
        return next((outcome for outcome in outcomes if outcome.fits is not False), outcomes[0])


def choices(
    settings: Settings, possible_chunks: Sequence[int], batch_size: int, layers: int, devices: int, *, packs: bool
) -> list[list[Settings]]:
    """For each field, or fields that go together, what is tried beside the values of the config itself.

    Args:
      settings: the values of FIELDS in the config.
      possible_chunks: values that `train.chunk_size` may have.
      layers: of the model.
      packs: whether texts are packed.
    """
    chunks = [size for size in possible_chunks if size < batch_size]
    tried: tuple[Sequence[Any], ...] = (
        list(REMAT),
        [0, *chunks[-_CHUNKS:]],
        sorted({*(count for count in _UNROLLED if count <= layers), layers}),
        [size for size in range(1, _SHARED + 1) if devices % size == 0],
    )
    alone = [[{name: value} for value in values if value != settings[name]] for name, values in zip(FIELDS, tried)]
    plain = {"data.pack.query": 0.0, "data.pack.document": 0.0, "data.pack.auto": False}  # auto would pack them again
    unpacked: list[Settings] = [plain] if packs else []
    return [*alone, unpacked]


def batches(size: int) -> list[Settings]:
    """Half the batch, where it has one, and twice the batch."""
    return [{_BATCH: count} for count in (size // 2, 2 * size) if count]


def tune(
    measure: Callable[[Settings], Outcome],
    tried_fields: Sequence[Sequence[Settings]],
    tried_batches: Sequence[Settings],
    path: Path,
    of: str,
) -> Tuning:
    """Tries settings, each once.

    Args:
      measure: plans the config with some settings.
      path: the file of what has been compiled.
      of: tells the config, the devices and the compiler: what was kept of others is not used.

    Raises:
      PreemptedError: the process was told to stop; what was compiled is kept.
    """
    known: dict[str, Any] = files.read_json(path) if path.exists() else {}
    most = 1 + sum(map(len, tried_fields)) + len(tried_batches)
    tried: list[tuple[Settings, Outcome]] = []

    def outcome_of(settings: Settings) -> Outcome:
        key = files.fingerprint([of, sorted(settings.items())])
        if key not in known:
            if ending.is_stopping():
                raise signals.PreemptedError(f"interrupted while tuning; {path} has what was compiled")
            _log.info("plan: try %d of at most %d: %s", len(tried) + 1, most, shown(settings) or "as it is")
            known[key] = list(measure(settings))
            files.write_json(path, known)
        outcome = Outcome(*known[key])
        tried.append((settings, outcome))
        return outcome

    best: Settings = {}
    least = outcome_of(best)
    for options in tried_fields:
        for option in options:
            settings = best | option
            if (found := outcome_of(settings)).is_better(least):
                best, least = settings, found
    others = [(best | batch, outcome_of(best | batch)) for batch in tried_batches]
    return Tuning(tried[: len(tried) - len(others)], best, others)


def shown(settings: Mapping[str, Any]) -> str:
    """Settings as the shell takes them."""
    return " ".join(f"--config.{name}={value}" for name, value in settings.items())


def rows(tuning: Tuning) -> Iterator[list[Any]]:
    """A row for each try: settings, whether it fits, GiB of a device, its speed beside the first that fits, a word."""
    first = tuning.first
    for settings, outcome in (*tuning.tried, *tuning.others):
        fits = {True: "yes", False: "no", None: None}[outcome.fits]
        peak = f"{outcome.peak / 2**30:.2f}" if outcome.peak is not None else None
        speed, word = None, outcome.refusal[:_REFUSAL] or None
        if fits != "no" and outcome.cost_by != first.cost_by:
            word = f"not compared: its cost is by {outcome.cost_by}"
        elif fits != "no" and first.cost and outcome.cost:
            speed = f"{first.cost / outcome.cost:.3f}"
        yield [shown(settings) or "as it is", fits, peak, speed, word]


def _or_infinite(value: float | None) -> float:
    return float("inf") if value is None else value

"""A work of a day on an accelerator, in a process of its own.

    python -m benchmarks.accelerator.work step --data=DATA --out=OUT --seconds=120 --card="NVIDIA H200"

The module of a work has `attempts`, which yields what it measures, one after the other. Each is a name, and a function
that yields numbers: these are saved at once.
"""

import argparse
import functools
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.accelerator.data import Pack
from benchmarks.accelerator.outcomes import CUT_OFF, DONE, FAILED, Outcome, note
from benchmarks.worker import MissingError
from retrieval.common.errors import UserError, first_line
from retrieval.training.chips import CHIPS, Chip

LEAST = 10  # seconds: nothing begins in less


class Attempt(NamedTuple):
    """Something that a work measures.

    Attributes:
      name: as the page has it.
      measure: yields numbers, whenever there are more.
    """

    name: str
    measure: Callable[[], Iterable[Mapping[str, Any]]]


class Given:
    """What a work gets.

    Attributes:
      data: the folder of the packed data.
      outcome: the file of the work.
      ends_at: the time on the monotonic clock when no more is to be begun.
      card: the kind of the accelerator; '' of a CPU, on which all sizes are those of a toy.
    """

    def __init__(self, data: Path, out: Path, work: str, ends_at: float, card: str):
        self.data, self.ends_at, self.card = data, ends_at, card
        self._out, self._work = out, work

    @functools.cached_property
    def pack(self) -> Pack:
        """The packed data; raises `UserError` where there is none, or one of another version."""
        return Pack(self.data)

    @property
    def is_toy(self) -> bool:
        return not self.card

    @property
    def chip(self) -> Chip | None:
        """The card in the table of chips; None where it is not there."""
        return next((chip for chip in CHIPS if chip.kind == self.card), None)

    def open(self, settings: Any) -> Outcome:
        """The file of the work, of these settings; raises `UserError` where it is of others."""
        self.outcome = Outcome(self._out, self._work, settings)
        return self.outcome

    def left(self) -> float:
        """Seconds until no more is to be begun."""
        return self.ends_at - time.monotonic()


def perform(given: Given, attempts: Iterator[Attempt], skip: Sequence[str]) -> None:
    """Makes every attempt that is not done. One that fails is noted, and the others go on.

    Args:
      skip: names of those that an earlier process has died of.
    """
    for name, measure in attempts:
        values = given.outcome.values
        runs, failures = values["runs"], values["failures"]
        if runs.get(name, {}).get("status") == DONE or name in skip:
            continue
        if given.left() < LEAST:
            print(f"{name}: no time is left for it", flush=True)
            continue
        runs.pop(name, None)  # the last one is what a process that dies was at
        run = runs[name] = {"status": CUT_OFF, "card": given.card or "CPU"}
        given.outcome.save()
        try:
            for numbers in measure():
                run |= numbers
                given.outcome.save()
            run["status"] = DONE
            failures.pop(name, None)
        except Exception as error:  # whatever it is, the others go on
            if not isinstance(error, UserError | MissingError):
                traceback.print_exc()
            run["status"], failures[name] = FAILED, why(error)
            print(f"{name}: {failures[name]}", flush=True)
        given.outcome.save()


def why(error: Exception) -> str:
    """An error in a line."""
    if "RESOURCE_EXHAUSTED" in str(error):
        return "the device has not enough memory"
    if isinstance(error, UserError | MissingError):
        return str(error)
    return f"{type(error).__name__}: {first_line(error)}"


def main(arguments: Sequence[str]) -> None:
    """Makes the attempts of a work, as far as the time goes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", help="a module of this folder")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--skip", type=json.loads, default=[], help="names that a process has died of in this call")
    parser.add_argument("--card", default="", help="the accelerator; none on a CPU")
    asked = parser.parse_args(arguments)
    given = Given(asked.data, asked.out, asked.work, time.monotonic() + asked.seconds, asked.card)
    try:
        attempts = importlib.import_module(f"benchmarks.accelerator.{asked.work}").attempts(given)
        perform(given, attempts, asked.skip)
    except (UserError, MissingError) as error:
        note(asked.out, f"{asked.work}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])

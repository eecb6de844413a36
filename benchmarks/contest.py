"""The same work by several systems in turns, each in a process of its own: medians, ratios, what is to be reached."""

import contextlib
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import markdown, number, spread
from benchmarks.worker import PROCESSOR, MissingError
from retrieval.common.errors import UserError

_Rounds = Sequence[Mapping[str, float]]

_REPOSITORY = Path(__file__).resolve().parent.parent

# Memory that stays with the process in place of going back to the kernel after every step, as in launch/environment.sh.
_ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    "HF_HUB_OFFLINE": "1",
    "JAX_PLATFORMS": "cpu",
    "PYTHONWARNINGS": "ignore",
}


@dataclasses.dataclass(frozen=True)
class System:
    """What takes part: a module with `benchmarks.worker.serve`, and the settings that it gets (JSON)."""

    name: str
    module: str
    settings: Mapping[str, Any]

    @property
    def is_peer(self) -> bool:
        """Whether it runs in the interpreter of the peers."""
        return self.module.startswith("benchmarks.peers.")


@dataclasses.dataclass(frozen=True)
class Target:
    """What our best system is to reach against another one, as a ratio of a measure: at least or at most."""

    measure: str
    against: str
    to_reach: float
    at_most: bool = False


@dataclasses.dataclass(frozen=True)
class Work:
    """A row of the benchmark.

    Attributes:
      systems: those that a target is against are the others, all the rest are ours.
      warm: turns of a process that are not counted, before the one that is; 0 for measures of a process's whole life.
    """

    title: str
    systems: Sequence[System]
    targets: Sequence[Target]
    warm: int = 1

    def ours(self) -> list[str]:
        """The names of our systems, the settings among which the best counts."""
        others = {target.against for target in self.targets}
        return [system.name for system in self.systems if system.name not in others]


class Process:
    """A system that has got ready."""

    def __init__(self, system: System, python: str, environment: Mapping[str, str]):
        """Raises `MissingError`, and `UserError` for an interpreter that is none or a system that fails."""
        self._name = system.name
        # The variable is set by our tokeniser's module, for our worker processes.
        environment = {k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"} | environment
        command = [python, "-m", system.module, json.dumps(dict(system.settings))]
        pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._process = subprocess.Popen(command, cwd=_REPOSITORY, env=environment, **pipes)
        try:
            self._answer()
        except BaseException:
            self.close()
            raise

    def turn(self) -> dict[str, Any]:
        """Measures once."""
        with contextlib.suppress(BrokenPipeError):  # it has ended: there will be no answer
            print(file=self._process.stdin, flush=True)
        return self._answer()

    def close(self) -> None:
        """Ends the process; one that does not end in time is killed."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise UserError(f"'{self._name}' ended with status {self._process.wait()}; what it said is above")
        answer = json.loads(line)
        if "missing" in answer:
            raise MissingError(answer["missing"])
        return answer


def hold(work: Work, rounds: int, peer_python: str | None) -> dict[str, Any]:
    """Lets the systems take turns.

    Args:
      peer_python: the interpreter that has the peers; None leaves the peers out.

    Returns:
      The spread of every measure of every system, the ratio of our best system to each that a target names (the spread
      of the ratios within rounds), and the systems that were left out, with the reason.

    Raises:
      UserError: a system of ours is missing, or any system fails.
    """
    missing: dict[str, str] = {}
    rows: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as cache:
        # What was compiled in an earlier round is not part of a start: there nothing is kept.
        environment = _ENVIRONMENT | ({"JAX_COMPILATION_CACHE_DIR": cache} if work.warm else {})
        for _ in range(rounds):
            for system in work.systems:
                if system.name not in missing:
                    try:
                        row = _turn(system, work.warm, peer_python, environment)
                    except MissingError as error:
                        if not system.is_peer:
                            raise UserError(f"'{system.name}' cannot run: {error}") from error
                        missing[system.name] = str(error)
                        rows.pop(system.name, None)
                    else:
                        rows.setdefault(system.name, []).append(row)
    measured = {name: {key: spread([row[key] for row in taken]) for key in taken[0]} for name, taken in rows.items()}
    return {"title": work.title, "systems": measured, "ratios": list(_ratios(work, rows)), "missing": missing}


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ratios of all works, as Markdown."""
    header = ["work", "ours", "against", "measure", "ours", "theirs"]
    header += ["ratio", "lowest", "highest", "to reach", "processor time"]
    return markdown(header, (line for result in results for line in _lines(result)))


def details(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Every measure of every system, as Markdown."""
    return markdown(
        ["work", "system", "measure", "median", "lowest", "highest"],
        (
            [result["title"], system, measure, *map(number, values.values())]
            for result in results
            for system, measures in result["systems"].items()
            for measure, values in measures.items()
        ),
    )


def _turn(system: System, warm: int, peer_python: str | None, environment: Mapping[str, str]) -> dict[str, Any]:
    """One turn, in a process of its own: while it runs, no other system has memory or threads."""
    python = peer_python if system.is_peer else sys.executable
    if python is None:
        raise MissingError("--alone")
    with contextlib.closing(Process(system, python, environment)) as process:
        for _ in range(warm):
            process.turn()
        return process.turn()


def _ratios(work: Work, rows: Mapping[str, _Rounds]) -> Iterator[dict[str, Any]]:
    for target in work.targets:
        ours = [name for name in work.ours() if name in rows]
        if not ours or target.against not in rows:
            continue
        sign = -1 if target.at_most else 1
        best = max(ours, key=lambda name: sign * _median(rows[name], target.measure))
        ratio = _ratio(rows[best], rows[target.against], target.measure)
        yield {
            "ours": best,
            **dataclasses.asdict(target),
            "values": [_median(rows[name], target.measure) for name in (best, target.against)],
            "ratio": ratio,
            "processor_ratio": _ratio(rows[best], rows[target.against], PROCESSOR)["median"],
            "reached": sign * ratio["median"] >= sign * target.to_reach,
        }


def _ratio(ours: _Rounds, theirs: _Rounds, measure: str) -> dict[str, float]:
    return spread([one[measure] / other[measure] for one, other in zip(ours, theirs)])


def _median(rounds: _Rounds, measure: str) -> float:
    return statistics.median(row[measure] for row in rounds)


def _lines(result: Mapping[str, Any]) -> Iterator[list[str]]:
    for row in result["ratios"]:
        ratio = [f"{value:.2f}" for value in row["ratio"].values()]
        goal = f"{'at most ' if row['at_most'] else ''}{row['to_reach']:g}{' ✓' if row['reached'] else ''}"
        yield [
            result["title"],
            row["ours"],
            row["against"],
            row["measure"],
            *map(number, row["values"]),
            f"**{ratio[0]}**",
            *ratio[1:],
            goal,
            f"{row['processor_ratio']:.2f}",
        ]
    for name, reason in result["missing"].items():
        yield [result["title"], "", name, f"left out: {reason}", *[""] * 7]

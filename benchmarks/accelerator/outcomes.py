"""What the works of a day on an accelerator have found: a JSON file for each, and a page of all of them."""

import json
import statistics
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import markdown, number
from retrieval.common import files
from retrieval.common.errors import UserError

DEPTHS = (1, 5, 10, 50, 100)
DONE, CUT_OFF, FAILED = "done", "cut off", "failed"  # of an attempt
_CALLS = "calls.json"


class Outcome:
    """The file of a work, which is whole after every `save`.

    Attributes:
      values: what it holds: `settings`, and whatever the work adds.
    """

    def __init__(self, folder: Path, work: str, settings: Any):
        """Reads what earlier calls have left.

        Raises:
          UserError: that is of other settings, or no such file.
        """
        self._folder, self._path = folder, folder / f"{work}.json"
        self.values: dict[str, Any] = {"settings": settings, "runs": {}, "failures": {}}
        if self._path.exists():
            self.values |= read(self._path)
            if self.values["settings"] != json.loads(json.dumps(settings)):
                raise UserError(f"{self._path}: measured with other data or settings: give another --out")

    def save(self) -> None:
        """Writes it, and the page."""
        files.write_json(self._path, self.values)
        try:
            write_page(self._folder)
        except Exception:  # a page can be written anew, and time on an accelerator does not come again
            traceback.print_exc()


def read(path: Path) -> dict[str, Any]:
    """The values of a file.

    Raises:
      UserError: it is damaged.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
        return {"settings": value["settings"], "runs": value["runs"], "failures": value["failures"], **value}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path}: cannot be read ({error}): move it away, and its work begins again") from error


def note(folder: Path, line: str) -> None:
    """Says a line, and keeps it for the page."""
    print(f"== {line}", flush=True)
    path = folder / _CALLS
    lines = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    files.write_json(path, [*lines, line])


def write_page(folder: Path) -> None:
    """`results.md`, of all that is there."""
    lines = ["# A day on an accelerator", ""]
    for path in sorted(path for path in folder.glob("*.json") if path.name != _CALLS):
        values = read(path)
        lines += [*(_curves(values) if path.stem == "curves" else _table(path.stem, values)), *_unfinished(values), ""]
    if (path := folder / _CALLS).exists():
        lines += ["## Calls", "", *(f"- {line}" for line in json.loads(path.read_text(encoding="utf-8"))), ""]
    files.write_text(folder / "results.md", "\n".join(lines))


def _curves(values: Mapping[str, Any]) -> Iterator[str]:
    settings = values["settings"]["settings"]
    sizes, tuning = settings["model"], settings["fine_tuning"]
    runs = {key: run for key, run in values["runs"].items() if "seed" in run}
    runs = dict(sorted(runs.items(), key=lambda item: (item[1]["seed"], item[0])))
    yield "## Curves of pre-training"
    yield ""
    yield (
        f"Towers of L{sizes['num_layers']} H{sizes['hidden_size']} in {sizes['dtype']}, batches of "
        f"{settings['batch']:,} in chunks, {values.get('last', 0):,} steps. R@k, in percent, of "
        f"{values.get('questions', 0):,} questions among {values.get('candidates', 0):,} pairs of a sentence and its "
        f"paragraph. Every row is **one pre-training**."
    )
    for title, tuned in (("Without labels", False), (f"After {tuning['steps']} steps with labels", True)):
        yield from ["", f"### {title}", ""]
        header = ["pre-training", "seed", "steps", *(f"R@{k}" for k in DEPTHS)]
        header += ["examples/s", "tokens/s", "loss", "card"]
        yield from markdown(header, (row for run in runs.values() for row in _rows(run, tuned)))
    if len({run["seed"] for run in runs.values()}) > 1:
        yield from ["", "### Mean of the seeds, and their range", ""]
        header = ["pre-training", "labels", "seeds", *(f"R@{k}" for k in DEPTHS)]
        yield from markdown(header, (row for tuned in (False, True) for row in _merged(runs.values(), tuned)))


def _merged(runs: Iterable[Mapping[str, Any]], tuned: bool) -> Iterator[list[str]]:
    """What the seeds of each arm have found in the end."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for run in runs:
        point = run.get("tuned", {}) if tuned else (run.get("points") or [{}])[-1]
        if run["status"] == DONE and "R@1" in point:
            found.setdefault(run["label"], []).append(point)
    for label, points in found.items():
        cells = []
        for k in DEPTHS:
            values = [100 * point[f"R@{k}"] for point in points]
            cells.append(f"{statistics.mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        yield [label, "with" if tuned else "without", str(len(points)), *cells]


def _unfinished(values: Mapping[str, Any]) -> Iterator[str]:
    """What failed, and what was cut off."""
    lines = [f"- {key}: {why}" for key, why in values["failures"].items()]
    lines += [f"- {key}: {CUT_OFF}" for key, run in values["runs"].items() if run["status"] == CUT_OFF]
    yield from ["", *lines] if lines else []


def _rows(run: Mapping[str, Any], tuned: bool) -> Iterator[list[str]]:
    for point in [run[name] for name in ("tuned",) if name in run] if tuned else run["points"]:
        found = [f"{100 * point[f'R@{k}']:.2f}" if f"R@{k}" in point else "" for k in DEPTHS]
        speed = [f"{point[name]:,.0f}" if name in point else "" for name in ("examples/s", "tokens/s")]
        loss = f"{point['loss']:.3f}" if "loss" in point else ""
        count = run.get("devices", 1)  # of the first visit it is not noted: one
        card = run["card"] if count == 1 else f"{count} x {run['card']}"
        yield [run["label"], str(run["seed"]), f"{point['step']:,}", *found, *speed, loss, card]


def _table(work: str, values: Mapping[str, Any]) -> Iterator[str]:
    """The numbers of a work, an attempt a row."""
    runs = {key: run for key, run in values["runs"].items() if run["status"] != FAILED}
    names = list(dict.fromkeys(name for run in runs.values() for name in run if name != "status"))
    yield from [f"## {work.replace('_', ' ').capitalize()}", ""]
    settings = ", ".join(f"{name} {value}" for name, value in values["settings"].items())
    yield from [f"{settings}." if settings else "", ""]
    peak = values.get("peak")
    header = ["", *names, *(["of the card's peak"] if peak else [])]
    rows = []
    for key, run in runs.items():
        cells = [_cell(run.get(name, "")) for name in names]
        share = f"{run['TFLOP/s'] * 1e12 / peak:.1%}" if peak and "TFLOP/s" in run else ""
        rows.append([key, *cells, *([share] if peak else [])])
    yield from markdown(header, rows)


def _cell(value: Any) -> str:
    return number(value) if isinstance(value, float) else str(value)

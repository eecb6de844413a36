"""What the works of a day on an accelerator have found: a JSON file for each, and a page of all of them."""

import json
import traceback
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.measure import markdown
from retrieval import files
from retrieval.errors import UserError

DEPTHS = (1, 5, 10, 50, 100)
DONE = "done"


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


def write_page(folder: Path) -> None:
    """`results.md`, of all that is there."""
    lines = ["# A day on an accelerator", ""]
    for work, of_work in (("curves", _curves), ("base-step", _base_step)):
        if (path := folder / f"{work}.json").exists():
            lines += [*of_work(read(path)), ""]
    if (path := folder / "calls.json").exists():
        lines += ["## Calls", "", *(f"- {line}" for line in json.loads(path.read_text(encoding="utf-8"))), ""]
    files.write_text(folder / "results.md", "\n".join(lines))


def _curves(values: Mapping[str, Any]) -> Iterator[str]:
    settings = values["settings"]["settings"]
    sizes, tuning = settings["model"], settings["fine_tuning"]
    runs = dict(sorted(values["runs"].items(), key=lambda item: (item[1]["seed"], item[0])))
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
    yield from ["", *(f"- {key}: {why}" for key, why in values["failures"].items())]
    unfinished = [f"- {key}: {run['status']}" for key, run in runs.items() if run["status"] != DONE]
    yield from unfinished


def _rows(run: Mapping[str, Any], tuned: bool) -> Iterator[list[str]]:
    for point in [run[name] for name in ("tuned",) if name in run] if tuned else run["points"]:
        found = [f"{100 * point[f'R@{k}']:.2f}" if f"R@{k}" in point else "" for k in DEPTHS]
        speed = [f"{point[name]:,.0f}" if name in point else "" for name in ("examples/s", "tokens/s")]
        loss = f"{point['loss']:.3f}" if "loss" in point else ""
        yield [run["label"], str(run["seed"]), f"{point['step']:,}", *found, *speed, loss, run["card"]]


def _base_step(values: Mapping[str, Any]) -> Iterator[str]:
    settings = values["settings"]["settings"]["step"]
    yield f"## A step of {settings['model']}, {settings['batch']} pairs"
    yield ""
    names = ("tokens/s", "TFLOP/s", "peak MB of the device")
    rows = []
    for key, run in values["runs"].items():
        best = max(run["turns"], key=lambda turn: turn.get("tokens/s", turn.get("TFLOP/s", 0)))
        cells = [f"{best[name]:,.0f}" if name in best else "" for name in names]
        share = f"{best['TFLOP/s'] * 1e12 / run['peak']:.1%}" if run.get("peak") and "TFLOP/s" in best else ""
        rows.append([key, *cells, share, str(len(run["turns"]))])
    yield from markdown(["system", *names, "of the card's peak", "turns"], rows)
    yield from ["", *(f"- {key}: {why}" for key, why in values["failures"].items())]

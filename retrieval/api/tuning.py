"""Fine-tuning from Python: `retrieval.fine_tune` takes rows in memory, and gives a model and its report."""

import json
import numbers
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.api.finished_run import FinishedRun, run_program
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.store import is_url

OnMetrics = Callable[[int, dict[str, float]], Any]

_MISSING = "NaTType", "NAType"  # types of pandas
_STEP = re.compile(r"\bstep \d+: ")
_WARNING = re.compile(r"\b(WARNING|ERROR) |^error: ")


def fine_tune(
    model: str | Path,
    rows: Any,
    test: Any = None,
    workdir: str | Path = "runs/tuned",
    config: str = "embedding",
    on_metrics: OnMetrics | None = None,
    quiet: bool = False,
    **fields: Any,
) -> FinishedRun:
    """Fine-tunes a published model, or goes on with a training that was cut off.

    Ctrl-C saves where the training is. The rows lie in a folder beside the work directory, and the same call with the
    same rows goes on.

    Args:
      model: a folder, or a name of the hub, such as 'hf:sentence-transformers/all-MiniLM-L6-v2'.
      rows: a list of dicts, a data set of `datasets`, a table of pandas or Arrow, or an iterator of dicts. Columns
        are as in files of pairs: 'query', 'positive', perhaps 'negative'.
      test: rows to evaluate on, before and after, or the path of a file.
      workdir: the folder of the run.
      config: an experiment that starts from a model and reads pairs, such as 'embedding:local' for a laptop.
      on_metrics: called with the step and the metrics of every line of the log, of training and of validation. Where it
        returns False the training ends, and the report is that of the step that was reached.
      quiet: whether to show neither a bar nor warnings.
      fields: of the config, such as `steps=200`, `loss="..."` or any other of `train`; others by their dotted names:
        `**{"data.negatives": 1}`.

    Returns:
      The run: `.model` is the tuned model, `.report` and `.results` say what it brings.

    Raises:
      UserError: bad input; with the program's own message.
    """
    if is_url(str(workdir)):
        raise UserError(f"workdir={workdir}: fine_tune writes its rows beside it: name a folder of this machine")
    workdir = Path(os.path.expanduser(workdir))
    inputs = workdir.with_name(f"{workdir.name}-rows")
    overrides = {name if "." in name else f"train.{name}": value for name, value in fields.items()}
    overrides |= {"train.init_from": model, "pairs.files": _written(rows, inputs / "pairs.jsonl", "rows")}
    if test is not None:
        is_path = isinstance(test, str | Path)
        overrides["sets.labelled"] = test if is_path else _written(test, inputs / "test.jsonl", "test")
    flags = {"config": config, **{f"config.{name}": value for name, value in overrides.items()}}
    with _Watch(workdir / "metrics" / "train.jsonl", on_metrics, overrides.get("train.steps"), quiet) as watch:
        done = run_program(flags, workdir, watch)
        if watch.is_stopped:  # the saved step becomes the last one, and the other stages follow
            flags["config.train.steps"] = max(int(path.name) for path in (workdir / "checkpoints").glob("[0-9]*"))
            done = run_program(flags, workdir, watch)
    return done


class _Watch:
    """Reads what a run logs: its lines go to the callback and move a bar."""

    def __init__(self, path: Path, on_metrics: OnMetrics | None, steps: int | None, quiet: bool):
        from tqdm import auto  # a bar of a notebook, where this is one

        self._path, self._on_metrics, self._read = path, on_metrics, 0
        self._bar: Any = auto.tqdm(total=steps, desc="fine_tune", unit=" steps", disable=quiet)
        self.is_stopped = False

    def __enter__(self) -> "_Watch":
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.close()

    def __call__(self, line: str) -> bool:
        """Whether the run may go on after a line that it has printed."""
        if _WARNING.search(line) and not self._bar.disable:
            self._bar.write(line)
        if _STEP.search(line) and not self.is_stopped:  # the file of metrics is that of this process by then
            for text in self._path.read_text(encoding="utf-8").splitlines()[self._read :]:
                self._read += 1
                metrics = json.loads(text)
                step = metrics.pop("step")
                self._bar.update(step - self._bar.n)
                self._bar.set_postfix({"loss": metrics["loss"]} if metrics.get("loss") is not None else {})
                if self._on_metrics and self._on_metrics(step, metrics) is False:
                    self.is_stopped = True
                    return False
        return True


def _written(rows: Any, path: Path, what: str) -> str:
    """Writes rows as JSON lines, whole; returns the path."""
    lines = [files.json_line(row, f"{what}[{place}]") for place, row in enumerate(_records(rows, what))]
    if not lines:
        raise UserError(f"{what}: there is no row")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(path, "".join(lines))
    return str(path)


def _records(rows: Any, what: str) -> Iterator[dict[str, Any]]:
    """Rows of any of the kinds as dicts of plain values; a value that is missing is left out."""
    items: Iterable[Any] = rows
    if hasattr(rows, "to_batches"):  # a table of Arrow
        items = (row for batch in rows.to_batches() for row in batch.to_pylist())
    elif hasattr(rows, "columns") and hasattr(rows, "to_dict"):  # of pandas or Polars
        items = rows.to_dicts() if hasattr(rows, "to_dicts") else rows.to_dict("records")
    elif isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise UserError(f"{what}: a list of dicts, a table or an iterator is needed, not {type(rows).__name__}")
    for place, row in enumerate(items):
        if not isinstance(row, Mapping):
            raise UserError(f"{what}[{place}] is {row!r:.40}: a dict like {{'query': ..., 'positive': ...}} is needed")
        yield {str(name): value for name, value in row.items() if not _is_missing(value)}


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in _MISSING or (isinstance(value, numbers.Real) and value != value)

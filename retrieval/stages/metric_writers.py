"""Where the metrics of training go: JSON lines, TensorBoard, the log and, if asked for, Weights & Biases."""

import importlib
import json
import logging
import secrets
from pathlib import Path
from types import ModuleType
from typing import Protocol

import numpy as np

from retrieval import files
from retrieval.errors import UserError
from retrieval.libraries import clu_writers
from retrieval.runtime import hosts

_log = logging.getLogger(__name__)

_SHOWN = {
    "loss": "#.4g",  # RepBERT's is near 0.001
    "active": ".3f",
    "recall@1": ".3f",
    "accuracy": ".3f",
    "mlm": ".3f",
    "next_sentence": ".3f",
    "next_sentence_accuracy": ".3f",
    "reconstruction": ".3f",
    "kl": ".3f",
    "examples_per_second": ".1f",
    "tokens_per_second": ",.0f",
    "flops_per_second": ".3g",
    "share_of_peak": ".1%",
    "input_wait": ".1%",
    "validation/RR": ".4f",
    "validation/Success@10": ".4f",
    "validation/LogLikelihood": ".4f",
    "validation/NextSentenceAccuracy": ".3f",
}


class Writer(Protocol):
    """Takes the metrics of a step."""

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes them."""

    def close(self) -> None:
        """After the last step."""


def open_writer(folder: Path, after: int, project: str, settings: str) -> Writer:
    """The writer of a work directory; the hosts of a pod but the first write nothing.

    Args:
      project: of Weights & Biases, or '' for none.
      settings: what that shows as the run's config, JSON.
      after: the step that training goes on from; what a run that was cut off wrote for later ones is dropped.

    Raises:
      UserError: as `check`.
    """
    if not hosts.is_first():
        return _Several([])
    writers: list[Writer] = [_Files(folder / "metrics", after)]
    if project:
        writers.append(_Wandb(folder, project, settings))
    return _Several(writers)


def check(project: str) -> None:
    """Checks that Weights & Biases is installed where a project of it is named.

    Raises:
      UserError: it is not.
    """
    if project:
        _import_wandb(project)


class _Several:
    """Each of some writers."""

    def __init__(self, writers: list[Writer]):
        self._writers = writers

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        for writer in self._writers:
            writer(step, metrics)

    def close(self) -> None:
        for writer in self._writers:
            writer.close()


class _Files:
    """JSON lines, TensorBoard and the log; what a cut-off run wrote after `after` is dropped first.

    TensorBoard's events are written anew from the lines that are kept: of a step that is there twice it shows both.
    """

    def __init__(self, folder: Path, after: int):
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, path = folder, folder / "train.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        earlier = [line for line in lines if _step_of(line) <= after]
        files.write_text(path, "".join(f"{line}\n" for line in earlier))
        self._lines = path.open("a", encoding="utf-8")
        for events in folder.glob("events.out.tfevents.*"):
            events.unlink()
        self._tensorboard = clu_writers.SummaryWriter(str(folder))
        for metrics in map(json.loads, earlier):
            step, finite = metrics.pop("step"), {name: value for name, value in metrics.items() if value is not None}
            with files.naming_failures(folder):
                self._tensorboard.write_scalars(step, finite)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        finite = {name: value if np.isfinite(value) else None for name, value in metrics.items()}
        with files.naming_failures(self._folder):
            self._lines.write(json.dumps({"step": step, **finite}) + "\n")
            self._lines.flush()
            self._tensorboard.write_scalars(step, metrics)
        shown = [f"{name} {metrics[name]:{form}}" for name, form in _SHOWN.items() if name in metrics]
        if shown:
            _log.info("step %d: %s", step, ", ".join(shown))

    def close(self) -> None:
        with files.naming_failures(self._folder):
            self._lines.close()
            self._tensorboard.close()


class _Wandb:
    """A run of Weights & Biases, which goes on under its own id when training does.

    Its directory is the work directory. WANDB_MODE=offline keeps it there, for `wandb sync`. Steps that are done again
    after a cut it ignores, and these have the same metrics.
    """

    def __init__(self, folder: Path, project: str, settings: str):
        path = folder / "metrics" / "wandb_id"
        if not path.exists():
            files.write_text(path, secrets.token_hex(4) + "\n")
        self._run = _import_wandb(project).init(
            project=project,
            id=path.read_text(encoding="utf-8").strip(),
            resume="allow",
            name=folder.resolve().name,
            dir=str(folder),
            config=json.loads(settings),
        )

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        self._run.log(metrics, step=step)

    def close(self) -> None:
        self._run.finish()


def _import_wandb(project: str) -> ModuleType:
    try:
        return importlib.import_module("wandb")
    except ImportError as error:
        raise UserError(
            f"config.loop.wandb={project}: the package wandb cannot be imported ({error}): pip install wandb, or leave "
            "the field empty; TensorBoard has the same metrics"
        ) from error


def _step_of(line: str) -> float:
    """The step of a line of train.jsonl; infinity for one that was cut off or is none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return np.inf

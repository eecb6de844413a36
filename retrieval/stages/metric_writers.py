"""Where the metrics of training go: JSON lines, TensorBoard and the log."""

import json
import logging
from pathlib import Path

import numpy as np

from retrieval import files
from retrieval.libraries import clu_writers
from retrieval.runtime import hosts

_log = logging.getLogger(__name__)

_SHOWN = {
    "loss": "#.4g",  # RepBERT's is near 0.001
    "active": ".3f",
    "recall@1": ".3f",
    "masked_ids": ".2f",
    "masked_margin": ".2f",
    "masked_guide": ".2f",
    "scale": ".3f",
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


class Writer:
    """JSON lines, TensorBoard and the log; the hosts of a pod but the first write nothing.

    What a run that was cut off wrote after the step `after`, which training goes on from, is dropped first.
    TensorBoard's events are written anew from the lines that are kept: of a step that is there twice it shows both.
    """

    def __init__(self, folder: Path, after: int):
        self._writes = hosts.is_first()
        if not self._writes:
            return
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
        """Writes the metrics of a step."""
        if not self._writes:
            return
        finite = {name: value if np.isfinite(value) else None for name, value in metrics.items()}
        with files.naming_failures(self._folder):
            self._lines.write(json.dumps({"step": step, **finite}) + "\n")
            self._lines.flush()
            self._tensorboard.write_scalars(step, metrics)
        shown = [f"{name} {metrics[name]:{form}}" for name, form in _SHOWN.items() if name in metrics]
        if shown:
            _log.info("step %d: %s", step, ", ".join(shown))

    def close(self) -> None:
        """After the last step."""
        if not self._writes:
            return
        with files.naming_failures(self._folder):
            self._lines.close()
            self._tensorboard.close()


def _step_of(line: str) -> float:
    """The step of a line of train.jsonl; infinity for one that was cut off or is none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return np.inf

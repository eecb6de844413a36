"""The log of a training: JSON lines, trackers and what is shown; each source."""

import json
import logging
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.runtime import hosts
from retrieval.data.labelled import sources
from retrieval.evaluation.result_files import read_training
from retrieval.recipes.source_objective import LOSS, SHARE
from retrieval.runs.fitting import trackers

_log = logging.getLogger(__name__)

_SHOWN = {
    "loss": "#.4g",  # RepBERT's is near 0.001
    **dict.fromkeys(("active", "recall@1"), ".3f"),
    **dict.fromkeys(("masked_ids", "masked_margin", "masked_guide"), ".2f"),
    **dict.fromkeys(("accuracy", "mlm", "next_sentence", "next_sentence_accuracy"), ".3f"),
    **dict.fromkeys(("reconstruction", "kl"), ".3f"),
    "examples_per_second": ".1f",
    "tokens_per_second": ",.0f",
    "flops_per_second": ".3g",
    **dict.fromkeys(("share_of_peak", "input_wait"), ".1%"),
    **dict.fromkeys(("validation/RR", "validation/Success@10", "validation/LogLikelihood"), ".4f"),
}


class Writer:
    """Metrics as JSON lines, for trackers and in the log; the hosts of a pod but the first write nothing.

    What a run that was cut off wrote after the step `after`, which training goes on from, is dropped first.
    """

    def __init__(self, folder: Path, after: int, config: ConfigDict):
        self._writes = hosts.is_first()
        if not self._writes:
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._folder, path = folder, folder / "train.jsonl"
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines() if path.exists() else []
        earlier = [line for line in lines if _step_of(line) <= after]
        files.write_text(path, "".join(f"{line}\n" for line in earlier))
        self._lines = path.open("a", encoding="utf-8")
        kept = ((line.pop("step"), line) for line in map(json.loads, earlier))
        finite = ((step, {name: value for name, value in line.items() if value is not None}) for step, line in kept)
        self._trackers = trackers.open_trackers(config.loop.report_to, config, folder, finite)

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes the metrics of a step."""
        if not self._writes:
            return
        finite = {name: value if np.isfinite(value) else None for name, value in metrics.items()}
        with files.naming_failures(self._folder):
            self._lines.write(json.dumps({"step": step, **finite}) + "\n")
            self._lines.flush()
        for tracker in self._trackers:
            tracker.write(step, metrics)
        if shown := [f"{name} {metrics[name]:{form}}" for name, form in _SHOWN.items() if name in metrics]:
            _log.info("step %d: %s", step, ", ".join(shown))

    def close(self) -> None:
        """After the last step."""
        if self._writes:
            with files.naming_failures(self._folder):
                self._lines.close()
            for tracker in self._trackers:
                tracker.close()


class TrainingLog(Writer):
    """Writes the metrics of training, of every source too.

    Attributes:
      history: step and metrics of the lines that the run has logged before, as far as they have the one that tells
        which step is the best; on all hosts.
    """

    def __init__(self, config: ConfigDict, folder: Path, newest: int | None):
        """Args are the config, the folder of metrics and the checkpoint that training goes on from."""
        super().__init__(folder, -1 if newest is None else newest, config)  # the line of step 0 is written again
        best = f"validation/{config.loop.best}"

        def read() -> list[tuple[int, dict[str, float]]]:
            lines = read_training(folder / "train.jsonl")
            return [(step, {best: line[best]}) for step, line in lines if line.get(best) is not None]

        self.history = [(step, metrics) for step, metrics in hosts.on_first(read)]
        self._sources, self._every = list(sources.configs_of(config)), config.loop.log_every

    def __call__(self, step: int, metrics: dict[str, float]) -> None:
        """Writes a line, of the steps since the one before."""
        shown = self._of_sources(step, metrics) if LOSS in metrics else []
        super().__call__(step, metrics)
        if shown:
            _log.info("step %d: examples and losses: %s", step, ", ".join(shown))

    def _of_sources(self, step: int, metrics: dict[str, float]) -> list[str]:
        """Puts the number of examples of each source, and the mean of their losses, in place of their means."""
        shown, steps = [], (step - 1) % self._every + 1 - metrics["skipped"]
        for name in self._sources:
            share, loss = metrics.pop(f"{SHARE}/{name}"), metrics.pop(f"{LOSS}/{name}")
            count = round(share * steps * metrics["examples"]) if share > 0 else 0  # NaN where no step was applied
            metrics[f"{SHARE}/{name}"] = count
            if share > 0:
                metrics[f"{LOSS}/{name}"] = loss / share
                shown.append(f"{count} of {name} ({loss / share:#.4g})")
        return shown


def _step_of(line: str) -> float:
    """The step of a line of train.jsonl; infinity for one that was cut off or is none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return np.inf

"""Where the metrics of a training go besides metrics/train.jsonl: `config.loop.report_to` names these.

TensorBoard's events lie in metrics/. Weights & Biases, trackio and MLflow get the same numbers by their own packages,
which read their own variables of the environment, such as WANDB_PROJECT or MLFLOW_TRACKING_URI. A run that is resumed
goes on in the tracked run that it began.
"""

import importlib
import importlib.util
import logging
import os
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.libraries import clu_writers
from retrieval.config.fields import flatten

_log = logging.getLogger(__name__)

TENSORBOARD = "tensorboard"
_PROJECT = "retrieval"

Line = tuple[int, Mapping[str, float]]  # a step, and its metrics that are finite


class Tracker(Protocol):
    """What takes the metrics of a step."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


def check(report_to: Sequence[str]) -> None:
    """Checks that the packages of the services are there."""
    for name in report_to:
        if name != TENSORBOARD and importlib.util.find_spec(name) is None:
            raise UserError(f"config.loop.report_to={name} needs the package {name}: pip install {name}")


def open_trackers(report_to: Sequence[str], config: ConfigDict, folder: Path, earlier: Iterable[Line]) -> list[Tracker]:
    """Opens what `report_to` names.

    Args:
      config: what services show of the run.
      folder: `metrics` of the run, whose name the run has there.
      earlier: the lines that a resumed run keeps.
    """
    ids, values = folder / "tracked.json", dict(flatten(config.to_dict()))
    known = files.read_json(ids) if ids.exists() else {}
    made: list[Tracker] = []
    for name in report_to:
        if name == TENSORBOARD:
            made.append(_TensorBoard(folder, earlier))
            continue
        made.append(service := _Service(name, folder.resolve().parent.name, values, known.get(name)))
        known |= {name: service.id} if service.id else {}
    if known:
        files.write_json(ids, known)
    return made


class _TensorBoard:
    """Events, which are written anew from the lines that are kept: of a step that is there twice it shows both."""

    def __init__(self, folder: Path, earlier: Iterable[Line]):
        for events in folder.glob("events.out.tfevents.*"):
            events.unlink()
        self._folder, self.writer = folder, clu_writers.SummaryWriter(str(folder))
        for step, metrics in earlier:
            self.write(step, metrics)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        with files.naming_failures(self._folder):
            self.writer.write_scalars(step, metrics)

    def close(self) -> None:
        with files.naming_failures(self._folder):
            self.writer.close()


class _Service:
    """A service, which may be out of reach: then the log says so once, and the training goes on."""

    def __init__(self, name: str, run: str, config: Mapping[str, Any], id: str | None):
        self._name, self._is_open = name, True
        begin, self._log, self._end = _SERVICES[name](importlib.import_module(name))
        self.id: str | None = self._tried(begin, run, config, id) or id

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        self._tried(self._log, dict(metrics), step)

    def close(self) -> None:
        self._tried(self._end)

    def _tried(self, call: Callable[..., Any], *args: Any) -> Any:
        try:
            return call(*args) if self._is_open else None
        except Exception as error:  # whatever a package of others raises
            self._is_open = False
            what = f"{type(error).__name__}: {error}"
            _log.warning("%s takes no more metrics (%s); metrics/train.jsonl has all of them", self._name, what)


def _weights_and_biases(module: Any) -> tuple[Callable[..., Any], ...]:
    """How a run begins, a step is logged and the run ends; trackio has the same functions, and knows a run by name."""

    def begin(run: str, config: Mapping[str, Any], id: str | None) -> str:
        id, project = id or uuid.uuid4().hex[:12], os.environ.get("WANDB_PROJECT", _PROJECT)
        known = {"id": id} if module.__name__ == "wandb" else {}
        module.init(project=project, name=run, config=dict(config), resume="allow", **known)
        return id

    return begin, lambda metrics, step: module.log(metrics, step=step), module.finish


def _mlflow(module: Any) -> tuple[Callable[..., Any], ...]:
    def begin(run: str, config: Mapping[str, Any], id: str | None) -> str:
        if "MLFLOW_EXPERIMENT_NAME" not in os.environ:
            module.set_experiment(_PROJECT)
        active = module.start_run(run_id=id, run_name=None if id else run)
        if not id:
            module.log_params({name: str(value)[:250] for name, value in config.items()})
        return active.info.run_id

    return begin, lambda metrics, step: module.log_metrics(metrics, step=step), module.end_run


_SERVICES = {"wandb": _weights_and_biases, "trackio": _weights_and_biases, "mlflow": _mlflow}
NAMES = (TENSORBOARD, *_SERVICES)

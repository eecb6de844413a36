"""Metrics in JSON lines, and in TensorBoard's events, also of a run that was cut off."""

import json
import math
import sys
import types

import pytest
import tensorflow as tf

from retrieval.common.errors import UserError
from retrieval.config.experiment import defaults
from retrieval.runs.fitting import trackers, training_log


def opened(folder, after, *report_to):
    config = defaults()
    config.loop.report_to = report_to
    return training_log.Writer(folder / "metrics", after, config)


def write(folder, after, steps, report_to="tensorboard"):
    writer = opened(folder, after, report_to)
    for step in steps:
        writer(step, {"loss": 10.0 - step, "skipped": math.nan if step == 2 else 0.0})
    return writer


def events(folder):
    """(step, name) -> value of TensorBoard's files; a step that is there twice fails."""
    found = {}
    for path in sorted((folder / "metrics").glob("events.*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert (event.step, value.tag) not in found
                found[event.step, value.tag] = tf.make_ndarray(value.tensor).item()
    return found


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]


def test_a_cut_off_run_logs_every_step_once(tmp_path):
    write(tmp_path, 0, [1, 2, 3, 4])  # not closed, as after a kill
    write(tmp_path, 3, [4, 5]).close()
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(step, 10.0 - step) for step in range(1, 6)]
    assert lines(tmp_path)[1]["skipped"] is None
    losses = {step: value for (step, name), value in events(tmp_path).items() if name == "loss"}
    assert losses == {step: 10.0 - step for step in range(1, 6)}


@pytest.mark.parametrize("name", ["write_scalars", "close"])
def test_a_full_disk_for_tensorboard_is_a_file_error(tmp_path, monkeypatch, name):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nand more")

    writer = opened(tmp_path, 0, "tensorboard")
    monkeypatch.setattr(writer._trackers[0].writer, name, full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{tmp_path.name}/metrics"):
        writer(1, {"loss": 1.0})
        writer.close()


@pytest.fixture
def services(monkeypatch):
    """What the packages of services are called with: wandb and trackio, which are alike, and MLflow."""
    calls = []

    def package(name, **functions):
        module = types.ModuleType(name)
        for function, result in functions.items():
            call = lambda *args, _of=f"{name}.{function}", _gives=result, **options: (  # noqa: E731
                calls.append((_of, args, options)) or _gives
            )
            setattr(module, function, call)
        monkeypatch.setitem(sys.modules, name, module)

    for name in ("wandb", "trackio"):
        package(name, init=None, log=None, finish=None)
    active = types.SimpleNamespace(info=types.SimpleNamespace(run_id="m1"))
    package("mlflow", set_experiment=None, start_run=active, log_params=None, log_metrics=None, end_run=None)
    return calls


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow"])
def test_a_service_gets_every_step_and_a_resumed_run_goes_on_in_its_run(services, tmp_path, name):
    write(tmp_path, 0, [1, 2], name)
    write(tmp_path, 2, [3], name).close()
    log = "mlflow.log_metrics" if name == "mlflow" else f"{name}.log"
    assert [(options["step"], args[0]["loss"]) for of, args, options in services if of == log] == [
        (step, 10.0 - step) for step in (1, 2, 3)
    ]
    begun = [options for of, _, options in services if of in (f"{name}.init", "mlflow.start_run")]
    if name == "mlflow":
        assert begun == [{"run_id": None, "run_name": tmp_path.name}, {"run_id": "m1", "run_name": None}]
    else:
        assert begun[0]["name"] == tmp_path.name and begun[0]["config"]["loop.log_every"] == 100
        assert begun[0] == begun[1] and ("id" in begun[0]) == (name == "wandb")
    assert services[-1][0] == {"mlflow": "mlflow.end_run"}.get(name, f"{name}.finish")


def test_a_service_that_fails_ends_no_training(services, tmp_path, monkeypatch, caplog):
    writer = opened(tmp_path, 0, "wandb")
    monkeypatch.setattr(sys.modules["wandb"], "log", lambda *_, **__: 1 / 0)
    for step in (1, 2):
        writer(step, {"loss": 1.0})
    writer.close()
    assert caplog.text.count("wandb takes no more metrics (ZeroDivisionError: division by zero)") == 1
    assert len(lines(tmp_path)) == 2


def test_a_service_without_its_package_is_refused():
    with pytest.raises(UserError, match="report_to=trackio needs the package trackio: pip install trackio"):
        trackers.check(["tensorboard", "trackio"])

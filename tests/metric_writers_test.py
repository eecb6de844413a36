"""Metrics in JSON lines, in TensorBoard's events and in Weights & Biases, also of a run that was cut off."""

import json
import math
import sys
import types

import pytest
import tensorflow as tf

from configs import ict_bfs_wlp
from retrieval.errors import UserError
from retrieval.stages import metric_writers


def config(wandb=""):
    value = ict_bfs_wlp.get_config("local")
    value.loop.wandb = wandb
    return value


def write(folder, config, after, steps):
    writer = metric_writers.open_writer(folder, after, config.loop.wandb, config.to_json())
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
    write(tmp_path, config(), 0, [1, 2, 3, 4])  # not closed, as after a kill
    write(tmp_path, config(), 3, [4, 5]).close()
    assert [(line["step"], line["loss"]) for line in lines(tmp_path)] == [(step, 10.0 - step) for step in range(1, 6)]
    assert lines(tmp_path)[1]["skipped"] is None
    losses = {step: value for (step, name), value in events(tmp_path).items() if name == "loss"}
    assert losses == {step: 10.0 - step for step in range(1, 6)}


def test_the_console_has_no_line_without_a_metric(tmp_path, caplog):
    caplog.set_level("INFO", "retrieval.stages.metric_writers")
    writer = metric_writers.open_writer(tmp_path, 0, "", "{}")
    writer(1, {"turn": 1.0})
    writer(2, {"validation/Success@10": 0.5})
    writer.close()
    assert caplog.messages == ["step 2: validation/Success@10 0.5000"]


class Stand(types.ModuleType):
    """In the place of wandb: keeps what it is told."""

    def __init__(self):
        super().__init__("wandb")
        self.inits, self.logged, self.finished = [], [], 0

    def init(self, **arguments):
        self.inits.append(arguments)
        return self

    def log(self, metrics, step):
        self.logged.append((step, metrics["loss"]))

    def finish(self):
        self.finished += 1


def test_weights_and_biases_go_on_with_the_same_run(tmp_path, monkeypatch):
    wandb = Stand()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    metric_writers.check("mine")
    write(tmp_path / "one", config("mine"), 0, [1, 2])
    write(tmp_path / "one", config("mine"), 2, [3]).close()
    write(tmp_path / "two", config("mine"), 0, [1]).close()
    first, again, other = wandb.inits
    assert first == again and first["id"] != other["id"] and first["resume"] == "allow"
    assert (first["project"], first["name"], first["dir"]) == ("mine", "one", str(tmp_path / "one"))
    assert first["config"]["loop"]["wandb"] == "mine"
    assert wandb.logged == [(1, 9.0), (2, 8.0), (3, 7.0), (1, 9.0)] and wandb.finished == 2


def test_without_the_package_it_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match=r"config\.loop\.wandb=mine: the package wandb cannot be imported.*pip install"):
        metric_writers.check("mine")
    metric_writers.check("")


@pytest.mark.parametrize("name", ["write_scalars", "close"])
def test_a_full_disk_for_tensorboard_is_a_file_error(tmp_path, monkeypatch, name):
    def full(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "No space left on device\nand more")

    writer = metric_writers.open_writer(tmp_path, 0, "", "{}")
    monkeypatch.setattr(writer._writers[0]._tensorboard, name, full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{tmp_path.name}/metrics"):
        writer(1, {"loss": 1.0})
        writer.close()


def test_the_other_hosts_of_a_pod_write_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(metric_writers.hosts, "is_first", lambda: False)
    write(tmp_path, config("mine"), 0, [1]).close()
    assert not list(tmp_path.iterdir())

"""Metrics in JSON lines, and in TensorBoard's events, also of a run that was cut off."""

import json
import math

import pytest
import tensorflow as tf

from retrieval.runs.fitting import training_log


def write(folder, after, steps):
    writer = training_log.Writer(folder / "metrics", after)
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

    writer = training_log.Writer(tmp_path / "metrics", 0)
    monkeypatch.setattr(writer._tensorboard, name, full)
    with pytest.raises(OSError, match=rf"No space left on device: .*{tmp_path.name}/metrics"):
        writer(1, {"loss": 1.0})
        writer.close()

"""Runs that fine-tune a published model in a few steps."""

from conftest import REPOSITORY

from configs import fine_tune
from retrieval.runs.pipeline.run import Run
from support.tiny import complete


def tuned(model, folder, **changes):
    """A run of `fine_tune` of a few steps; all its stages are done."""
    config = fine_tune.get_config(str(model))
    config.index.dense = "exact"
    config.data.update(lanes=1, shuffle_buffer=64)  # a lane's graph and its buffer take most of so few steps' time
    config.split.shards, config.model.remat = 2, "none"
    config.train.update(steps=4, batch_size=8, learning_rate=1e-3)
    config.loop.update(validate_every=2, checkpoint_every=2)
    config.update_from_flattened_dict(changes)
    return complete(Run(config, folder, REPOSITORY / "requirements.lock"))

"""A task to global batches: deterministic, resumable, and the same for any number of hosts.

The stream of a task is cut into a fixed number of lanes, each the seqio dataset of one shard of the files with a seed
of its own. Lane i fills rows [i * B / lanes, (i + 1) * B / lanes) of every global batch. A host reads only the lanes
whose rows live on its devices; whatever the number of hosts, the global batch is the same. The position of a lane is
saved under the lane's own name, so a run can go on with another number of hosts.
"""

from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np
import seqio
import tensorflow as tf

from retrieval.errors import UserError


class Batches:
    """An endless iterator of batches, as dicts of `jax.Array` sharded over their first axis."""

    def __init__(
        self,
        task: str,
        lengths: Mapping[str, int],
        converter: seqio.FeatureConverter,
        *,
        batch_size: int,
        lanes: int,
        seed: int,
        sharding: jax.sharding.Sharding,
    ):
        """Args are those of `seqio.get_dataset`, the global batch size, and the sharding of a batch.

        Raises:
          UserError: lanes, batch size, hosts or devices do not divide each other, or there are too few files.
        """
        _check(batch_size, lanes, sharding)
        self._sharding = sharding
        per_host = lanes // jax.process_count()
        first = jax.process_index() * per_host
        self._lanes: dict[str, tf.data.Iterator] = {}
        tf.config.set_visible_devices([], "GPU")  # the accelerator is JAX's
        for lane in range(first, first + per_host):
            dataset = seqio.get_dataset(
                task,
                lengths,
                converter,
                shuffle=True,
                num_epochs=None,
                shard_info=seqio.ShardInfo(lane, lanes),
                seed=int(np.random.SeedSequence([seed, lane]).generate_state(1)[0] >> 1),
                verbose=False,
                trim_output_features=False,  # the tasks cut, and keep the last [SEP]
            )
            dataset = dataset.batch(batch_size // lanes).prefetch(2).with_options(_options())
            self._lanes[f"lane-{lane:05d}"] = iter(dataset)

    def __iter__(self) -> "Batches":
        return self

    def __next__(self) -> dict[str, jax.Array]:
        rows = [next(lane) for lane in self._lanes.values()]
        local = {name: np.concatenate([part[name].numpy() for part in rows]) for name in rows[0]}
        return {name: jax.make_array_from_process_local_data(self._sharding, values) for name, values in local.items()}

    def save(self, folder: Path) -> None:
        """Writes the position of this host's lanes into `folder`."""
        for name, lane in self._lanes.items():
            tf.train.Checkpoint(lane=lane).write(str(folder / name))

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position.

        Raises:
          UserError: the folder holds no position for one of the lanes.
        """
        for name, lane in self._lanes.items():
            if not (folder / f"{name}.index").exists():
                raise UserError(f"{folder}: no position of {name}; was the run started with another data.lanes?")
            tf.train.Checkpoint(lane=lane).read(str(folder / name)).assert_consumed()


def abstract(
    lengths: Mapping[str, int], converter: seqio.FeatureConverter, batch_size: int, sharding: jax.sharding.Sharding
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and types of the batches that `Batches` gives with the same arguments, without any data.

    Raises:
      UserError: the devices do not divide the batch.
    """
    _check_devices(batch_size, sharding)
    features = {name: tf.TensorSpec([None] * spec.rank, spec.dtype) for name, spec in converter.TASK_FEATURES.items()}
    empty = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=features)
    return {
        name: jax.ShapeDtypeStruct((batch_size, *spec.shape), spec.dtype.as_numpy_dtype, sharding=sharding)
        for name, spec in converter(empty, lengths).element_spec.items()
    }


def _options() -> tf.data.Options:
    """The lanes are what runs in parallel: tuning each of them costs a fifth of the time and gains nothing."""
    options = tf.data.Options()
    options.autotune.enabled = False
    return options


def _check(batch_size: int, lanes: int, sharding: jax.sharding.Sharding) -> None:
    hosts = jax.process_count()
    if batch_size % lanes:
        raise UserError(f"train.batch_size={batch_size} must be a multiple of data.lanes={lanes}")
    if lanes % hosts:
        raise UserError(f"data.lanes={lanes} must be a multiple of the number of hosts, {hosts}")
    _check_devices(batch_size, sharding)


def _check_devices(batch_size: int, sharding: jax.sharding.Sharding) -> None:
    if batch_size % (devices := len(sharding.device_set)):
        raise UserError(f"train.batch_size={batch_size} must be a multiple of the number of devices, {devices}")

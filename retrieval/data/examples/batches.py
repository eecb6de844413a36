"""A task to global batches: deterministic, resumable, and the same for any number of hosts.

The stream of a task is cut into a fixed number of lanes, each the seqio dataset of one shard of the files with a seed
of its own. Lane i fills rows [i * B / lanes, (i + 1) * B / lanes) of every global batch. A host reads only the lanes
whose rows live on its devices; whatever the number of hosts, the global batch is the same. The position of a lane is
saved under the lane's own name, so a run can go on with another number of hosts.

Where texts are packed, each lane packs its own: its texts lie in row i of arrays [lanes, ...], whose axis is sharded
like that of the examples, so a device has the rows of its own examples and of no others.

Of several sources of examples each batch is of one. Which is a function of the seed and of the number of the batch. So
every host draws the same, and a run that goes on needs no more than that number and the positions of the lanes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from retrieval.common import files
from retrieval.common.errors import UserError, first_line, multiples
from retrieval.common.libraries import seqio, tf
from retrieval.common.runtime import hashing, hosts
from retrieval.data.examples.example_kind import ExampleKind
from retrieval.data.examples.packing import OTHER_ROWS, WAITING, Arrays, Lane, PackedLane, Packing

_POSITION = "sources.json"
Lanes = Mapping[str, Sequence[Lane]]
Tables = Mapping[str, tuple[str, np.ndarray]] | None


def shares(sizes: Sequence[int], weights: Sequence[float] | None, alpha: float) -> np.ndarray:
    """How often each source is drawn: by its weight, or else by its size to the power `alpha`; they sum to 1."""
    raw = np.array(weights or sizes, np.float64) ** (1 if weights else alpha)
    return raw / raw.sum()


def drawn(share_S: np.ndarray, seed: int, number: int) -> int:
    """The source of a batch; the first batch has the number 0."""
    place = hashing.number("source", str(seed), str(number)) / 2**64
    return min(int(np.searchsorted(np.cumsum(share_S), place, side="right")), len(share_S) - 1)


class SourceBatch(dict):
    """A batch, and which of several objectives it is for: JAX takes batches of another one for another structure."""

    def __init__(self, fields: Mapping[str, Any] | Iterable[tuple[str, Any]], objective: Hashable):
        super().__init__(fields)
        self.objective = objective


def _flat(batch: SourceBatch) -> tuple[list[tuple[Any, Any]], tuple[tuple[str, ...], Hashable]]:
    names = tuple(sorted(batch))
    return [(jax.tree_util.DictKey(name), batch[name]) for name in names], (names, batch.objective)


jax.tree_util.register_pytree_with_keys(
    SourceBatch, _flat, lambda structure, values: SourceBatch(zip(structure[0], values), structure[1])
)


class Sources(NamedTuple):
    """What several sources of examples are drawn by.

    Attributes:
      share_S: how often each source is drawn, which `shares` says.
      seed: of the draws.
      objectives: that of each source's batches.
    """

    share_S: np.ndarray
    seed: int
    objectives: Sequence[Hashable]


class Batches:
    """An endless iterator of batches, as dicts of `jax.Array` sharded over their first axis; each of one source."""

    def __init__(
        self, lanes: Lanes, sharding: Sharding, *, epoch: int = 0, tables: Tables = None, sources: Sources | None = None
    ):
        """Args:
        lanes: of each source those of this host, which `Drawn` opens; of examples without sources under any name.
        sharding: of a batch.
        epoch: the examples that all tasks have together, which `epoch` says to others.
        tables: further fields of a batch, by name: the field with row numbers, and the table [M, E] whose rows these
          are. It may be memory-mapped. A number of -1 gives zeros.
        sources: how they are drawn, where there are several.
        """
        self.epoch, self.sources = epoch, sources
        self._lanes, self._sharding, self._tables = lanes, sharding, tables or {}
        self._all_lanes = [*itertools.chain(*lanes.values())]
        self._number = 0  # of the next batch

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> dict[str, jax.Array]:
        source = drawn(self.sources.share_S, self.sources.seed, self._number) if self.sources else 0
        self._number += 1
        parts = [next(lane) for lane in list(self._lanes.values())[source]]
        local = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for name, (field, table_ME) in self._tables.items():
            numbers = local[field]
            local[name] = np.where(numbers[..., None] < 0, 0, table_ME[np.maximum(numbers, 0)])
        batch = {name: jax.make_array_from_process_local_data(self._sharding, values) for name, values in local.items()}
        return SourceBatch(batch, self.sources.objectives[source]) if self.sources else batch

    def save(self, folder: Path) -> None:
        """Writes the position of this host's lanes into `folder`, and of several sources the number of the batch."""
        if self.sources and hosts.is_first():
            files.write_json(folder / _POSITION, {"batches": self._number, "sources": list(self._lanes)})
        for lane in self._all_lanes:
            lane.save(folder)

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position.

        Raises:
          UserError: the folder holds no position for one of the lanes, or what waits for room in packed rows.
        """
        if self.sources:
            path = folder / _POSITION
            if not path.exists() or (position := files.read_json(path))["sources"] != list(self._lanes):
                raise UserError(f"{path}: no position in these sources; go on with the config that the run began with")
            self._number = position["batches"]
        is_packed = any(isinstance(lane, PackedLane) for lane in self._all_lanes)
        if not is_packed and any(folder.glob(f"*{WAITING}")):
            raise UserError(f"{folder}: the run began with packed rows, and here there are none, {OTHER_ROWS}")
        for lane in self._all_lanes:
            lane.restore(folder)


class Drawn(NamedTuple):
    """What is drawn: the arguments of `seqio.get_dataset`, and the global batch size.

    Attributes:
      stem: what the names of the lanes begin with.
    """

    task: str
    lengths: Mapping[str, int]
    converter: seqio.FeatureConverter
    batch_size: int
    lanes: int
    seed: int
    stem: str = ""

    def first(self, count: int) -> list[Arrays]:
        """What lane 0 draws first, for so many batches; the same on every host."""
        lane = self._lane(0)
        return [next(lane) for _ in range(count)]

    def open_lanes(self, sharding: Sharding, packing: Packing | None = None) -> list[Lane]:
        """The lanes whose rows live on this host's devices.

        Args:
          sharding: of a batch.
          packing: of each lane; None for one text per row.

        Raises:
          UserError: lanes, batch size, hosts or devices do not divide each other.
        """
        _check(self.batch_size, self.lanes, sharding, packing)
        own = [self._lane(number) for number in _own_lanes(self.lanes, self.batch_size, sharding)]
        return [PackedLane(lane, packing) for lane in own] if packing else list(own)

    def _lane(self, number: int) -> _Lane:
        tf.config.set_visible_devices([], "GPU")  # the accelerator is JAX's
        shard, seed = seqio.ShardInfo(number, self.lanes), np.random.SeedSequence([self.seed, number]).generate_state(1)
        options: dict[str, Any] = dict(shuffle=True, num_epochs=None, shard_info=shard, seed=int(seed[0] >> 1))
        options |= dict(verbose=False, trim_output_features=False)  # the tasks cut, and keep the last [SEP]
        dataset = as_written(seqio.get_dataset)(self.task, self.lengths, self.converter, **options)
        return _Lane(f"{self.stem}lane-{number:05d}", dataset, self.batch_size // self.lanes)


def as_written(function: Callable) -> Callable:
    """A function that opens a dataset, without AutoGraph.

    That would rewrite every function that is mapped, to no end: tasks have no Python control flow over tensors.
    """
    return tf.autograph.experimental.do_not_convert(function)


class _Lane:
    """The examples of one shard of the files, as rows of a batch."""

    def __init__(self, name: str, dataset: tf.data.Dataset, rows: int):
        """The file of the position has this name."""
        self.name = name
        # The lanes run in parallel, a thread for each. Tuning them costs a fifth of the time and gains nothing.
        options = tf.data.Options()
        options.autotune.enabled = False
        options.threading.private_threadpool_size = options.threading.max_intra_op_parallelism = 1
        self._iterator = iter(dataset.batch(rows).prefetch(2).with_options(options))

    def __next__(self) -> Arrays:
        try:
            return {name: values.numpy() for name, values in next(self._iterator).items()}
        except tf.errors.OpError as error:
            raise unreadable(self.name, error) from error
        except StopIteration as error:
            remedy = "take fewer config.data.lanes or more data"
            raise UserError(f"{self.name}: no example in its files: {remedy}") from error

    def save(self, folder: Path) -> None:
        try:
            tf.train.Checkpoint(lane=self._iterator).write(str(folder / self.name))
        except tf.errors.OpError as error:  # of a full disk, for one
            raise OSError(first_line(error)) from error

    def restore(self, folder: Path) -> None:
        if not (folder / f"{self.name}.index").exists():
            raise UserError(f"{folder}: no position of {self.name}; was the run started with another data.lanes?")
        try:
            tf.train.Checkpoint(lane=self._iterator).read(str(folder / self.name)).assert_consumed()
        except (tf.errors.OpError, AssertionError, ValueError, TypeError, IndexError, RuntimeError) as error:
            why = f"not a position in this data ({first_line(error)})"
            raise UserError(f"{folder / self.name}: {why}; delete the checkpoint and train again") from error


def unreadable(where: str, error: tf.errors.OpError) -> UserError:
    """An error for shards that TensorFlow cannot read, because of what is in them or for any other reason."""
    remedy = "once that is mended, the same command goes on from the newest checkpoint"
    if isinstance(error, tf.errors.DataLossError | tf.errors.InvalidArgumentError):
        remedy = "make them again with --stage=prepare, or --stage=pairs for labelled pairs"
    return UserError(f"{where}: the shards of examples cannot be read ({first_line(error)}); {remedy}")


def abstract(
    kind: ExampleKind,
    lengths: Mapping[str, int],
    *,
    batch_size: int,
    lanes: int,
    sharding: Sharding,
    packing: Packing | None = None,
    tables: Mapping[str, tuple[str, int]] | None = None,
) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes and types of the batches that `Batches` gives with the same arguments, without any data.

    Args:
      tables: as `Batches` has it, float32, with the size of a row in place of the table.

    Raises:
      UserError: lanes, batch size or devices do not divide each other.
    """
    _check(batch_size, lanes, sharding, packing)
    part = kind.blank_rows(lengths, batch_size // lanes)
    if packing and (packed := packing.pack(part)):  # texts without a token always fit
        part, _ = packed
    for name, (numbers, size) in (tables or {}).items():
        part[name] = np.broadcast_to(np.float32(0), (*part[numbers].shape, size))
    spec = functools.partial(jax.ShapeDtypeStruct, sharding=sharding)
    return {name: spec((lanes * len(rows), *rows.shape[1:]), rows.dtype) for name, rows in part.items()}


def _own_lanes(lanes: int, batch_size: int, sharding: Sharding) -> list[int]:
    """The lanes whose rows live on this host's devices; on a pod these need not follow one another."""
    own_B = np.zeros(batch_size, bool)
    for index in sharding.addressable_devices_indices_map((batch_size,)).values():
        own_B[index] = True
    own_LR = own_B.reshape(lanes, -1)
    if (own_LR.any(axis=1) != own_LR.all(axis=1)).any():
        fits = f"a multiple of the devices, {len(sharding.device_set)}, always fits"
        raise UserError(f"config.data.lanes={lanes}: a lane has rows on several hosts; {fits}")
    return np.flatnonzero(own_LR.all(axis=1)).tolist()


def _check(batch_size: int, lanes: int, sharding: Sharding, packing: Packing | None) -> None:
    processes, devices = jax.process_count(), len(sharding.device_set)
    batch, own = ("config.train.batch_size", batch_size), ("config.data.lanes", lanes)
    for (field, value), of, which in (
        (batch, lanes, "config.data.lanes"),
        (own, processes, "the number of hosts"),
        (batch, devices, "the number of devices"),
        (own, devices if packing else 1, "the number of devices, to pack texts (config.data.pack)"),
    ):
        if value % of:
            raise UserError(f"{field}={value} must be a multiple of {which}, {of}: take {multiples(value, of)}")

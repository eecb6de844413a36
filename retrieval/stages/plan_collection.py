"""What a collection of passages takes on planned devices: encoding, k-means and exact search, time and memory of each.

Programs are compiled as the train step is. A host of the pod encodes with its own devices; k-means and exact search
take all of them, and each has its share of the passages.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.models.text import Text
from retrieval.recipes.placement import bind, gather, make_mesh, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model
from retrieval.search import kmeans
from retrieval.stages import plan_devices
from retrieval.training import collection_work, cycles, sharding, step_memory, work
from retrieval.training.chips import Chip
from retrieval.training.collection_work import Task


@dataclasses.dataclass(frozen=True)
class Part:
    """One thing to do with a collection.

    Attributes:
      task: what it computes, on all devices.
      device: bytes that a device holds at most; None where the compiler did not say.
      host: bytes that a host holds of embeddings, at least.
      estimate: seconds by the compiler's estimate; None where there is none.
    """

    task: Task
    device: int | None = None
    host: int = 0
    estimate: float | None = None

    def rows(self, chip: Chip | None, chips: int, rate: float | None) -> Iterator[tuple[str, str | None]]:
        """Name and value, for people.

        Args:
          rate: operations a second of all devices, for a chip that is not known; None: operations alone are told.
        """
        if chip:
            yield f"{self.task.name}, at least", _time(self.task.seconds(chip, chips), chips)
        elif rate:
            yield f"{self.task.name}, at least", _time(self.task.flops / rate, chips)
        else:
            yield f"operations {self.task.name}", f"{self.task.flops:.4g}"
        if self.estimate:
            yield f"{self.task.name}, by the compiler's estimate", _time(self.estimate, chips)
        if self.device:
            yield f"{self.task.name}, a device: peak", gib(self.device)
        if self.host:
            yield f"{self.task.name}, a host: embeddings", gib(self.host)


def parts(config: ConfigDict, size: int, devices: Sequence[sharding.Device], chip: Chip | None) -> tuple[Part, ...]:
    """What `plan.passages` of full length take; k-means where refreshes cluster them.

    Args:
      size: tokens of the vocabulary.
    """
    count, model = config.plan.passages, abstract_model(config, size)
    own = [device for device in devices if device.process_index == devices[0].process_index]
    encoding, flops, E = _encoding(config, model, own)
    rows = config.encode.batch_tokens // config.data.document_length // len(own) * len(own) or len(own)
    memory, seconds = _compiled(encoding(rows), make_mesh(config, own), chip)
    times = count * len(own) / rows / len(devices)
    encoded = Part(
        collection_work.encode(count, flops, E), memory, 4 * config.encode.shard_size * E, seconds and seconds * times
    )
    share = 4 * count * E // len(devices)
    found = Part(collection_work.search(count, E), share, share * len(own))
    if config.mine.refresh_makes != "clusters":
        return encoded, found
    return encoded, found, _k_means(config, E, devices, chip)


def _encoding(config: ConfigDict, model: Any, own: Sequence[sharding.Device]) -> Any:
    """A function from rows to the traced program that encodes them; operations of one passage; and E."""
    bound, mesh = bind(model), make_mesh(config, own)
    params, length = parameters_of(model), config.data.document_length

    def encode(params: Any, ids: jax.Array) -> jax.Array:
        return bound(gather(params)).encode_documents(Text.from_ids(ids, 0 * ids), None)

    alone = jax.make_jaxpr(lambda params, ids: bound(params).encode_documents(Text.from_ids(ids, 0 * ids), None))(
        params, jax.ShapeDtypeStruct((1, length), "int32")
    )
    placed = jax.tree.map(
        lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to),
        params,
        shardings_of(params, config, mesh),
    )

    def traced(rows: int) -> Any:
        ids = jax.ShapeDtypeStruct((rows, length), "int32", sharding=sharding.batch_sharding(mesh))
        with jax.set_mesh(mesh):
            return jax.jit(encode).trace(placed, ids)

    return traced, work.of(alone).flops, alone.out_avals[0].shape[-1]


def _k_means(config: ConfigDict, E: int, devices: Sequence[sharding.Device], chip: Chip | None) -> Part:
    count, cluster, mesh = config.plan.passages, config.cluster, make_mesh(config, devices)
    rule = kmeans.Rule(cluster.count, *(cluster[name] for name in kmeans.Rule._fields[1:]))
    task = collection_work.k_means(count, E, rule.clusters, rule.iterations, rule.sample)
    memories, seconds = zip(*(_compiled(program, mesh, chip) for program in kmeans.traced(count, E, rule, mesh)))
    iteration, last = seconds
    sampled = min(count, rule.sample * rule.clusters) if rule.sample else count
    held = 4 * E * (count + (sampled if sampled < count else 0))  # all, and a copy of the sample
    device = None if None in memories else max(memories)
    return Part(task, device, held, rule.iterations * iteration + last if iteration and last else None)


def _compiled(traced: Any, mesh: jax.sharding.Mesh, chip: Chip | None) -> tuple[int | None, float | None]:
    """Bytes of a device at the peak, and seconds by the compiler's estimate, as far as it says."""
    device = mesh.devices.flat[0]
    with jax.set_mesh(mesh):
        lowered = traced.lower(lowering_platforms=(plan_devices.platform(device),))
        memory, text = step_memory.compile_step(lowered, 0, 0, step_memory.program_limit(device))
    has_all = text and not cycles.kernels(text)  # an estimate without them would be too low
    cycle_count = sum(cycles.estimated(text).values()) if has_all else 0
    return memory.peak, cycle_count / chip.clock if chip and chip.clock and cycle_count else None


def _time(seconds: float, chips: int) -> str:
    hours = seconds / 3600
    return f"{seconds:.3g} s" if hours < 0.1 else f"{hours:.2f} hours, {chips * hours:,.1f} chip-hours"


def gib(count: float | None) -> str | None:
    """Bytes as people read them."""
    return None if count is None else f"{count / 2**30:.2f} GiB"

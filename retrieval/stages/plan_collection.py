"""What a collection of passages takes on planned devices: encoding, k-means and exact search, time and memory of each.

Programs are compiled as the train step is. A host of the pod encodes with its own devices; k-means and exact search
take all of them, and each has its share of the passages.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.models.text import Text
from retrieval.recipes.placement import bind, gather, local_mesh, make_mesh, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model
from retrieval.search import kmeans
from retrieval.stages import plan_devices, step_time
from retrieval.training import collection_work, cycles, sharding, step_memory, work
from retrieval.training.chips import Chip
from retrieval.training.collection_work import Task
from retrieval.training.work import Work


@dataclasses.dataclass(frozen=True)
class Part:
    """One thing to do with a collection.

    Attributes:
      task: what it computes, on all devices.
      device: bytes that a device holds at most; None where the compiler did not say.
      host: bytes that a host holds of embeddings, at least.
      estimate: seconds by the compiler's estimate; None where there is none.
      measured: seconds on the devices at hand, in proportion to a part of it that was run; None where it was not.
      alone: whether one chip computes it.
    """

    task: Task
    device: int | None = None
    host: int = 0
    estimate: float | None = None
    measured: float | None = None
    alone: bool = False

    def rows(self, chip: Chip | None, chips: int, rate: float | None) -> Iterator[tuple[str, str | None]]:
        """Name and value, for people.

        Args:
          rate: operations a second of all devices, for a chip that is not known; None: operations alone are told.
        """
        if self.alone:
            chips, rate = 1, rate and rate / chips
        if chip:
            yield f"{self.task.name}, at least", shown_time(self.task.seconds(chip, chips), chips)
        elif rate:
            yield f"{self.task.name}, at least", shown_time(self.task.flops / rate, chips)
        else:
            yield f"operations {self.task.name}", f"{self.task.flops:.4g}"
        if self.estimate:
            yield f"{self.task.name}, by the compiler's estimate", shown_time(self.estimate, chips)
        if self.measured:
            yield f"{self.task.name}, here", shown_time(self.measured, chips)
        if self.device:
            yield f"{self.task.name}, a device: peak", gib(self.device)
        if self.host:
            yield f"{self.task.name}, a host: embeddings", gib(self.host)


def parts(config: ConfigDict, size: int, devices: Sequence[sharding.Device], chip: Chip | None) -> tuple[Part, ...]:
    """What `plan.passages` of full length take; k-means where refreshes cluster them, by one window of each.

    Args:
      size: tokens of the vocabulary.
    """
    count, windows, model = config.plan.passages, config.encode.windows, abstract_model(config, size)
    own = plan_devices.of_a_host(config.plan.topology, devices)
    documents, queries = (_encoding(config, model, own, side) for side in ("documents", "queries"))
    E, rows = documents.dimensions, documents.rows(config.encode.batch_tokens)
    memory, seconds = _compiled(documents.traced(rows), documents.mesh, chip)
    times = count * windows * len(own) / rows / len(devices)
    encoded = Part(
        collection_work.encode(count, documents.work.flops, E, windows),
        memory,
        4 * config.encode.shard_size * E,
        seconds and seconds * times,
    )
    asked = Part(collection_work.query(queries.work.flops, queries.work.bytes), alone=True)
    share = 4 * count * windows * E // len(devices)
    found = Part(collection_work.search(count * windows, E), share, share * len(own))
    if config.mine.refresh_makes != "clusters":
        return encoded, asked, found
    return encoded, asked, found, _k_means(config, E, devices, chip)


def dimensions(config: ConfigDict, size: int) -> int:
    """Of the embeddings."""
    model = abstract_model(config, size)
    ids = jax.ShapeDtypeStruct((1, config.data.document_length), "int32")
    return jax.eval_shape(functools.partial(_embed, bind(model), "documents"), parameters_of(model), ids).shape[-1]


def timed(
    planned: Sequence[Part], config: ConfigDict, size: int, devices: Sequence[sharding.Device], most: float
) -> tuple[Part, ...]:
    """What `parts` gave, with how long the devices here take to encode, by some batches of no meaning.

    Args:
      most: operations of a batch.
    """
    model, own = abstract_model(config, size), plan_devices.of_a_host(config.plan.topology, devices)

    def seconds(side: str, tokens: int) -> float | None:
        """Of a text on one device; None where even as many texts as devices take too long."""
        encoding = _encoding(config, model, own, side)
        rows = min(encoding.rows(tokens), int(most / encoding.work.flops) // len(own) * len(own))
        return encoding.measure(rows) / rows * len(own) if rows else None

    passage, query = seconds("documents", config.encode.batch_tokens), seconds("queries", 0)
    everything = passage and passage * config.plan.passages * config.encode.windows / len(devices)
    encoded, asked, *rest = planned
    return dataclasses.replace(encoded, measured=everything), dataclasses.replace(asked, measured=query), *rest


class _Encoding(NamedTuple):
    """Texts of one side through their tower, on the devices of a host.

    Attributes:
      function: from parameters and token ids [B, L] to embeddings [B, E].
      parameters: their shapes, and where they lie.
      length: L.
      work: of one text.
      dimensions: E.
    """

    function: Callable[[Any, jax.Array], jax.Array]
    parameters: Any
    mesh: jax.sharding.Mesh
    length: int
    work: Work
    dimensions: int

    def rows(self, tokens: int) -> int:
        """Texts of a batch of about so many tokens, one a device at least."""
        return tokens // self.length // self.mesh.size * self.mesh.size or self.mesh.size

    def traced(self, rows: int) -> Any:
        """The program for so many texts."""
        ids = jax.ShapeDtypeStruct((rows, self.length), "int32", sharding=sharding.batch_sharding(self.mesh))
        with jax.set_mesh(self.mesh):
            return jax.jit(self.function).trace(self.parameters, ids)

    def measure(self, rows: int) -> float:
        """Seconds for so many texts, the median of three batches."""
        params = jax.tree.map(
            lambda leaf: sharding.place(np.ones(leaf.shape, leaf.dtype), leaf.sharding), self.parameters
        )
        ids = sharding.place(np.ones((rows, self.length), np.int32), sharding.batch_sharding(self.mesh))
        with jax.set_mesh(self.mesh):
            return step_time.median_seconds(functools.partial(self.traced(rows).lower().compile(), params, ids))


def _encoding(config: ConfigDict, model: Any, own: Sequence[sharding.Device], side: str) -> _Encoding:
    """That of 'documents' or of 'queries'."""
    bound, mesh, params = bind(model), local_mesh(config, own), parameters_of(model)
    length = config.data.document_length if side == "documents" else config.data.query_length

    encode = functools.partial(_embed, bound, side)
    alone = jax.make_jaxpr(encode)(params, jax.ShapeDtypeStruct((1, length), "int32"))
    placed = jax.tree.map(
        lambda leaf, to: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=to),
        params,
        shardings_of(params, config, mesh),
    )
    return _Encoding(
        lambda params, ids: encode(gather(params), ids),
        placed,
        mesh,
        length,
        work.of(alone),
        alone.out_avals[0].shape[-1],
    )


def _embed(bound: Callable[[Any], Any], side: str, params: Any, ids: jax.Array) -> jax.Array:
    return getattr(bound(params), f"encode_{side}")(Text.from_ids(ids, 0 * ids), None)


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


def shown_time(seconds: float, chips: int = 0) -> str:
    """Seconds or hours as people read them, with those of all chips where there are some."""
    hours = seconds / 3600
    if hours < 0.1:
        return f"{seconds:.3g} s"
    return f"{hours:.2f} hours" + (f", {chips * hours:,.1f} chip-hours" if chips else "")


def gib(count: float | None) -> str | None:
    """Bytes as people read them."""
    return None if count is None else f"{count / 2**30:.2f} GiB"

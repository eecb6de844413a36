"""What the TPU compiler plans for the works, where there is no TPU: memory, and its own estimate of the time.

    python -m benchmarks.accelerator.plans --data=DATA --topology=v5e:2x4 --out=OUT

Needs the package libtpu besides what the works need. Each program of each work is compiled at its size, which takes
minutes; a second call goes on. Attention is plain, of which the compiler has an estimate.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from benchmarks.accelerator import curves, devices, encoding, search, served, step
from benchmarks.accelerator.work import Attempt, Given, perform
from retrieval.common.errors import UserError
from retrieval.methods.late_interaction.maxsim import maxsim
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, gather, parameters_of, shardings_of
from retrieval.recipes.recipe import abstract_model
from retrieval.search import exact
from retrieval.search.vector_codes import FLOAT32, Form, ranges_of
from retrieval.stages.plan import devices_of, make_plan
from retrieval.training import chips, sharding, step_plan, work

_DAYS = 24 * 3600.0  # seconds: the time is not limited
_GIB = 2**30

Devices = Sequence[sharding.Device]


def attempts(given: Given, all_devices: Devices) -> Iterator[Attempt]:
    """Every program of every work, those that compile fast first."""
    one = all_devices[:1]
    for precision in (FLOAT32, "int8"):
        yield Attempt(f"search: exact, {precision}", lambda precision=precision: _exact(given, precision, all_devices))
    yield Attempt("search: MaxSim of a block", lambda: _maxsim(given, one))
    yield Attempt("served: queries", lambda: _embedded(given, "L12 H768", "queries", one))
    yield Attempt("served: candidates", lambda: _exact(given, FLOAT32, all_devices, is_served=True))
    for name in encoding.MODELS:
        yield Attempt(f"encoding: {name}", lambda name=name: _embedded(given, name, "documents", one))
    for key, arm in curves.ARMS.items():
        if arm.tasks and key != "ict":  # whose program is that of all three tasks
            yield Attempt(f"curves: {arm.label}", lambda arm=arm: _curve(given, arm, all_devices))
    for fsdp in sorted({1, len(all_devices)}):
        shared = "rows" if fsdp == 1 else "rows and parameters"
        yield Attempt(
            f"devices: {len(all_devices)} share {shared}",
            lambda fsdp=fsdp: _step(
                devices.config_of(given, len(all_devices), fsdp), given.pack.vocab_size, all_devices
            ),
        )
    for name, of_step in reversed(step.STEPS.items()):  # the first of them compiles for longest
        yield Attempt(f"step: {name}", lambda of_step=of_step: _of_step(given, of_step, one))


def _curve(given: Given, arm: curves.Arm, all_devices: Devices) -> Iterator[dict[str, Any]]:
    """The step of an arm."""
    pack, chunk = given.pack, given.pack.settings["chunk"]
    config = curves.config_of(pack, arm, arm.tasks == ("mlm",), chunk)
    yield from _step(config, pack.vocab_size, curves.taking_part(pack.settings, all_devices))


def _of_step(given: Given, of_step: step.Step, one: Devices) -> Iterator[dict[str, Any]]:
    """A step of true size, with the first setting of `remat` that fits."""
    config = step.config_of(given, of_step)
    for remat in of_step.remats:
        config.model.remat = remat
        for numbers in _step(config, of_step.vocab_size or given.pack.vocab_size, one):
            yield numbers | {"remat": remat}
            if numbers["fits"] != "no":
                return


def _step(config: ConfigDict, vocab_size: int, used: Devices) -> Iterator[dict[str, Any]]:
    began = time.monotonic()
    config.model.attention = "plain"
    planned = make_plan(config, vocab_size, used)
    numbers = {"devices": planned.devices, "fits": {True: "yes", False: "no", None: ""}[planned.fits]}
    numbers |= {"arguments, GiB": planned.step.arguments / _GIB}
    if planned.step.peak is not None:
        numbers |= {"peak, GiB": planned.step.peak / _GIB}
    yield numbers | _seconds(planned.least, planned.step, used) | {"compiled in, s": time.monotonic() - began}


def _embedded(given: Given, name: str, side: str, one: Devices) -> Iterator[dict[str, Any]]:
    """A full batch of the longest queries that are served, or of the longest documents that are encoded."""
    if side == "queries":
        sizes, length = served.TOY_SIZES if given.is_toy else served.SIZES, given.pack.settings["data"]["query_length"]
        shape = sizes["batch"], length
    else:
        sizes = encoding.TOY_SIZES if given.is_toy else encoding.SIZES
        shape = sizes["batch_tokens"] // sizes["document_length"], sizes["document_length"]
    of_step = step.STEPS[name]
    config = step.config_of(given, of_step)
    config.model.update(unroll=1, attention="plain")
    model, mesh = abstract_model(config, of_step.vocab_size or given.pack.vocab_size), sharding.make_mesh(devices=one)
    params = parameters_of(model)
    params = jax.tree.map(_at, params, shardings_of(params, config, mesh))
    ids = _at(jax.ShapeDtypeStruct(shape, jnp.int32), sharding.batch_sharding(mesh))
    bound = bind(model)

    @jax.jit
    def embed(params: Any, ids: jax.Array, types: jax.Array) -> jax.Array:
        text, towers = Text.from_ids(ids, types), bound(gather(params))
        return (towers.encode_query if side == "queries" else towers.encode_document)(text, None)

    yield from _program(embed, (params, ids, ids), mesh, {"rows": shape[0], "tokens of a row": shape[1]})


def _exact(given: Given, precision: str, all_devices: Devices, is_served: bool = False) -> Iterator[dict[str, Any]]:
    """A program of exact search: of 512 queries, as a call of many takes them, or of those that are served at once."""
    of = served if is_served else search
    sizes = of.TOY_SIZES if given.is_toy else of.SIZES
    E = step.config_of(given, step.STEPS["L12 H768"]).model.embed_dim if is_served else sizes["dimensions"]
    mesh = jax.make_mesh((len(all_devices),), ("rows",), devices=all_devices)
    form = Form(precision, E)
    rows_NE = np.random.default_rng(0).standard_normal((64, E), np.float32)
    if form.needs_ranges:
        form = form.calibrated(ranges_of(rows_NE))
    layout = exact.Layout.of(sizes["rows"], mesh, precision)
    stored_NS = form.encode(rows_NE)
    size = sizes["batch"] if is_served else min(512, sizes["queries"])
    arrays = (
        _at(jax.ShapeDtypeStruct((1, size, E), jnp.float32), NamedSharding(mesh, P())),
        _at(
            jax.ShapeDtypeStruct((mesh.size * layout.share, stored_NS.shape[1]), stored_NS.dtype),
            NamedSharding(mesh, P(mesh.axis_names)),
        ),
        sizes["rows"],
    )
    yield from _program(
        exact.search_batches, arrays, mesh, {"rows": sizes["rows"], "queries": size}, layout=layout, k=sizes["k"]
    )


def _maxsim(given: Given, one: Devices) -> Iterator[dict[str, Any]]:
    """64 queries and 128 documents, which a program takes at a time."""
    sizes = search.TOY_SIZES if given.is_toy else search.SIZES
    mesh, E = sharding.make_mesh(devices=one), sizes["dimensions"]
    whole = NamedSharding(mesh, P())
    shapes = [
        (64, sizes["query_tokens"], E),
        (64, sizes["query_tokens"]),
        (128, sizes["tokens"], E),
        (128, sizes["tokens"]),
    ]
    arrays = [_at(jax.ShapeDtypeStruct(shape, jnp.float32 if len(shape) == 3 else bool), whole) for shape in shapes]
    yield from _program(jax.jit(maxsim), arrays, mesh, {"documents": 128, "queries": 64})


def _program(
    function: Any, arrays: Sequence[Any], mesh: jax.sharding.Mesh, about: Mapping[str, Any], **options: Any
) -> Iterator[dict[str, Any]]:
    """The plan of a compiled function."""
    began, used = time.monotonic(), list(mesh.devices.flat)
    with jax.set_mesh(mesh):
        traced = function.trace(*arrays, **options)
        platform = "cuda" if used[0].platform == "gpu" else used[0].platform
        compiled = step_plan.compile_step(traced.lower(lowering_platforms=(platform,)), 0, 0, None)
    chip = chips.of(used[0])
    least = work.flops(traced.jaxpr) / (chip.peak_flops / chip.cores) if chip else 0.0
    numbers = {"devices": len(used), "arguments, GiB": compiled.arguments / _GIB}
    if compiled.peak is not None:
        numbers |= {"peak, GiB": compiled.peak / _GIB}
    numbers |= _seconds(least, compiled, used) | {"compiled in, s": time.monotonic() - began}
    yield numbers | {"of": ", ".join(f"{count:,} {name}" for name, count in about.items())}


def _seconds(least: float, compiled: step_plan.CompiledStep, used: Devices) -> dict[str, Any]:
    """Milliseconds of a program: of its products at the peak, and by the compiler's estimate where there is one."""
    chip = chips.of(used[0])
    numbers: dict[str, Any] = {"ms at the peak of products": 1000 * least}
    if chip and chip.clock and compiled.cycles:
        numbers |= {"ms by the estimate": 1000 * sum(compiled.cycles.values()) / chip.clock}
        kind, cycles = next(iter(compiled.cycles.items()))
        numbers |= {"most of it": f"{kind} {cycles / sum(compiled.cycles.values()):.0%}"}
    return numbers


def _at(leaf: jax.ShapeDtypeStruct, place: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place)


def main(arguments: Sequence[str]) -> None:
    """Plans what is not planned yet, and writes OUT/results.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that benchmarks.accelerator.pack made")
    parser.add_argument("--out", type=Path, required=True, help="the folder for plans, those of earlier calls too")
    parser.add_argument("--topology", default="v5e:2x4", help="as `plan.topology`, such as v5e:2x4 or v3:2x2")
    asked = parser.parse_args(arguments)
    all_devices = devices_of(asked.topology)
    asked.out.mkdir(parents=True, exist_ok=True)
    name = f"plans_{asked.topology.replace(':', '_')}"
    given = Given(asked.data, asked.out, name, time.monotonic() + _DAYS, all_devices[0].device_kind)
    given.open({"topology": asked.topology})
    perform(given, attempts(given, all_devices), ())


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        sys.exit(f"error: {error}")

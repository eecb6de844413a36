"""What devices send each other: programs that 8 CPU devices compile, by hand; and what other compilers write."""

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from retrieval.training import collectives

ALONE, PAIRS = range(8), [0, 0, 1, 1, 2, 2, 3, 3]


def compiled(function, *shapes_and_specs):
    """The text of a function of sharded float32 arrays, for a mesh of 4 x 2 devices."""
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    arrays = [jax.ShapeDtypeStruct(s, np.float32, sharding=NamedSharding(mesh, spec)) for s, spec in shapes_and_specs]
    with jax.set_mesh(mesh):
        return jax.jit(function(mesh)).lower(*arrays).compile().as_text()


def test_a_loop_that_gathers_and_sums():
    def layers(w, x):
        layer = jax.checkpoint(lambda x, w: (x @ jax.reshard(w, P()), None))
        return jax.lax.scan(layer, x, w)[0]

    text = compiled(
        lambda mesh: lambda w, x: jax.vjp(layers, w, x)[1](x),
        ((5, 32, 32), P(None, "fsdp")),
        ((64, 32), P(("data", "fsdp"))),
    )
    layer = 32 * 32 * 4
    assert collectives.received(text, ALONE) == 5 * (2 * layer / 2 + 2 * 7 / 8 * layer)
    assert collectives.received(text, PAIRS) == 5 * 2 * 3 / 4 * layer  # both halves of a layer are on each chip
    assert collectives.received(text, [0] * 8) == 0


EACH = {  # bytes that a device receives when it has 512, over the axis of four, alone and as one of two on a chip
    "psum": (lambda x: jax.lax.psum(x, "data"), 2 * 3 / 4 * 512, 2 * 2 * 3 / 4 * 512),
    "all_gather": (lambda x: jax.lax.all_gather(x, "data", tiled=True), 3 * 512, 2 * 3 * 512),
    "psum_scatter": (lambda x: jax.lax.psum_scatter(x, "data", tiled=True), 3 / 4 * 512, 2 * 3 / 4 * 512),
    "all_to_all": (lambda x: jax.lax.all_to_all(x, "data", 0, 0, tiled=True), 3 / 4 * 512, 2 * 3 / 4 * 512),
    "ppermute": (lambda x: jax.lax.ppermute(x, "data", [(0, 1), (1, 2)]), 512 / 2, 2 * 512 / 2),
    "psum of both axes": (lambda x: jax.lax.psum(x, ("data", "fsdp")), 2 * 7 / 8 * 512, 2 * 3 / 4 * 512),
}


@pytest.mark.parametrize("name", EACH)
def test_each_collective(name):
    function, alone, pairs = EACH[name]
    spec = P(("data", "fsdp"))
    text = compiled(
        lambda mesh: jax.shard_map(function, in_specs=spec, out_specs=spec, check_vma=False), ((64, 16), spec)
    )
    assert collectives.received(text, ALONE) == alone
    assert collectives.received(text, PAIRS) == pairs


def program(*lines, before=""):
    return "\n".join(
        [before, "ENTRY %main (x: f32[8]) -> f32[8] {", "  %x = f32[8]{0:T(256)} parameter(0)", *lines, "}"]
    )


ALL = "replica_groups=[1,8]<=[8]"


def test_what_is_sent_in_the_background_counts_once():
    text = program(
        f"  %s = (f32[8]{{0}}, f32[64]{{0}}) all-gather-start(%x), {ALL}, dimensions={{0}}",
        "  ROOT %d = f32[64] all-gather-done(%s)",
    )
    assert collectives.received(text, ALONE) == 7 * 32
    text = program(
        "  %s = ((f32[8]), f32[8], s32[]) async-start(%x), calls=%wrapped",
        "  %u = ((f32[8]), f32[8], s32[]) async-update(%s), calls=%wrapped",
        "  ROOT %d = f32[8] async-done(%u), calls=%wrapped",
        before=f"%wrapped (p: f32[8]) -> f32[8] {{\n  %p = f32[8] parameter(0)\n"
        f"  ROOT %r = bf16[8] all-reduce(%p), {ALL}\n}}",
    )
    assert collectives.received(text, ALONE) == 2 * 7 / 8 * 32


@pytest.mark.parametrize(
    ("start", "step", "end", "turns"),
    [
        ("constant(0)", "constant(1)", "constant(12)", 12),
        ("constant(3)", "constant(2)", "constant(12)", 5),
        ("constant(0)", "constant(1)", "parameter(1)", 1),
        ("parameter(1)", "constant(1)", "constant(12)", 1),
    ],
)
def test_loops_turn_as_their_counter_says_or_once(start, step, end, turns):
    text = program(
        f"  %n = s32[]{{:T(128)}} {start}",
        "  %c = s32[] copy(%n)",
        "  %t = (f32[8], s32[]) tuple(%x, %c)",
        "  ROOT %w = (f32[8], /*index=1*/s32[]) while(%t), condition=%test, body=%turn",
        before=f"""%test (p: (f32[8], s32[])) -> pred[] {{
  %p = (f32[8], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=1
  %end = s32[] {end}
  ROOT %less = pred[] compare(%i, %end), direction=LT
}}
%turn (p: (f32[8], s32[])) -> (f32[8], s32[]) {{
  %p = (f32[8], s32[]) parameter(0)
  %v = f32[8] get-tuple-element(%p), index=0
  %r = f32[8] all-reduce(%v), {ALL}
  %i = s32[] get-tuple-element(%p), index=1
  %step = s32[] {step}
  %next = s32[] add(%i, %step)
  ROOT %out = (f32[8], s32[]) tuple(%r, %next)
}}""",
    )
    assert collectives.received(text, ALONE) == turns * 2 * 7 / 8 * 32


def test_of_branches_the_least_counts():
    branches = "\n".join(
        f"%{name} (p: {kind}[8]) -> {kind}[8] {{\n  %p = {kind}[8] parameter(0)\n  ROOT %r = {kind}[8] all-reduce(%p), "
        f"{ALL}\n}}"
        for name, kind in (("a", "f32"), ("b", "bf16"))
    )
    text = program("  ROOT %o = f32[8] conditional(%i, %x, %x), branch_computations={%a, %b}", before=branches)
    assert collectives.received(text, ALONE) == 2 * 7 / 8 * 16

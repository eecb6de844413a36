"""The plan: the real step, compiled for devices that are or are not here; its numbers against XLA's and by hand."""

import dataclasses
import importlib.util
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from conftest import REPOSITORY

from configs import ict_bfs_wlp
from retrieval.common.errors import UserError
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.fitting.examples import abstract_batch
from retrieval.runs.pipeline import runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import train_state
from retrieval.stages import plan
from retrieval.training import chips, step_plan, work
from retrieval.training.chips import Chip

LOCK = REPOSITORY / "requirements.lock"
TOY = Chip("toy", "cpu", 2, peak_flops=1e9, memory=2 * 2**20)
needs_libtpu = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the package libtpu")


def make_config(**changes):
    """A config whose step is quick to compile."""
    config = ict_bfs_wlp.get_config("local")
    config.prepare.vocab_size = 200
    config.data.update(query_length=8, document_length=16)
    config.model.update(num_layers=2, hidden_size=32, num_heads=2, mlp_size=64, embed_dim=16)
    config.model.update(unroll=1, remat="full", dropout=0.0, pooling="cls", tied=False, matmul_dtype="dtype")
    config.train.update(batch_size=32, steps=1000)
    config.update_from_flattened_dict(changes)
    return config


@pytest.fixture(scope="module")
def planned():
    config = make_config(**{"mesh.fsdp": 4, "mesh.replicate_below": 0})
    before = config.to_json()
    result = plan.make_plan(config, config.prepare.vocab_size, jax.devices())
    assert config.to_json() == before
    return result


def toy(planned, **step):
    """The plan for chips with round numbers."""
    return dataclasses.replace(
        planned, chip=TOY, flops=3e6, rate=4e9, steps=3600, step=dataclasses.replace(planned.step, **step)
    )


def test_parameters_and_bytes_of_a_device(planned):
    layer = 4 * (32 * 32 + 32) + 32 * 64 + 64 + 64 * 32 + 32 + 4 * 32
    tower = (200 + 16 + 2) * 32 + 2 * 32 + 2 * layer + 32 * 16 + 16
    assert planned.parameters == 2 * tower
    # Parameters and both moments, shared by four devices, and a few counters.
    assert planned.step.state == pytest.approx(4 * 3 * 2 * tower / 4, abs=64)
    rows = 32 * (2 * 8 + 2 * 16 + 2) * 4 // 8
    assert planned.step.arguments == pytest.approx(planned.step.state + rows, abs=64)
    assert planned.step.peak >= planned.step.arguments + planned.step.temporaries


def test_operations_are_those_of_the_model(planned):
    B, H, E, once = 32, 32, 16, 2 * 32 * 32 * 16  # once: the scores
    for L in (8, 16):
        once += 2 * B * (2 * (4 * L * H * H + 2 * L * L * H + 2 * L * H * 64) + H * E)
    # Backward takes twice the forward pass; remat computes each layer again and the loss its scores.
    assert 8 * planned.useful_flops == pytest.approx(3 * once, rel=0.02)
    assert 8 * planned.flops == pytest.approx(4 * once, rel=0.02)


# Operations of a token in the forward pass: products with weights, then attention, as the sizes of the families give
# them: two for each parameter but the embeddings', and 4 * heads * head size * visible tokens * layers.
QWEN3 = dict(num_layers=28, hidden_size=1024, num_heads=16, mlp_size=3072, family="qwen3")
QWEN3 |= dict(switches=("kv_heads=8", "head_size=128"))
MODERNBERT = dict(num_layers=22, hidden_size=768, num_heads=12, mlp_size=1152, family="modernbert")


@pytest.mark.parametrize(
    ("sizes", "length", "expected"),
    [
        (QWEN3, 512, 0.881e9 + 4 * 16 * 128 * 256.5 * 28),  # causal: half of the text
        (MODERNBERT, 2048, 0.221e9 + 4 * 768 * (8 * 2048 + 14 * 129)),  # 8 layers see all, 14 see 64 to each side
    ],
    ids=["Qwen3-0.6B", "ModernBERT-base"],
)
def test_useful_operations_are_those_of_shared_heads_gates_and_visible_tokens(sizes, length, expected):
    config = make_config(**{"data.query_length": length, "data.document_length": length, "train.chunk_size": 8})
    config.model.update(**sizes, embed_dim=0, tied=True)
    mesh = make_mesh(config)
    state, batch = train_state.abstract_state(config, abstract_model(config, 200), mesh), abstract_batch(config, mesh)
    with jax.set_mesh(mesh):
        operations = mesh.size * train_state.useful_flops(config, 200, state, batch)
    assert operations / (32 * 2 * length) == pytest.approx(3 * expected, rel=0.01)


def test_operations_are_what_xla_counts_without_loops():
    def layer(x, w):
        return jax.numpy.tanh(x @ w), None

    def looped(x, w):
        return jax.lax.scan(layer, x, w)[0].sum()

    def unrolled(x, w):
        for one in w:
            x, _ = layer(x, one)
        return x.sum()

    x, w = jax.ShapeDtypeStruct((64, 128), np.float32), jax.ShapeDtypeStruct((5, 128, 128), np.float32)
    counts = [work.flops(jax.jit(jax.grad(f, (0, 1))).trace(x, w).jaxpr) for f in (looped, unrolled)]
    xla = jax.jit(jax.grad(unrolled, (0, 1))).lower(x, w).compile().cost_analysis()["flops"]
    assert counts[0] == counts[1] == pytest.approx(xla, rel=0.02)


# As libtpu writes it, in short.
PROGRAM = """HloModule jit_step

%product (p.1: f32[8,8]) -> f32[8,8] {
  %exp.1 = f32[8,8]{1,0} exponential(%p.1)
  ROOT %convolution.1 = f32[8,8]{1,0} convolution(%exp.1, %exp.1), dim_labels=bf_io->bf
}

%sum (p.2: f32[8,8]) -> f32[8,8] {
  ROOT %add.2 = f32[8,8]{1,0} add(%p.2, %p.2)
}

%body (state: (s32[], f32[8,8])) -> (s32[], f32[8,8]) {
  %fusion.1 = f32[8,8]{1,0} fusion(%x), kind=kOutput, calls=%product, backend_config={"estimated_cycles":"100"}
  %kernel.1 = f32[8,8]{1,0} custom-call(%x), custom_call_target="tpu_custom_call"
  %copy.1 = f32[8,8]{0,1} copy(%fusion.1), backend_config={"estimated_cycles":"7"}
}

%condition (state.1: (s32[], f32[8,8])) -> pred[] {
  %number.1 = s32[]{:T(256)} get-tuple-element(%state.1), index=0
  %end = s32[]{:T(256)} constant(12), metadata={op_name="jit(step)/while"}
  ROOT %less = pred[]{:T(1024)} compare(%number.1, %end), direction=LT
}

ENTRY %main (x.1: f32[8,8]) -> f32[8,8] {
  %while.1 = (s32[]{:T(256)}, /*index=1*/f32[8,8]{1,0}) while(%tuple.2), condition=%condition, body=%body
  %fusion.2 = f32[8,8]{1,0} fusion(%x.2), kind=kLoop, calls=%sum, backend_config={"estimated_cycles":"30"}
  ROOT %all-reduce.1 = f32[8,8]{1,0} all-reduce(%fusion.2), to_apply=%sum, backend_config={"estimated_cycles":"5"}
}
"""


def test_cycles_of_a_loop_count_with_each_iteration():
    cycles, kernels = step_plan.estimated(PROGRAM)
    assert cycles == {"matrix products": 1200, "copies": 84, "all else": 30, "traffic between chips": 5}
    assert list(cycles) == ["matrix products", "copies", "all else", "traffic between chips"] and kernels == 12
    other_loop = PROGRAM.replace("direction=LT", "direction=NE")
    assert step_plan.estimated(other_loop)[0]["matrix products"] == 100
    assert step_plan.estimated(PROGRAM.replace("estimated_cycles", "other"))[0] == {}


def test_times(planned):
    result = toy(planned)
    assert result.least == pytest.approx(8 * 3e6 / 4e9) and result.estimate is None
    table = dict(plan.table(result))
    assert table["hours to step 3,600, at least"] == "0.0" and table["a device: memory"] == "0.00 GiB"
    assert not any("estimate" in name for name in table)
    chip, cycles = dataclasses.replace(TOY, clock=1e9), {"copies": 3 * 10**9}
    table = dict(plan.table(dataclasses.replace(toy(planned, cycles=cycles), chip=chip)))
    assert table["a step by the compiler's estimate"] == "3.000 s" and table["of it copies"] == "100.0%"
    assert table["hours to step 3,600 by the estimate"] == "3.0"
    table = dict(plan.table(dataclasses.replace(toy(planned, cycles=cycles, kernels=24), chip=chip)))
    assert table["calls of kernels (fused attention) that it leaves out"] == "24: a step takes longer"
    assert "hours to step 3,600 by the estimate" not in table


def test_a_topology_needs_a_known_chip_and_libtpu(monkeypatch):
    v3 = dataclasses.make_dataclass("Device", ["device_kind"])("TPU v3")
    assert chips.of(v3).name == "v3" and chips.of(jax.devices()[0]) is None

    with pytest.raises(UserError, match=r"unknown chip in config\.plan\.topology 'v5f': did you mean v5"):
        plan.devices_of("v5f:4x8")
    with pytest.raises(UserError, match="known: v2, v3, v4, v5e, v5p, v6e"):
        plan.devices_of("H100:8")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(UserError, match=r"pip install '\.\[plan\]'"):
        plan.devices_of("v3:4x8")


def run_stage(folder, monkeypatch, result):
    """The stage in an empty work directory, with a plan that is made already."""
    monkeypatch.setattr(plan, "make_plan", lambda *_: result)
    run = Run(make_config(), folder / "run", LOCK)
    runner.open_run(run)
    runner.run_stage(run, "plan")
    return run


def test_an_unfit_plan_says_what_would_help(tmp_path, monkeypatch, capsys, planned):
    result = toy(planned, state=100_000, arguments=100_000, temporaries=3_000_000, peak=3_100_000)
    with pytest.raises(UserError, match=r"(?s)needs 0\.00 GiB.*chunk_size=8.*4 times as many chips") as error:
        run_stage(tmp_path, monkeypatch, result)
    assert "| fits | no |" in capsys.readouterr().out and "remat" not in str(error.value)  # it is full
    assert "fsdp" not in str(error.value)  # what is shared would not be enough
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["fits"] is False
    assert not json.loads((tmp_path / "run" / "stages" / "plan.json").read_text())["done"]


def refused(message):
    class Lowered:
        def compile(self):
            raise jax.errors.JaxRuntimeError(message)

    return step_plan.compile_step(Lowered(), state=2**30, batch=2**20, limit=None)


def test_what_the_compiler_refuses_does_not_fit(tmp_path, monkeypatch, capsys, planned):
    step = refused("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 15.90G of 15.75G hbm.")
    v5e = next(chip for chip in chips.CHIPS if chip.name == "v5e")
    result = dataclasses.replace(planned, chip=v5e, step=step)
    assert step.peak < v5e.memory and result.fits is False
    with pytest.raises(UserError, match=r"needs 15\.90 GiB on a device that has 15\.75 GiB for it; "):
        run_stage(tmp_path, monkeypatch, result)
    shown = capsys.readouterr().out
    assert "| fits | no |" in shown and "| a device: memory | 16.00 GiB |" in shown
    assert "| a device: memory that a program may use | 15.75 GiB |" in shown
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        refused("INTERNAL: something else")


@needs_libtpu
def test_plans_for_tpus_that_are_not_here():
    """In a process of its own: libtpu stays in a process for good."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import plan_test as t\n"
        "t.os.environ['XLA_FLAGS'] = ''\n"  # libtpu ends a process over those of the tests, which it does not know
        "print('START', file=sys.stderr, flush=True)\n"
        "devices = t.plan.devices_of('v3:2x2')\n"
        "result = t.plan.make_plan(t.make_config(**{'train.batch_size': 64}), 300, devices)\n"
        "print(result.devices, result.fits, result.memory, result.kind, result.least < result.estimate < 1)\n"
        "large = t.plan.make_plan(t.make_config(**{'train.batch_size': 2**23, 'model.remat': 'none'}), 300, devices)\n"
        "print(large.fits, large.step.peak > large.room)\n"
        "try: t.plan.devices_of('v3:3x5')\n"
        "except t.UserError as error: print(error)\n"
        "fused = {'model.hidden_size': 128, 'model.dtype': 'bfloat16', 'model.attention': 'fused'}\n"
        "print(t.plan.make_plan(t.make_config(**fused), 300, t.plan.devices_of('v5e:2x2')).step.kernels)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    small, large, unknown, kernels = done.stdout.splitlines()[-4:]
    assert small == f"8 True {16 * 2**30} TPU v3 True" and large == "False True"
    assert unknown.startswith("config.plan.topology=v3:3x5: ") and unknown.endswith("such as v3:4x8")
    assert kernels == str(2 * 2 * 3)  # two towers of two layers: forward, once more for the backward pass, and that
    assert done.stderr.rpartition("START")[2].split() == []

"""The plan: the real step, compiled for devices that are or are not here; its numbers against XLA's and by hand."""

import dataclasses
import importlib.util
import json
import logging
import math
import os
import subprocess
import sys
import types

import jax
import numpy as np
import pytest
from conftest import REPOSITORY
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from support.toy_plan import TOY, make_config

from retrieval.config import fields
from retrieval.data.tokenizers.vocab import SPECIAL_TOKENS, WordPiece
from retrieval.errors import UserError
from retrieval.pipeline import records, runner
from retrieval.recipes import examples, train_state
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.search.index_kind import Cost
from retrieval.stage_outputs import Run
from retrieval.stages import plan, plan_devices, plan_indexes, plan_tuning
from retrieval.stages.plan_collection import Part
from retrieval.training import chips, sharding, step_memory, work
from retrieval.training.collection_work import Task
from retrieval.training.step_memory import Memory
from retrieval.training.work import Work

needs_libtpu = pytest.mark.skipif(not importlib.util.find_spec("libtpu"), reason="needs the package libtpu")


@pytest.fixture(scope="module")
def planned():
    config = make_config(**{"mesh.fsdp": 4, "mesh.replicate_below": 0})
    before = config.to_json()
    result = plan.make_plan(config, config.prepare.vocab_size, jax.devices())
    assert config.to_json() == before
    return result


def test_parameters_and_bytes_of_a_device(planned):
    layer = 4 * (32 * 32 + 32) + 32 * 64 + 64 + 64 * 32 + 32 + 4 * 32
    tower = (200 + 16 + 2) * 32 + 2 * 32 + 2 * layer + 32 * 16 + 16
    assert planned.parameters == 2 * tower
    # Parameters and both moments, shared by four devices, and a few counters.
    assert planned.memory.state == pytest.approx(4 * 3 * 2 * tower / 4, abs=64)
    rows = 32 * (2 * 8 + 2 * 16 + 2) * 4 // 8
    assert planned.memory.arguments == pytest.approx(planned.memory.state + rows, abs=64)
    assert planned.memory.peak >= planned.memory.arguments + planned.memory.temporaries


def by_hand(config):
    """Operations of a step's matrix products, forward, by the sizes of the model."""
    m, B = config.model, config.train.batch_size
    H, E, total = m.hidden_size, m.embed_dim, 0
    for L in (config.data.query_length, config.data.document_length):
        layer = 4 * L * H * H + 2 * L * L * H + 2 * L * H * m.mlp_size
        total += 2 * B * (m.num_layers * layer + H * E)
    return total + 2 * B * B * E


def test_operations_are_those_of_the_model(planned):
    config = make_config()
    once = by_hand(config)
    # Backward takes twice the forward pass; remat computes each layer again and the loss its scores.
    assert 8 * planned.useful == pytest.approx(3 * once, rel=0.02)
    assert 8 * planned.work.flops == pytest.approx(4 * once, rel=0.02)


def test_an_autoencoders_operations_include_decoder_and_output_layers():
    rates = dict.fromkeys(["data.rates.ict", "data.rates.bfs", "data.rates.wlp"], 0.0) | {"data.rates.mlm": 1.0}
    config = make_config(recipe="autoencoder", **rates, **{"model.decoder.layers": 3, "model.decoder.latent": 8})
    batch = examples.abstract_batch(config, mesh := sharding.make_mesh())
    model = abstract_model(config, 200)
    with jax.set_mesh(mesh):
        useful = train_state.useful_flops(config, 200, train_state.abstract_state(config, model, mesh), batch)
    B, L, H, P_ = 32, 16, 32, batch["positions"].shape[1]
    layer = 4 * L * H * H + 2 * L * L * H + 2 * L * H * 64
    forward = 5 * layer + 3 * 2 * H * H + P_ * (H * H + H * 200) + L * H * 200 + H * 2 * 8 + 8 * H
    assert 8 * useful == pytest.approx(3 * 2 * B * forward, rel=0.02)


def test_work_is_what_xla_counts_without_loops():
    def layer(x, w):
        return jax.numpy.tanh(x @ w), None

    def looped(x, w):
        return jax.lax.scan(layer, x, w)[0].sum()

    def unrolled(x, w):
        for one in w:
            x, _ = layer(x, one)
        return x.sum()

    x, w = jax.ShapeDtypeStruct((64, 128), np.float32), jax.ShapeDtypeStruct((5, 128, 128), np.float32)
    count = [work.of(jax.jit(jax.grad(f, (0, 1))).trace(x, w).jaxpr) for f in (looped, unrolled)]
    xla = jax.jit(jax.grad(unrolled, (0, 1))).lower(x, w).compile().cost_analysis()["flops"]
    assert count[0] == count[1] and count[0].flops == pytest.approx(xla, rel=0.02)
    product = 4 * (64 * 128 + 128 * 128 + 64 * 128)
    assert count[0].bytes == 15 * product


def test_work_of_a_device():
    mesh = jax.make_mesh((4, 2), ("data", "fsdp"))
    x = jax.ShapeDtypeStruct((64, 32), np.float32, sharding=NamedSharding(mesh, P(("data", "fsdp"))))
    w = jax.ShapeDtypeStruct((5, 32, 32), np.float32, sharding=NamedSharding(mesh, P(None, "fsdp")))

    def f(w, x):
        layer = jax.checkpoint(lambda x, w: (x @ jax.reshard(w, P()), None))
        return jax.lax.scan(layer, x, w)[0]

    with jax.set_mesh(mesh):
        forward = work.of(jax.jit(f).trace(w, x).jaxpr)
        both = work.of(jax.jit(lambda w, x: jax.vjp(f, w, x)[1](x)).trace(w, x).jaxpr)
    assert forward == Work(5 * 2 * 64 * 32 * 32 / 8, 5 * (2 * 64 * 32 / 8 + 32 * 32) * 4)
    assert both.flops == 3 * forward.flops


def test_devices_pass_each_gradient_once():
    """With whole parameters on each device: a sum of the gradients, and the embeddings of the batch."""
    config = make_config()
    result = plan.make_plan(config, 200, jax.devices())
    gradients = 2 * 7 / 8 * 4 * result.parameters
    embeddings = 32 * 16 * 4
    assert gradients <= result.received <= gradients + 3 * embeddings


def toy(planned, **changes):
    return dataclasses.replace(planned, chip=TOY, work=Work(3e6, 2e5), received=2e4, steps=3600, **changes)


def test_times(planned):
    result = toy(planned)
    assert result.chips == 4 and result.hbm == 2**20
    assert result.seconds == pytest.approx(
        {"matrix products": 0.006, "memory traffic": 0.004, "traffic between chips": 0.002}
    )
    table = dict(result.table())
    assert table["examples per second, at most"] == round(32 / 0.006)
    assert table["hours to step 3,600, at least"] == "0.0" and table["a device: memory"] == "0.00 GiB"


def test_an_estimate_says_which_kernels_it_leaves_out(planned):
    chip = dataclasses.replace(TOY, clock=1e9)
    whole = dataclasses.replace(toy(planned), chip=chip, cycles={"copies": 10**9})
    without = dataclasses.replace(whole, kernels=24)
    assert whole.cost == 1 / 32 and without.cost == 0.006 / 32  # in place of the estimate, the bound
    assert (whole.cost_by, without.cost_by) == ("the compiler's estimate", "the bounds")
    assert dataclasses.replace(planned, rate=None).cost_by == "operations"
    name = "calls of kernels (fused attention) that it leaves out"
    assert name not in dict(whole.table()) and "hours to step 3,600 by the estimate" in dict(whole.table())
    assert dict(without.table())[name] == "24: a step takes longer"
    assert "hours to step 3,600 by the estimate" not in dict(without.table())


def test_the_chips_are_told_by_their_kind():
    class Device:
        device_kind = "TPU v3"

    assert chips.of(Device()).name == "v3" and chips.of(jax.devices()[0]) is None
    assert len({chip.kind for chip in chips.CHIPS}) == len({chip.name for chip in chips.CHIPS}) == len(chips.CHIPS)
    with pytest.raises(UserError, match=r"unknown chip in config\.plan\.topology 'v5f': did you mean v5"):
        plan_devices.of_topology("v5f:4x8")
    with pytest.raises(UserError, match="known: v2, v3, v4, v5e, v5p, v6e"):
        plan_devices.of_topology("H100:8")


def test_the_plans_vocabulary_is_the_runs(tmp_path):
    """That of the base, where there is one; not what a config of its own would ask for."""
    lock = REPOSITORY / "requirements.lock"
    base = Run(make_config(), tmp_path / "base", lock)
    config = make_config(stages=("train",), base=str(base.folder), **{"prepare.vocab_size": 77})
    runner.open_run(base)
    run = Run(config, tmp_path / "run", lock)
    assert run.vocab_size == 200  # yet to be trained
    base.corpus.mkdir()
    WordPiece([*SPECIAL_TOKENS, "a", "b"]).save(base.corpus / "vocab.txt")
    assert run.vocab_size == len(SPECIAL_TOKENS) + 2
    with pytest.raises(UserError, match=r"vocab\.txt: no such file"):
        _ = Run(make_config(vocab=str(tmp_path / "vocab.txt")), tmp_path / "other", lock).vocab_size


def run_stage(folder, monkeypatch, result, seconds=0.5, **changes):
    """The stage in an empty work directory, with a plan that is made already, and no step that is run."""
    monkeypatch.setattr(plan, "make_plan", lambda config, size, devices: result)
    if seconds:
        monkeypatch.setattr(plan.step_time, "measure", lambda *_: seconds)
    run = Run(make_config(**changes), folder / "run", REPOSITORY / "requirements.lock")
    runner.open_run(run)
    runner.run_stage(run, "plan")
    return run


def test_the_plan_is_shown_and_in_the_record(tmp_path, monkeypatch, capsys, planned):
    run = run_stage(tmp_path, monkeypatch, planned)
    shown = capsys.readouterr().out
    assert "| parameters |" in shown and "8 x cpu" in shown and "fits" not in shown  # the memory of a CPU is not known
    saved = json.loads((run.folder / "plan.json").read_text())
    assert saved["parameters"] == records.details(run, "plan")["parameters"] and saved["fits"] is None


def test_a_step_is_run_on_the_devices_here(tmp_path, monkeypatch, capsys, planned):
    monkeypatch.setattr(plan.training_time, "operations_per_second", lambda devices: 1e12)
    run_stage(tmp_path / "run", monkeypatch, planned, seconds=None)
    saved, shown = json.loads((tmp_path / "run" / "run" / "plan.json").read_text()), capsys.readouterr().out
    assert saved["rate"] == 1e12 and 0 < saved["measured"] < 60
    assert f"| a step here, measured | {saved['measured']:.3f} s |" in shown
    assert f"| hours to step 1,000 here | {1000 * saved['measured'] / 3600:.1f} |" in shown
    monkeypatch.setattr(plan.training_time, "operations_per_second", lambda devices: 1.0)
    run_stage(tmp_path / "slow", monkeypatch, planned, seconds=None)
    assert json.loads((tmp_path / "slow" / "run" / "plan.json").read_text())["measured"] is None
    shown = capsys.readouterr().out
    assert "| hours to step 1,000, at least |" in shown and "measured" not in shown


def test_a_plan_has_the_rows_that_the_data_would_be_packed_in(tmp_path, monkeypatch, caplog, planned):
    run, seen = Run(make_config(**{"data.pack.auto": True}), tmp_path, REPOSITORY / "requirements.lock"), []
    monkeypatch.setattr(plan, "_timed", lambda planned, *_: planned)
    monkeypatch.setattr(plan, "make_plan", lambda config, *_: seen.append(config.data.pack.document) or planned)
    plan.plan(run)
    assert "config.data.pack.auto chooses rows by data that is not there" in caplog.text
    WordPiece([*SPECIAL_TOKENS, "a"]).save(tmp_path / "corpus" / "vocab.txt")

    def chosen(run, vocabulary, devices):
        packed = Run(run.config.copy_and_resolve_references(), run.folder, REPOSITORY / "requirements.lock")
        packed.config.data.pack.document = 0.5
        return packed

    monkeypatch.setattr(plan, "with_rows", chosen)
    plan.plan(run)
    assert seen == [0.0, 0.5]


def test_no_step_is_measured_with_devices_of_other_hosts(monkeypatch, caplog, planned):
    """The others wait for the plan, and would not take part in the step."""
    monkeypatch.setattr(plan.training_time, "operations_per_second", lambda devices: 1e18)
    monkeypatch.setattr(plan.step_time, "measure", lambda config, size, devices: 2.0)
    here, there = (types.SimpleNamespace(process_index=index) for index in (0, 1))
    with caplog.at_level(logging.INFO):
        for devices, measured in (([here, here], 2.0), ([here, there], None)):
            assert plan._timed(dataclasses.replace(planned, collection=None), None, 1, devices).measured == measured
    assert "measured where one host has all devices" in caplog.text


def test_an_unfit_plan_says_what_would_help(tmp_path, monkeypatch, capsys, planned):
    memory = Memory(state=100_000, arguments=100_000, temporaries=3_000_000, peak=3_100_000)
    with pytest.raises(UserError, match=r"(?s)needs 0\.00 GiB.*chunk_size=8.*more chips") as error:
        run_stage(tmp_path, monkeypatch, toy(planned, memory=memory))
    assert "| fits | no |" in capsys.readouterr().out and "remat" not in str(error.value)  # it is full
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["fits"] is False
    assert not json.loads((tmp_path / "run" / "stages" / "plan.json").read_text())["done"]


def refused(message):
    class Lowered:
        def compile(self):
            raise jax.errors.JaxRuntimeError(message)

    memory, text = step_memory.compile_step(Lowered(), state=2**30, batch=2**20, limit=None)
    assert text == ""
    return memory


def test_what_the_compiler_refuses_does_not_fit(tmp_path, monkeypatch, capsys, planned):
    memory = refused("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 15.90G of 15.75G hbm.")
    v5e = next(chip for chip in chips.CHIPS if chip.name == "v5e")
    result = dataclasses.replace(planned, chip=v5e, memory=memory, received=None)
    assert memory.peak < v5e.memory and result.fits is False and len(result.seconds) == 2
    with pytest.raises(UserError, match=r"needs 15\.90 GiB on a device that has 15\.75 GiB for it; "):
        run_stage(tmp_path, monkeypatch, result)
    shown = capsys.readouterr().out
    assert "| fits | no |" in shown and "| a device: memory | 16.00 GiB |" in shown
    assert "| a device: memory that a program may use | 15.75 GiB |" in shown


@pytest.mark.parametrize(
    "message",
    [
        "RESOURCE_EXHAUSTED: no room",
    ],
)
def test_a_refusal_has_the_compilers_words_and_advice(tmp_path, monkeypatch, planned, message):
    result = dataclasses.replace(planned, chip=None, fsdp=1, data=8, memory=refused(message), received=None)
    assert result.fits is False
    with pytest.raises(UserError) as error:
        run_stage(tmp_path, monkeypatch, result)
    said = str(error.value)
    assert message in said and "mesh.fsdp=2" in said and "chunk_size=16" in said and "train.batch_size" in said


def test_a_local_device_tells_its_memory_limit(planned):
    class Device:
        def memory_stats(self):
            return {"bytes_limit": 2**19}

    device = Device()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_memory.jax, "local_devices", lambda: [device])
        limit = step_memory.program_limit(device)
        assert step_memory.program_limit(object()) is None  # of a topology
    assert step_memory.program_limit(jax.devices()[0]) is None  # a CPU
    peak = 3 * 2**18  # less than the chip has
    memory = Memory(state=1, arguments=1, temporaries=1, peak=peak, limit=limit)
    assert toy(planned, memory=memory).fits is False
    assert toy(planned, memory=dataclasses.replace(memory, limit=None)).fits is True


def test_advice_is_computed(planned):
    memory = Memory(state=8_000_000, arguments=8_000_000, temporaries=500_000, peak=8_500_000)
    config = make_config(**{"model.remat": "none"})
    chunk_sizes = recipe_of(config).chunk_sizes(8)
    tips = list(plan.advice(toy(planned, memory=memory, data=8, fsdp=1), "none", 0, chunk_sizes))
    assert tips[1].startswith("config.mesh.fsdp=8: parameters and optimizer state would take about 0.00 GiB")
    assert tips[0].startswith("config.model.remat=full") and tips[-1].startswith("more chips: 10 times as many")
    memory = Memory(state=100_000, arguments=100_000, temporaries=3_000_000, peak=3_100_000)
    tips = list(plan.advice(toy(planned, memory=memory, data=8, fsdp=1), "none", 0, chunk_sizes))
    assert not any("fsdp=" in tip for tip in tips) and any(tip.startswith("config.train.chunk_size=8:") for tip in tips)


PACKED = {"data.pack.query": 0.5, "data.pack.document": 0.5, "data.lanes": 8, "train.batch_size": 64}


def test_a_plan_says_what_a_server_holds(tmp_path, monkeypatch, capsys, planned):
    part, asked = Part(Task("to encode", 1.0, 1.0)), []
    index = plan_indexes.PlannedIndex("toy", 10, Cost(1.0, 3 * 2.0**30, 2.0**30))
    monkeypatch.setattr(plan.plan_collection, "timed", lambda parts, *_: parts)
    monkeypatch.setattr(plan.plan_indexes, "indexes", lambda run, E: asked.append(E) or (index, index))
    result = dataclasses.replace(planned, collection=(part,), parameters=2**28)
    run = run_stage(tmp_path, monkeypatch, result, **{"plan.passages": 10})
    shown = capsys.readouterr().out
    assert "| to serve, a host: towers and indexes | 3.00 GiB |" in shown and asked == [16]
    assert "| toy of 10 passages, a host: peak of the build | 3.00 GiB |" in shown
    assert len(json.loads((run.folder / "plan.json").read_text())["indexes"]) == 2


def test_a_plan_without_towers_has_indexes_of_words(tmp_path, monkeypatch, capsys, caplog, planned):
    cost = Cost(1.0, 3 * 2.0**30, 2.0**30)
    monkeypatch.setattr(plan_indexes, "_cost", lambda built, planned: cost)
    run_stage(tmp_path, monkeypatch, planned, **{"plan.passages": 10, "recipe": "deepct"})
    shown = capsys.readouterr().out
    assert "| BM25 of 10 passages, a host: peak of the build | 3.00 GiB |" in shown
    assert "to serve" not in shown and "exact" not in shown and "ScaNN" not in shown
    assert "a model that weighs words gives no embeddings, so of config.plan.passages" in caplog.text


@pytest.mark.parametrize("size", [4, 8, 16])
def test_packed_chunks_are_whole_lanes_per_device(size):
    message = rf"chunk_size={size} must be .* devices, 4 times the 8 examples that a lane packs: take 32$"
    with pytest.raises(UserError, match=message):
        recipe_of(make_config(**PACKED, **{"train.chunk_size": size})).check_chunks(4)
    recipe_of(make_config(**PACKED, **{"train.chunk_size": 32})).check_chunks(4)


@pytest.mark.parametrize("recipe", ["two_tower", "mlm", "autoencoder"])
def test_the_abstract_batch_is_what_the_objective_takes(recipe):
    drawn = "ict" if recipe == "two_tower" else "mlm"
    rates = {f"data.rates.{name}": float(name == drawn) for name in ("ict", "bfs", "wlp", "mlm")}
    config = make_config(recipe=recipe, **rates)
    mesh = sharding.make_mesh()
    batch = examples.abstract_batch(config, mesh)
    assert {len(x.shape) for x in batch.values()} <= {2, 3} and {x.shape[0] for x in batch.values()} == {32}
    assert all(x.sharding.spec == P(("data", "fsdp")) for x in batch.values())
    assert batch["query" if recipe == "two_tower" else "text"].dtype == np.int32


def test_without_libtpu_it_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(UserError, match=r"pip install '\.\[plan\]'"):
        plan_devices.of_topology("v3:4x8")


@needs_libtpu
def test_a_plan_needs_a_tpu_that_exists(tmp_path):
    """In a process of its own: libtpu stays in a process for good."""
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import plan_test as t\n"
        "t.os.environ['XLA_FLAGS'] = ''\n"  # libtpu ends a process over those of the tests, which it does not know
        "print('START', file=sys.stderr, flush=True)\n"
        "devices = t.plan_devices.of_topology('v3:2x2')\n"
        "result = t.plan.make_plan(t.make_config(**{'train.batch_size': 64}), 300, devices)\n"
        "print(result.devices, result.chips, result.fits, result.hbm, result.kind, len(result.seconds))\n"
        "print(result.received / (2 * 3 / 4 * 4 * result.parameters))\n"
        "from configs import ict_bfs_wlp\n"
        "large = t.plan.make_plan(ict_bfs_wlp.get_config(), 30522, devices)\n"
        "print(large.fits, large.memory.peak > large.room, large.received)\n"
        "try: t.plan_devices.of_topology('v3:3x5')\n"
        "except t.UserError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = done.stdout.splitlines()
    assert lines[-4] == f"8 4 True {16 * 2**30} TPU v3 3"
    assert 0.4 < float(lines[-3]) < 1.2  # of the gradients in float32, which a TPU may add in bfloat16
    assert lines[-2] == "False True None"
    assert lines[-1].startswith("config.plan.topology=v3:3x5: ") and lines[-1].endswith("such as v3:4x8")
    assert done.stderr.rpartition("START")[2].split() == []


@needs_libtpu
def test_a_plan_for_a_v5e_has_kernels_for_fused_attention():
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "import plan_test as t\n"
        "t.os.environ['XLA_FLAGS'] = ''\n"
        "devices = t.plan_devices.of_topology('v5e:2x2')\n"
        "config = t.make_config(**{'model.hidden_size': 128, 'model.dtype': 'bfloat16', 'model.attention': 'fused'})\n"
        "result = t.plan.make_plan(config, 300, devices)\n"
        "print(result.kernels, result.cost == max(result.seconds.values()) / 32)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    # Two towers of two layers: forward, once more for the backward pass, and that.
    assert done.stdout.split()[-2:] == [str(2 * 2 * 3), "True"]


def test_a_tuning_takes_the_fastest_setting_that_fits(tmp_path):
    """Each field with the best values of those before it; what is faster and does not fit is not taken."""
    costs = {"a": {1: 0.5, 2: 0.4}, "b": {1: 0.9, 2: 1.1}}
    asked = []

    def measure(settings):
        asked.append(settings)
        cost = np.prod([costs.get(name, {}).get(value, 1.0) for name, value in settings.items()])
        return plan_tuning.Outcome(settings.get("a") != 2, 2.0**30, float(cost))

    fields = [[{"a": 1}, {"a": 2}], [{"b": 1}, {"b": 2}]]
    kept = tmp_path / "kept.json"
    tuning = plan_tuning.tune(measure, fields, [{"c": 9}], kept, "x")
    assert asked == [{}, {"a": 1}, {"a": 2}, {"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 1, "c": 9}]
    assert tuning.best == {"a": 1, "b": 1} and tuning.outcome.cost == pytest.approx(0.45)
    assert [row[1:4] for row in plan_tuning.rows(tuning)][3] == ["yes", "1.00", "2.222"]
    again = plan_tuning.tune(measure, fields, [{"c": 9}], kept, "x")
    assert again == tuning and len(asked) == 6
    plan_tuning.tune(measure, [], [], kept, "another config")
    assert len(asked) == 7


def test_where_nothing_fits_the_smallest_is_taken(tmp_path):
    sizes = {None: 9.0, 1: 5.0, 2: 3.0, 3: None}

    def measure(settings):
        return plan_tuning.Outcome(False, sizes[settings.get("a")], 1.0)

    tuning = plan_tuning.tune(measure, [[{"a": 1}, {"a": 2}, {"a": 3}]], [], tmp_path / "kept.json", "x")
    assert tuning.best == {"a": 2}


def test_a_tuned_plan_has_the_settings_it_names(tmp_path, monkeypatch, capsys):
    config = make_config(**{"plan.tune": True, "stages": ("plan",), "train.batch_size": 16, "model.num_layers": 1})
    config.plan.passages = 7
    config.model.tied = True  # one tower is compiled sooner than two
    one = [[{"model.remat": "none"}], [{"train.chunk_size": 5}]]
    monkeypatch.setattr(plan_tuning, "choices", lambda *_, **__: one)
    monkeypatch.setattr(plan_tuning, "batches", lambda _: [])
    run = Run(config, tmp_path / "run", REPOSITORY / "requirements.lock")
    runner.open_run(run)
    passages = []
    monkeypatch.setattr(plan.plan_indexes, "indexes", lambda *_: ())
    monkeypatch.setattr(plan.plan_collection, "parts", lambda config, *_: passages.append(config.plan.passages) or ())
    plan.plan(run)
    shown = capsys.readouterr().out
    assert passages == [7]  # the collection is planned once, with the settings that are taken
    assert "the fastest that fits: --config.model.remat=none" in shown and "chunk_size=5" in shown
    assert "| of these computed a second time | 0.0% |" in shown
    assert len(json.loads((run.folder / plan_tuning.KEPT).read_text())) == 3


def test_what_another_compiler_or_memory_limit_said_is_not_used(monkeypatch):
    config, seen = make_config(**{"plan.tune": True}), []

    def stop(measure, fields, batches, path, of):
        seen.append(of)
        return plan_tuning.Tuning([({}, plan_tuning.Outcome(True, 1.0, 1.0))], {}, [])

    monkeypatch.setattr(plan_tuning, "tune", stop)
    for build, limit in (("libtpu 1", None), ("libtpu 2", None), ("libtpu 2", 2**30), ("libtpu 2", 2**30)):
        device = types.SimpleNamespace(device_kind="TPU", client=types.SimpleNamespace(platform_version=build))
        monkeypatch.setattr(plan.step_memory, "program_limit", lambda _, limit=limit: limit)
        plan._tuned(config, 200, [device], None)
    assert len(set(seen)) == 3 and seen[2] == seen[3]


def test_a_bound_is_not_compared_with_an_estimate(tmp_path):
    outcomes = {
        None: plan_tuning.Outcome(False, 9.0, 0.1, "too large", "the bounds"),
        1: plan_tuning.Outcome(True, 1.0, 0.9, cost_by="the compiler's estimate"),
        2: plan_tuning.Outcome(True, 1.0, 0.2, cost_by="the bounds"),
        3: plan_tuning.Outcome(True, 1.0, 0.6, cost_by="the compiler's estimate"),
    }
    tuning = plan_tuning.tune(
        lambda settings: outcomes[settings.get("a")], [[{"a": a} for a in (1, 2, 3)]], [], tmp_path / "kept.json", "x"
    )
    assert tuning.best == {"a": 3} and tuning.first == outcomes[1]
    assert [row[3:] for row in plan_tuning.rows(tuning)] == [
        [None, "too large"],
        ["1.000", None],
        [None, "not compared: its cost is by the bounds"],
        ["1.500", None],
    ]


def test_a_tunings_choices_fit_config_and_devices():
    config = make_config(**{"train.batch_size": 32})
    settings, chunk_sizes = fields.values_of(config, plan_tuning.FIELDS), recipe_of(config).chunk_sizes(8)
    tried = plan_tuning.choices(settings, chunk_sizes, 32, config.model.num_layers, devices=8, packs=False)
    assert tried[0] == [{"model.remat": name} for name in ("none", "dots")]
    assert tried[1] == [{"train.chunk_size": size} for size in (8, 16)]
    assert tried[2] == [{"model.unroll": 2}] and tried[4] == []
    assert tried[3] == [{"mesh.fsdp": size} for size in (2, 4, 8)]
    *_, unpacked = plan_tuning.choices(settings, chunk_sizes, 32, config.model.num_layers, devices=8, packs=True)
    assert unpacked == [{"data.pack.query": 0.0, "data.pack.document": 0.0, "data.pack.auto": False}]
    assert plan_tuning.batches(32) == [
        {"train.batch_size": 16},
        {"train.batch_size": 64},
    ]
    assert plan_tuning.batches(1) == [{"train.batch_size": 2}]


def test_a_run_that_trains_nothing_is_told_so(tmp_path, monkeypatch, caplog, planned):
    monkeypatch.setattr(plan, "_timed", lambda planned, *_: planned)
    monkeypatch.setattr(plan, "make_plan", lambda *_: planned)
    for stages, is_told in ((("train",), False), (("index",), True)):
        caplog.clear()
        plan.plan(Run(make_config(stages=stages), tmp_path, REPOSITORY / "requirements.lock"))
        assert ("the run trains nothing" in caplog.text) == is_told


def test_epochs_are_steps_where_the_data_is_there(tmp_path, monkeypatch, caplog, planned):
    run, steps = Run(make_config(**{"train.epochs": 2.0}), tmp_path, REPOSITORY / "requirements.lock"), []
    monkeypatch.setattr(plan, "_timed", lambda planned, *_: planned)
    monkeypatch.setattr(plan, "make_plan", lambda config, *_: steps.append(config.train.steps) or planned)
    plan.plan(run)
    assert "steps of config.train.epochs=2 are not known yet, so hours are of 1000 steps" in caplog.text
    WordPiece([*SPECIAL_TOKENS, "a"]).save(tmp_path / "corpus" / "vocab.txt")
    monkeypatch.setattr(examples, "drawn", lambda *_: ({}, 330))
    plan.plan(run)
    assert steps == [1000, math.ceil(2 * 330 / 32)]

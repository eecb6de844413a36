"""The mesh: training is the same however devices share batches and parameters, and they share what they should."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from support.tiny_towers import LORA, VOCABULARY, begin, make_batch, make_config, run

from retrieval.common.errors import UserError
from retrieval.recipes.parameters import make_mesh
from retrieval.recipes.recipe import abstract_model, build_model, check_chunks, recipe_of
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import sharding
from retrieval.training.checkpoint import Checkpointer

CHUNKS = {"train.chunk_size": 8, "train.symmetric": True, "model.dropout": 0.1, "model.remat": "none"}
BOW = {"model.encoder": "bow_mlp", "model.tied": True}
UNPACKED = {"train.batch_size": 16, "data.pack.query": 0.0, "data.pack.document": 0.0}
AUTOENCODER = {"data.rates.ict": 0.0, "data.rates.bfs": 0.0, "data.rates.wlp": 0.0, "data.rates.mlm": 1.0}
AUTOENCODER |= {"recipe": "autoencoder", "model.decoder.latent": 8}
QWEN3 = {"model.tied": True, "model.family": "qwen3", "model.switches": ("kv_heads=1", "head_size=8")}
# Adam makes much of the gradients of queries and keys, which are near 0 at the start, and of their rounding.
QWEN3 |= {"train.chunk_size": 8, "model.remat": "full", "train.adam_epsilon": 1e-4}
MASKED = {"data.rates.ict": 0.0, "data.rates.bfs": 0.0, "data.rates.wlp": 0.0, "data.rates.mlm": 1.0, "recipe": "mlm"}


def assert_close(actual, expected, atol):
    for (path, a), b in zip(jax.tree.leaves_with_path(actual), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=atol, err_msg=str(path))


@pytest.mark.parametrize(
    ("changes", "sizes"),
    [
        pytest.param({"model.tied": True}, [4], marks=pytest.mark.long),
        (QWEN3, [8]),
        pytest.param(MASKED, [4], marks=pytest.mark.long),
        pytest.param(LORA, [4], marks=pytest.mark.long),
        pytest.param(CHUNKS, [2, 8], marks=pytest.mark.long),
        pytest.param(AUTOENCODER, [4], marks=pytest.mark.long),
    ],
    ids=["transformer", "Qwen3", "masked tokens", "adapters", "two towers in chunks", "autoencoder"],
)
def test_training_is_the_same_on_every_mesh(changes, sizes):
    expected, losses = run(make_config(**changes))
    assert all(leaf.sharding.is_fully_replicated for leaf in jax.tree.leaves(expected))
    for fsdp in sizes:
        state, actual = run(make_config(fsdp, **changes))
        np.testing.assert_allclose(actual, losses, rtol=0, atol=1e-5)
        assert_close(state, expected, atol=1e-6)
        for params in (state.params, state.opt_state[1][0].mu, state.opt_state[1][0].nu):
            assert_shared(params, fsdp)


def assert_shared(params, fsdp):
    """Every device holds a share of all matrices."""
    for path, leaf in jax.tree.leaves_with_path(params):
        if leaf.size >= 256:
            assert leaf.addressable_shards[0].data.size * fsdp == leaf.size, path


def test_a_checkpoint_moves_to_another_mesh(tmp_path):
    for fsdp, (left, right) in enumerate([(1, 4), (4, 1)]):
        (_, state), (_, other) = (begin(make_config(size, **BOW, seed=seed)) for seed, size in enumerate((left, right)))
        checkpointer = Checkpointer(tmp_path / str(fsdp))
        checkpointer.save(1, state, _Nothing())
        restored = checkpointer.restore(_like(make_config(right, **BOW)))
        checkpointer.close()
        assert_close(restored, state, atol=0)
        assert jax.tree.map(lambda x: x.sharding, restored) == jax.tree.map(lambda x: x.sharding, other)


def _like(config):
    return train_state.abstract_state(config, abstract_model(config, VOCABULARY), make_mesh(config))


class _Nothing:
    def save(self, folder):
        (folder / "nothing").touch()


def _mesh(fsdp):
    return sharding.make_mesh(fsdp)


def compiled(fsdp, **changes):
    config = make_config(fsdp, **changes)
    mesh, model = make_mesh(config), abstract_model(config, VOCABULARY)
    state = train_state.abstract_state(config, model, mesh)
    rows = sharding.batch_sharding(mesh)
    batch = {n: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=rows) for n, x in make_batch(config, 0).items()}
    with jax.set_mesh(mesh):
        return train_state.make_step(config, model).lower(state, batch).compile()


def test_a_model_is_whole_in_the_hosts_memory_alone(monkeypatch):
    """One of 4 billion parameters fits no chip of 16 GiB whole."""
    places = []

    def build(*given):
        places.append(jax.config.jax_default_device)
        return build_model(*given)

    monkeypatch.setattr(initial_parameters, "build_model", build)
    _, state = begin(make_config(8))
    assert [place.platform for place in places] == ["cpu"] and jax.config.jax_default_device is None
    assert_shared(state.params, 8)


@pytest.mark.long
def test_a_sharded_step_takes_fewer_bytes():
    whole, shared = (compiled(fsdp, **BOW) for fsdp in (1, 8))
    sizes = [program.memory_analysis().argument_size_in_bytes for program in (whole, shared)]
    batch = 16 * (8 + 8 + 12 + 12 + 1 + 1) * 4 // 8
    assert (sizes[1] - batch) * 4 < sizes[0] - batch
    # The candidates of the loss (embeddings, log Q, ids) are gathered in any case.
    gathers = [program.as_text().count(" all-gather(") for program in (whole, shared)]
    assert gathers[0] <= 3 < gathers[1]


def test_no_device_has_the_whole_table_of_tokens():
    """Nor its gradient or its moments: every array that a device's program makes is smaller."""
    for fsdp, is_whole in ((1, True), (8, False)):
        text = compiled(fsdp, **QWEN3).as_text()
        assert (f"[{VOCABULARY},16]" in text) == is_whole
        assert (f"[{VOCABULARY},2]" in text) != is_whole


LAYERS = {"kernel": (8, 6, 8), "bias": (8, 8)}
SHAPES = {"tower": {"table": (30, 64), "tokens": (64, 16), "layers": LAYERS, "odd": (3, 5)}}


def specs(fsdp=4, **settings):
    params = jax.tree.map(
        lambda s: jax.ShapeDtypeStruct(s, jnp.float32), SHAPES, is_leaf=lambda x: isinstance(x, tuple)
    )
    stacked, table = (lambda path, name=name: any(key.key == name for key in path) for name in ("layers", "tokens"))
    found = sharding.parameter_shardings(params, _mesh(fsdp), is_stacked=stacked, is_table=table, **settings)
    return jax.tree.map(lambda s: s.spec, found)["tower"]


def test_the_largest_dividing_dimension_is_shared_except_the_layers():
    found = specs()
    assert found["table"] == found["tokens"] == P(None, "fsdp")
    assert found["layers"] == {"kernel": P(None, None, "fsdp"), "bias": P(None, "fsdp")}
    assert found["odd"] == P()
    assert specs(replicate_below=65)["layers"] == {"kernel": P(None, None, "fsdp"), "bias": P()}
    assert specs(1)["table"] == P()


def test_devices_that_cannot_be_divided():
    with pytest.raises(UserError, match=r"config\.mesh\.fsdp=3 does not divide the 8 devices"):
        sharding.make_mesh(3)
    for size in (4, 32):
        with pytest.raises(UserError, match=rf"chunk_size={size} must divide .*batch_size=16, .* of 8 devices: take"):
            check_chunks(recipe_of(make_config(**BOW, **UNPACKED, **{"train.chunk_size": size})), 8)

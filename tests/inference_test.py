"""A model on the eight devices: what it says is that of the model itself, and no two programs run at a time."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.recipes import inference
from retrieval.recipes.inference import Inference, token_types
from retrieval.recipes.parameters import local_mesh, parameters_of

SEP = 3
IDS = np.random.default_rng(0).integers(1, 9, (8, 5)).astype(np.int32)
FURTHER = np.arange(8, dtype=np.float32)


class _Model(nnx.Module):
    def __init__(self):
        self.table = nnx.Param(jnp.arange(10.0))


def on_devices():
    config = ConfigDict(dict(mesh=dict(fsdp=2, replicate_below=1)))
    return Inference(config, _Model(), SEP, local_mesh(config))


def test_outputs_are_whole_and_compiled_once_for_all_parameters():
    traced = []

    def function(model, text, further_B):
        traced.append(text.ids_RL.shape)
        values_RL = model.table[...].at[text.ids_RL].get(out_sharding=jax.typeof(text.ids_RL).sharding)
        return values_RL + text.types_RL, further_B * 2

    for factor in (1, 3):
        of = on_devices().compiled(function)  # of another model that is built alike
        params = jax.tree.map(lambda leaf, factor=factor: leaf * factor, parameters_of(_Model()))
        values, doubled = of(params)(IDS, FURTHER)
        np.testing.assert_array_equal(values, IDS * factor + token_types(IDS, SEP))
        np.testing.assert_array_equal(doubled, FURTHER * 2)
    assert traced == [IDS.shape]


def test_programs_of_a_model_run_one_at_a_time(monkeypatch):
    """Dispatched ahead of each other, they deadlock on fake devices."""
    inside, most, real = [], [], inference.Text.from_ids

    def from_ids(*arrays):
        inside.append(None)
        most.append(len(inside))
        threading.Event().wait(0.02)
        inside.pop()
        return real(*arrays)

    monkeypatch.setattr(inference.Text, "from_ids", from_ids)
    model = on_devices()
    calls = [model.compiled(lambda model, text, n=n: text.ids_RL + n)(parameters_of(_Model())) for n in range(4)]
    threads = [threading.Thread(target=call, args=(IDS,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 4

"""Our train step, as the train stage makes it."""

from collections.abc import Mapping

import jax
from ml_collections import ConfigDict

from benchmarks import worker
from retrieval.recipes.recipe import abstract_model
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.training import sharding


class TrainStep:
    """Trains on a batch, and returns its metrics when that is done."""

    def __init__(self, config: ConfigDict, vocab_size: int, mesh: jax.sharding.Mesh):
        model = abstract_model(config, vocab_size)
        self._config, self._vocab_size, self._mesh = config, vocab_size, mesh
        self._step = train_state.make_step(config, model)
        like = train_state.abstract_state(config, model, mesh)
        self._state = initial_parameters.initial_state(config, vocab_size, like)

    def __call__(self, rows: Mapping) -> Mapping[str, jax.Array]:
        """Raises `MissingError` where the memory of the device is too small."""
        try:
            batch = jax.device_put(dict(rows), sharding.batch_sharding(self._mesh))
            with jax.set_mesh(self._mesh):
                self._state, metrics = self._step(self._state, batch)
                return jax.block_until_ready(metrics)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise worker.MissingError("the device has not enough memory") from error

    def flops(self, rows: Mapping) -> float:
        """Operations of the matrix products of a step, padding's too, and none twice."""
        batch = jax.device_put(dict(rows), sharding.batch_sharding(self._mesh))
        with jax.set_mesh(self._mesh):
            return self._mesh.size * train_state.useful_flops(self._config, self._vocab_size, self._state, batch)


def one_device() -> jax.sharding.Mesh:
    """A mesh of the first device: the peers have one, and a packed lane may be too small for several."""
    return sharding.make_mesh(devices=jax.devices()[:1])


def peak_device_mb() -> float:
    """The highest memory of the first accelerator since the process began; 0 where it does not say, such as a CPU."""
    return (jax.local_devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0) / 1e6


def check_accelerator() -> None:
    """Raises `MissingError` where there are CPUs alone."""
    if jax.devices()[0].platform == "cpu":
        raise worker.MissingError(
            f'JAX sees no accelerator: pip install "jax[cuda12]=={jax.__version__}", or cuda13, or tpu'
        )

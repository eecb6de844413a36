"""Products of large square matrices in bfloat16: what the device reaches at best."""

from collections.abc import Mapping
from typing import Any

from benchmarks import worker
from benchmarks.measure import timed


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: size (of a side), products (one after the other)."""
    import jax
    import jax.numpy as jnp

    from benchmarks.ours import training

    training.check_accelerator()
    size, products = settings["size"], settings["products"]

    @jax.jit
    def chain(x_NN: jax.Array, w_NN: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, products, lambda _, x_NN: x_NN @ w_NN, x_NN)

    # Orthogonal on average: the numbers neither grow nor vanish.
    x_NN, w_NN = (jax.random.normal(jax.random.key(seed), (size, size), jnp.bfloat16) / size**0.5 for seed in (0, 1))

    def turn() -> dict[str, float]:
        seconds = timed(lambda: jax.block_until_ready(chain(x_NN, w_NN)))[1]
        return {"TFLOP/s": 2 * products * size**3 / seconds / 1e12, worker.DEVICE: training.accelerator()}

    return turn


if __name__ == "__main__":
    worker.serve(prepare)

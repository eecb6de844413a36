"""A model of a config on a mesh: from padded token ids to what it says of them, as arrays of this host."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.runtime import devices
from retrieval.common.runtime.filler import FILLER
from retrieval.models.text import Text
from retrieval.recipes.parameters import Bound, bind, gather, shardings_of
from retrieval.training import sharding


class Inference:
    """What runs functions of a model, with any parameters of its sizes. Threads may call together.

    The parameters are arguments of the compiled functions: as constants in them they would be compiled in, once more
    for other ones, such as those of untrained towers.
    """

    def __init__(self, config: ConfigDict, model: nnx.Module, sep_id: int, mesh: jax.sharding.Mesh, place: int = 1):
        """Args are the config that says where parameters lie, a model, which may be abstract, and `token_types`'."""
        devices.keep_programs()
        self.mesh = mesh
        self._config, self._bound = config, bind(model)
        self._types = functools.partial(token_types, sep_id=sep_id, place=place)

    def compiled(self, function: Callable[..., Any]) -> Callable[[Any], Callable[..., Any]]:
        """From parameters to a function of ids [B, L], with the rows spread over the mesh; compiled once per shape.

        Args:
          function: of the model, the text, and further arrays with a row for each of the text's. One of a module (no
            lambda) is traced once for all models that are built alike.
        """
        run = _program(function, self._bound, sharding.replicated(self.mesh))

        def of(params: Any) -> Callable[..., Any]:
            with jax.set_mesh(self.mesh):  # once for all batches: a large model takes long to send
                placed = jax.device_put(params, shardings_of(params, self._config, self.mesh))
            return functools.partial(self._call, run, placed)

        return of

    def _call(self, run: Callable, params: Any, ids_BL: np.ndarray, *further: np.ndarray) -> Any:
        arrays = (ids_BL, self._types(ids_BL), *further)
        placed = [sharding.place(x, sharding.batch_sharding(self.mesh)) for x in arrays]
        with jax.set_mesh(self.mesh), devices.alone():
            return jax.tree.map(np.asarray, run(params, *placed))


@functools.lru_cache(64)
def _program(function: Callable[..., Any], bound: Bound, replicated: jax.sharding.Sharding) -> Callable[..., Any]:
    """The compiled function, whose results are on every device: a host cannot read what only another's have."""

    @jax.jit
    def run(params: Any, ids: jax.Array, types: jax.Array, *further: Any) -> Any:
        said = function(bound(gather(params)), Text.from_ids(ids, types), *further)
        return jax.tree.map(lambda leaf: jax.reshard(leaf, replicated), said)

    return run


def token_types(ids_BL: np.ndarray, sep_id: int, place: int = 1) -> np.ndarray:
    """BERT's token types of padded rows: 1 after the first [SEP] (or its `place`), as in training."""
    separators_BL = np.cumsum(ids_BL == sep_id, axis=1) - (ids_BL == sep_id)
    return np.where(ids_BL == FILLER, 0, separators_BL >= place).astype(np.int32)

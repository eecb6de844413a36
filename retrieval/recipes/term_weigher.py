"""A trained DeepCT as what weighs the words of passages."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.data.labelled.term_weights import term_frequencies
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models.deepct import DeepCT
from retrieval.models.text import Text
from retrieval.recipes.passage_batches import batches, cut, rows_of
from retrieval.recipes.placement import bind, gather, local_mesh, parameters_of, shardings_of
from retrieval.recipes.towers import token_types
from retrieval.search.words import paired
from retrieval.training import sharding


class Scale(NamedTuple):
    """How weights become frequencies: as `term_frequencies` has it."""

    scale: int = 100
    square_root: bool = False


class TermWeigher:
    """Passages to the frequencies of their words, on this host's devices."""

    def __init__(self, config: ConfigDict, vocabulary: Vocabulary, model: DeepCT, scale: Scale, batch_size: int):
        """Args are the config that the model was trained with, and the passages of a batch."""
        self._mesh = local_mesh(config)
        self._length, self._vocabulary, self._scale = config.data.document_length, vocabulary, scale
        self._rows = -(-batch_size // self._mesh.size) * self._mesh.size
        bound, params = bind(model), parameters_of(model)
        with jax.set_mesh(self._mesh):
            params = jax.device_put(params, shardings_of(params, config, self._mesh))
        everywhere = sharding.replicated(self._mesh)

        @jax.jit
        def weigh(params: Any, text: Text) -> jax.Array:
            return jax.reshard(bound(gather(params))(text, None), everywhere)

        self._weigh: Callable[..., jax.Array] = functools.partial(weigh, params)

    def cut(self, passages: Sequence[Candidate]) -> int:
        """How many passages are longer than the model reads: words behind that get no weight."""
        return cut(self._vocabulary, passages, self._length)

    def weigh(self, passages: Sequence[Candidate]) -> list[dict[str, int]]:
        """The frequencies of each passage's words, for `Bm25Index.from_frequencies`."""
        rows, sharded = rows_of(self._vocabulary, passages, self._length), sharding.batch_sharding(self._mesh)
        frequencies: list[dict[str, int]] = [{} for _ in passages]
        for places, ids_RL in batches(rows, self._rows, self._length):
            text = (sharding.place(part, sharded) for part in (ids_RL, token_types(ids_RL, self._vocabulary.sep_id)))
            with jax.set_mesh(self._mesh):
                weights_RL = np.asarray(self._weigh(Text.from_ids(*text)))
            for place, weights_L in zip(places, weights_RL):
                pieces = [self._vocabulary.tokens[id] for id in rows[place]]
                frequencies[place] = term_frequencies(
                    pieces, weights_L[: len(pieces)].tolist(), **self._scale._asdict(), indexed=paired
                )
        return frequencies

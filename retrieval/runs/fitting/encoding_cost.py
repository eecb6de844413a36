"""What it costs to encode a text: the operations of its matrix products, counted in the traced program."""

import functools
import statistics
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models.text import Text
from retrieval.recipes.parameters import bind, parameters_of
from retrieval.recipes.recipe import build_model
from retrieval.recipes.towers import candidate_windows, query_tokens
from retrieval.runs.ranking import costs
from retrieval.training import work

_SOME = 256  # texts whose lengths are counted


def some(texts: Sequence[Any] | Iterable[Any], total: int) -> list[Any]:
    """Texts whose lengths stand for those of all `total`: at most 256, evenly among them."""
    step = max(1, -(-total // _SOME))
    return [text for place, text in enumerate(texts) if place % step == 0]


def of_set(
    config: ConfigDict,
    vocabulary: Vocabulary,
    queries: Collection[str],
    candidates: Iterable[Candidate],
    total: int,
    build: Callable[[ConfigDict, int], nnx.Module] = build_model,
    are_filled: bool = False,
) -> dict[str, float]:
    """The operations to encode a query and a passage of a set, by `costs.QUERY` and `costs.PASSAGE`.

    Args:
      total: how many candidates there are.
      build: as of `operations`; its model has `encode_query` and `encode_document`.
      are_filled: whether all queries are filled up to one length.
    """
    tokens = query_tokens(config, vocabulary, some(queries, len(queries)))
    rows = [[[0] * config.data.query_length if are_filled else ids] for ids in tokens]
    windows = candidate_windows(config, vocabulary, some(candidates, total))
    count = functools.partial(operations, config, len(vocabulary), build=build)
    return {
        costs.QUERY: count(lambda model, text: model.encode_query(text, None), rows),
        costs.PASSAGE: count(lambda model, text: model.encode_document(text, None), windows),
    }


def operations(
    config: ConfigDict,
    vocab_size: int,
    encode: Callable[[Any, Text], Any],
    rows: Sequence[Sequence[Sequence[int]]],
    build: Callable[[ConfigDict, int], nnx.Module] = build_model,
) -> float:
    """Operations to encode a text, two for a multiplication and an addition: those of a row of mean length, times the
    rows of a text.

    Args:
      encode: of the model and a text.
      rows: the token ids of each row of each text.
      build: makes the untrained model of a config and the size of a vocabulary.
    """
    lengths = [len(ids) for of_text in rows for ids in of_text]
    if not lengths:
        return 0.0
    own = config.copy_and_resolve_references()
    own.model.attention = "plain"  # the count does not see into other kernels
    model = nnx.eval_shape(lambda: build(own, vocab_size))
    ids_1L = jax.ShapeDtypeStruct((1, max(1, round(statistics.mean(lengths)))), np.int32)

    def run(params: Any, ids_1L: jax.Array) -> Any:
        return encode(bind(model)(params), Text.from_ids(ids_1L, ids_1L))

    return work.flops(jax.make_jaxpr(run)(parameters_of(model), ids_1L)) * len(lengths) / len(rows)

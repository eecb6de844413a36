"""Bulk encoding: candidates of ReQA through towers of true size with random weights, a text a row and packed."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import pairs
from benchmarks.accelerator import step
from benchmarks.accelerator.work import Attempt, Given
from benchmarks.measure import timed
from benchmarks.ours import training
from retrieval.common.runtime.filler import FILLER
from retrieval.recipes.batch_texts import embed
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import bind, parameters_of, shardings_of
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.towers import build_towers
from retrieval.search.encoding import encode_rows
from retrieval.training import sharding

SIZES = dict(documents=32_768, document_length=288, batch_tokens=262_144)
TOY_SIZES = dict(documents=32, document_length=48, batch_tokens=512)
_TURNS = 2
MODELS = ("L12 H768", "ModernBERT-base")


def attempts(given: Given) -> Iterator[Attempt]:
    """Every model: as the stage `encode` does it, and in packed rows, which it does not."""
    sizes = TOY_SIZES if given.is_toy else SIZES
    given.open(sizes).values["peak"] = given.chip and given.chip.peak_flops
    for name in MODELS:
        yield Attempt(f"{name}, a text a row", lambda name=name: _by_length(given, name, sizes))
        yield Attempt(f"{name}, packed rows", lambda name=name: _packed(given, name))


def _towers(given: Given, name: str) -> tuple[ConfigDict, Any]:
    of_step = step.STEPS[name]
    config = step.config_of(given, of_step)
    config.model.unroll = 1
    return config, build_towers(config, of_step.vocab_size or given.pack.vocab_size)


def _by_length(given: Given, name: str, sizes: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Batches of texts of like length, from token ids to embeddings on the host."""
    config, towers = _towers(given, name)
    mesh = training.one_device()
    inference = Inference(config, towers, given.pack.special("sep"), mesh)
    run = inference.compiled(lambda towers, text: towers.encode_document(text, None))(parameters_of(towers))
    count = min(sizes["documents"], len(given.pack["candidate_paragraph"]))
    ids_NL, _ = given.pack.candidate_rows(np.arange(count), sizes["document_length"])
    tokens = [row[row != FILLER].tolist() for row in ids_NL]
    shapes = []

    def embedded(ids_BL: np.ndarray) -> np.ndarray:
        shapes.append(ids_BL.shape)
        return run(ids_BL)

    def encode() -> None:
        encode_rows(tokens, embedded, sizes["batch_tokens"], sizes["document_length"], 1)

    yield from _turns(encode, sum(map(len, tokens)), count, _weights(towers))
    yield {"padding": f"{1 - sum(map(len, tokens)) * (1 + _TURNS) / sum(B * L for B, L in shapes):.0%}"}


def _packed(given: Given, name: str) -> Iterator[dict[str, Any]]:
    """The documents of the pairs that a step is measured with, several in a row."""
    config, towers = _towers(given, name)
    sizes = step.TOY_SIZES if given.is_toy else step.SIZES
    with tempfile.TemporaryDirectory() as folder:
        path = step.write_pairs(given, config, sizes["batches"], Path(folder))
        config = step.in_rows(config, path, sizes["lane"], sizes["batches"])
        packing = recipe_of(config).packing()
        assert packing, "its shares are set"
        batches = [pairs.packed(rows, packing) for rows in pairs.batches(path, sizes["batch"], sizes["batches"])]
    mesh, bound = training.one_device(), bind(towers)
    params = jax.device_put(parameters_of(towers), shardings_of(parameters_of(towers), config, mesh))

    @jax.jit
    def of_batch(params: Any, batch: Mapping[str, jax.Array]) -> jax.Array:
        no_key: Any = None
        return embed(bound(params).encode_document, batch, "document", no_key, 0)

    def encode() -> None:
        embedded = []
        for batch in batches:
            rows = {key: value for key, value in batch.items() if key.startswith("document")}
            with jax.set_mesh(mesh):
                embedded.append(of_batch(params, jax.device_put(rows, sharding.batch_sharding(mesh))))
        jax.device_get(embedded)

    tokens = sum(int((batch["document"] != FILLER).sum()) for batch in batches)
    yield from _turns(encode, tokens, len(batches) * sizes["batch"], _weights(towers))
    yield {"padding": f"{1 - tokens / sum(batch['document'].size for batch in batches):.0%}"}


def _turns(encode: Callable[[], None], tokens: int, documents: int, operations: int) -> Iterator[dict[str, Any]]:
    """The best turn so far; the one before compiles.

    Args:
      operations: for a token, in products with matrices.
    """
    yield {"seconds until warm": round(timed(encode)[1], 1)}
    best = float("inf")
    for number in range(_TURNS):
        best = min(best, timed(encode)[1])
        numbers = {"documents/s": documents / best, "tokens/s": tokens / best, "turns": number + 1}
        numbers |= {"TFLOP/s": operations * tokens / best / 1e12}
        yield numbers | {"peak MB of the device": training.peak_device_mb()}


def _weights(towers: Any) -> int:
    """Operations for a token in products with the matrices of the layers."""
    return 2 * sum(leaf.size for leaf in jax.tree.leaves(parameters_of(towers.query_tower.encoder.layers)))

"""Train steps of true size with random weights, of ours and of its peers, and what products of matrices reach.

Each system is a process, which has the memory of the device to itself. A peer that is not installed is named.
"""

import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks import pairs
from benchmarks.accelerator.data import TASKS, VOCABULARY, Pairs
from benchmarks.accelerator.work import Attempt, Given
from benchmarks.contest import Process, System
from benchmarks.measure import timed
from benchmarks.ours import train_step, training
from benchmarks.peers import train_step as peers
from benchmarks.worker import PROCESSOR, MissingError, Turn, serve
from retrieval.methods.late_interaction.token_masks import EXPANSION, IGNORED, SCORED
from retrieval.recipes.encoder_sizes import encoder_sizes

TURNS = 3  # after one that is not counted
_SYSTEM = "benchmarks.accelerator.step"  # what a bare machine can run, whichever system it is
_BERT = dict(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1, attention_dropout=0.0)
_QWEN = dict(
    family="qwen3", switches=("kv_heads=8", "head_size=128"), num_layers=28, hidden_size=1024, num_heads=16,
    mlp_size=3072, layer_norm_epsilon=1e-6, dropout=0.0,
)  # fmt: skip
_MODERN = dict(
    family="modernbert", num_layers=22, hidden_size=768, num_heads=12, mlp_size=1152, layer_norm_epsilon=1e-5,
    dropout=0.0,
)  # fmt: skip
_LORA = {"train.lora.rank": 16, "train.lora.targets": ("all",), "train.lora.base": "bfloat16"}
_TORCH = "sentence-transformers"


class Step(NamedTuple):
    """A model whose step is measured.

    Attributes:
      model: fields of the group `model`.
      peer: its name; '' for none.
      vocab_size: 0 for that of the packed data.
      recipe: by its name.
      batch: a share of the pairs of a batch.
      remats: what the backward pass computes again; the next one where the memory is too small.
      fields: others, dotted.
    """

    model: Mapping[str, Any]
    peer: str = _TORCH
    vocab_size: int = 0
    recipe: str = "two_tower"
    batch: float = 1.0
    remats: Sequence[str] = ("none", "dots", "full")
    fields: Mapping[str, Any] = {}


STEPS = {
    "L12 H768": Step(_BERT | dict(unroll=12)),
    "L12 H768, layers in a loop": Step(_BERT, peer=""),
    "ModernBERT-base": Step(_MODERN, vocab_size=50_368),
    "late interaction, L12 H768": Step(
        _BERT | dict(embed_dim=128), "PyLate", recipe="late_interaction",
        fields={"train.loss": "maxsim_softmax", "train.temperature": 1.0},
    ),
    "SPLADE, L12 H768": Step(_BERT, recipe="splade", batch=0.5, fields={"train.temperature": 1.0}),
    "Qwen3-0.6B": Step(_QWEN, vocab_size=151_936, batch=0.25, remats=("dots", "full")),
    "Qwen3-0.6B, LoRA": Step(_QWEN, "", 151_936, batch=0.25, remats=("dots", "full"), fields=_LORA),
}  # fmt: skip
SIZES = dict(batch=256, batches=16, query_length=64, document_length=288, lane=128)
TOY_SIZES = dict(batch=8, batches=2, query_length=16, document_length=48, lane=8)
TOY = dict(num_layers=1, hidden_size=32, num_heads=2, mlp_size=64)  # in the place of every model's


def attempts(given: Given) -> Iterator[Attempt]:
    """Every model, ours and its peer, and products of matrices."""
    sizes = TOY_SIZES if given.is_toy else SIZES
    outcome = given.open(sizes)
    outcome.values["peak"] = given.chip and given.chip.peak_flops
    with tempfile.TemporaryDirectory() as folder:
        for name, step in STEPS.items():
            ours, theirs = f"ours: {name}", f"{step.peer}: {name}"
            yield Attempt(ours, lambda step=step: _ours(given, step, sizes, Path(folder)))
            if step.peer:
                yield Attempt(theirs, lambda step=step: _theirs(given, step, sizes, Path(folder)))
            if name == "L12 H768":
                most = System("products of matrices", _SYSTEM, dict(size=8192, products=50))
                yield Attempt(most.name, lambda most=most: turns(most))


def turns(system: System) -> Iterator[dict[str, Any]]:
    """The best turn of a process so far; one before is not counted.

    Raises:
      MissingError: a library, a device or enough of its memory is not there.
      UserError: the process failed.
    """
    began = time.monotonic()
    environment = {"XLA_CLIENT_MEM_FRACTION": "0.95", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with contextlib.closing(Process(system, sys.executable, environment)) as process:
        process.turn()
        numbers: dict[str, Any] = {"seconds until warm": round(time.monotonic() - began, 1)}
        for number in range(TURNS):
            turn = process.turn()
            turn = {name: value for name, value in turn.items() if name != PROCESSOR}
            if all(turn[name] >= numbers.get(name, 0) for name in ("tokens/s", "TFLOP/s") if name in turn):
                numbers |= turn
            yield numbers | {"turns": number + 1}


def config_of(given: Given, step: Step) -> ConfigDict:
    """The config of a step, with a text a row."""
    sizes = TOY_SIZES if given.is_toy else SIZES
    config = ConfigDict(given.pack.facts["config"])
    size = max(2, int(sizes["batch"] * step.batch))
    config.recipe, config.seed = step.recipe, 0
    config.data.update(query_length=sizes["query_length"], document_length=sizes["document_length"], lanes=1)
    config.data.negatives = 0
    config.data.pack.update(query=0.0, document=0.0, auto=False)
    config.model.update(dtype="bfloat16", unroll=1, matmul_dtype="dtype", encoder="transformer", attention="auto")
    config.model.update(pooling="mean", tied=True, normalize=True, embed_dim=512)
    config.model.update(step.model)
    config.train.update(batch_size=size, chunk_size=0, accumulation=1, log_q=False, temperature=0.05, steps=1000)
    config.update_from_flattened_dict(step.fields)
    if given.is_toy:
        config.model.update(TOY, dtype="float32", unroll=1)
        config.model.switches = tuple(
            switch.replace("kv_heads=8", "kv_heads=1").replace("=128", "=16") for switch in config.model.switches
        )
    return config


def write_pairs(given: Given, config: ConfigDict, batches: int, folder: Path) -> Path:
    """So many batches of pairs, a text a row, as the recipe takes them; in a file for all that ask for the same."""
    data, count = config.data, config.train.batch_size * batches
    is_late = config.recipe == "late_interaction"
    path = folder / f"pairs-{count}{'-late' if is_late else ''}.npz"
    if path.exists():
        return path
    rates = {task: given.pack.settings["rates"][task] for task in TASKS}
    rows = Pairs(given.pack, rates, 0, data.query_length, data.document_length).batch(0, count, packed=False)
    if is_late:  # queries are filled up, and punctuation counts: the ids of the pack do not say what it is
        is_text_BL, is_text_B1L = rows["query"] >= 0, rows["document"] >= 0
        rows["query"] = np.where(is_text_BL, rows["query"], given.pack.special("mask"))
        rows["query_mask"] = np.where(is_text_BL, SCORED, EXPANSION).astype(np.int32)
        rows["document_mask"] = np.where(is_text_B1L, SCORED, IGNORED).astype(np.int32)
    np.savez(path, **rows)  # pyright: ignore[reportArgumentType] (its types are of any name)
    return path


def in_rows(config: ConfigDict, path: Path, lane: int, batches: int) -> ConfigDict:
    """The config with the smallest shares of rows that all pairs of every lane fit into."""
    config = config.copy_and_resolve_references()
    size = config.train.batch_size
    config.data.lanes = max(1, size // lane)
    config.data.pack.update(query_row=128, document_row=max(384, config.data.document_length))
    rows = list(pairs.batches(path, size, batches))
    for side in ("document", "query"):
        config.data.pack[side] = pairs.smallest_share(config, rows, side, 0.26) or 1.0
    return config


def _ours(given: Given, step: Step, sizes: Mapping[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    config, batches = config_of(given, step), sizes["batches"]
    path = write_pairs(given, config, batches, folder)
    if step.recipe == "two_tower":
        config = in_rows(config, path, sizes["lane"], batches)
    settings: dict[str, Any] = dict(pairs=str(path), batch=config.train.batch_size, batches=batches)
    settings |= dict(accelerator=not given.is_toy, vocab_size=step.vocab_size or given.pack.vocab_size)
    missing: MissingError | None = None
    for remat in step.remats:
        config.model.remat = remat
        try:
            for numbers in turns(System("ours", _SYSTEM, settings | dict(config=json.loads(config.to_json())))):
                yield numbers | {"remat": remat}
            return
        except MissingError as error:
            missing = error
            print(f"remat {remat}: {error}", flush=True)
    raise missing or MissingError("nothing was tried")


def _theirs(given: Given, step: Step, sizes: Mapping[str, Any], folder: Path) -> Iterator[dict[str, Any]]:
    config, batches = config_of(given, step), sizes["batches"]
    path = write_pairs(given, config, batches, folder)
    settings: dict[str, Any] = dict(pairs=str(path), batch=config.train.batch_size, batches=batches, chunk=0)
    settings |= dict(accelerator=not given.is_toy, vocabulary=str(given.pack.folder / VOCABULARY))
    settings |= dict(config=json.loads(config.to_json()), dtype="float32" if given.is_toy else "bfloat16")
    if config.model.family != "bert":
        from retrieval.models.encoder_folder import written_config
        from retrieval.models.transformer_config import TransformerConfig

        settings["encoder"] = written_config(TransformerConfig(**encoder_sizes(config, step.vocab_size)))
    yield from turns(System(step.peer, _SYSTEM, settings))


def _products(settings: Mapping[str, Any]) -> Turn:
    """Products of large square matrices in bfloat16, one after the other: what the device reaches at best."""
    training.check_accelerator()
    size, products = settings["size"], settings["products"]

    @jax.jit
    def chain(x_NN: jax.Array, w_NN: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, products, lambda _, x_NN: x_NN @ w_NN, x_NN)

    # Orthogonal on average: the numbers neither grow nor vanish.
    x_NN, w_NN = (jax.random.normal(jax.random.key(seed), (size, size), "bfloat16") / size**0.5 for seed in (0, 1))
    operations = 2 * products * size**3
    return lambda: {"TFLOP/s": operations / timed(lambda: jax.block_until_ready(chain(x_NN, w_NN)))[1] / 1e12}


def prepare(settings: Mapping[str, Any]) -> Turn:
    """Products, or a train step of ours or of a peer."""
    if "products" in settings:
        return _products(settings)
    return (peers.prepare if "vocabulary" in settings else train_step.prepare)(settings)


if __name__ == "__main__":
    serve(prepare)

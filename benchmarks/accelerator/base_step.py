"""A step of BERT's size, of ours and of sentence-transformers, and what products of matrices reach beside it."""

import argparse
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from benchmarks import pairs
from benchmarks.accelerator.data import TASKS, VOCABULARY, Pack, Pairs
from benchmarks.accelerator.outcomes import Outcome
from benchmarks.contest import Process, System
from benchmarks.worker import DEVICE, PROCESSOR, MissingError
from retrieval.errors import UserError
from retrieval.recipes.recipe import recipe_of
from retrieval.training.chips import CHIPS

MODELS = {
    "L12 H768": dict(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072),
    "L2 H128": dict(num_layers=2, hidden_size=128, num_heads=2, mlp_size=512),
}
_TURNS = 3  # after one that is not counted


def systems(pack: Pack, folder: Path, accelerator: bool) -> list[System]:
    """What takes part, in the order of its value; the pairs are written into the folder.

    Args:
      accelerator: False for a CPU, in tests.
    """
    settings = pack.settings["step"]
    size, batches = settings["batch"], settings["batches"]
    lengths = settings["query_length"], settings["document_length"]
    path = folder / "pairs.npz"
    source = Pairs(pack, {task: pack.settings["rates"][task] for task in TASKS}, 0, *lengths)
    rows = source.batch(0, size * batches, packed=False)
    np.savez(path, **rows)  # pyright: ignore[reportArgumentType] (its types are of any name)
    given: dict[str, Any] = dict(pairs=str(path), batch=size, batches=batches, accelerator=accelerator)
    config = ConfigDict(pack.facts["config"])
    config.recipe, config.seed = "two_tower", 0
    config.data.update(query_length=lengths[0], document_length=lengths[1], lanes=1, negatives=0)
    config.data.pack.update(query=0.0, document=0.0)
    config.model.update(MODELS[settings["model"]], dtype="bfloat16", remat="none", unroll=4, products="dtype")
    config.model.update(encoder="transformer", pooling="mean", tied=True, normalize=True, embed_dim=512)
    config.model.update(dropout=0.1, attention_dropout=0.0)
    config.train.update(batch_size=size, chunk_size=0, accumulation=1, log_q=False, temperature=0.05, steps=1000)
    plain = json.loads(config.to_json())
    packed = json.loads(_packed(config, path, settings).to_json())
    theirs = plain | {"model": plain["model"] | {"attention_dropout": 0.0}}
    ours, theirs_module = "benchmarks.ours.train_step", "benchmarks.peers.train_step"
    vocabulary = dict(vocab_size=pack.vocab_size)
    found = [
        System("ours, packed", ours, given | vocabulary | dict(config=packed)),
        System(
            "sentence-transformers, bfloat16",
            theirs_module,
            given | dict(config=theirs, vocabulary=str(pack.folder / VOCABULARY), dtype="bfloat16", chunk=0),
        ),
    ]
    if accelerator:
        found.append(System("products of matrices", "benchmarks.ours.products", dict(size=8192, products=50)))
    return found


def _packed(config: ConfigDict, path: Path, settings: Any) -> ConfigDict:
    """The config with the smallest shares of rows that all pairs of every lane fit into."""
    config = config.copy_and_resolve_references()
    config.data.lanes = max(1, settings["batch"] // 128)
    config.data.pack.update(query_row=128, document_row=max(384, settings["document_length"]))
    rows = list(pairs.batches(path, settings["batch"], settings["batches"]))
    config.data.pack.update(query=1.0, document=1.0)
    for side in ("document", "query"):
        shares = [round(float(share), 2) for share in np.arange(0.26, 1.01, 0.02)]
        config.data.pack[side] = next((share for share in shares if _fit(config, side, share, rows)), 1.0)
    return config


def _fit(config: ConfigDict, side: str, share: float, rows: Sequence[pairs.Rows]) -> bool:
    """Whether all pairs of every lane fit, with this share of a side's rows."""
    changed = config.copy_and_resolve_references()
    changed.data.pack[side] = share
    packing = recipe_of(changed).packing()
    return packing is not None and pairs.fit(rows, packing)


def main(arguments: Sequence[str]) -> None:
    """Gives every system that has no numbers yet its turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--skip", default="", help="systems that a process has died of in this call")
    parser.add_argument("--card", default="", help="the accelerator; none on a CPU")
    given = parser.parse_args(arguments)
    ends_at = time.monotonic() + given.seconds
    pack = Pack(given.data)
    outcome = Outcome(given.out, "base-step", {name: pack.facts[name] for name in ("version", "counts", "settings")})
    values = outcome.values
    with tempfile.TemporaryDirectory() as folder:
        for system in systems(pack, Path(folder), bool(given.card)):
            if system.name in values["runs"]:
                continue
            if ends_at - time.monotonic() < 10:
                print(f"{system.name}: no time is left for it", flush=True)
                continue
            try:
                _measure(system, outcome)
            except (MissingError, UserError, ValueError, OSError) as error:
                print(f"{system.name}: {error}", flush=True)
                values["failures"][system.name] = str(error)
                outcome.save()


def _measure(system: System, outcome: Outcome) -> None:
    """A process of the system: a turn that is not counted, and those that are, each saved at once."""
    began = time.monotonic()
    environment = {"XLA_CLIENT_MEM_FRACTION": "0.95", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    with contextlib.closing(Process(system, sys.executable, environment)) as process:
        process.turn()
        run: dict[str, Any] = {"seconds until warm": round(time.monotonic() - began, 1), "turns": []}
        for _ in range(_TURNS):
            turn = process.turn()
            run["card"] = turn.pop(DEVICE, "")
            turn.pop(PROCESSOR, None)
            run["turns"].append(turn)
            run["peak"] = next((chip.peak_flops for chip in CHIPS if chip.kind == run["card"]), None)
            outcome.values["runs"][system.name] = run
            outcome.values["failures"].pop(system.name, None)
            outcome.save()
            print(f"{system.name}: {turn}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The packed data of a day on an accelerator, of the toy corpus, and works that are done with it in this process."""

import time

from benchmarks.accelerator import outcomes, pack, work
from retrieval.data.sets import reqa
from retrieval.runs.pipeline.run import Run
from support.tiny import make_config

TOY = pack.SETTINGS | {
    "arms": ["none", "mlm", "bow"],
    "first": ["none", "bow"],
    "batch": 64,
    "chunk": 32,
    "steps": 8,
    "fine_tuning": {"steps": 3, "batch_size": 8, "learning_rate": 5e-4, "share": 0.4},
    "data": {"query_length": 16, "document_length": 48},
    "model": pack.SETTINGS["model"]
    | dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8, dtype="float32", unroll=1),
    "bow": {"hidden_size": 8, "mlp_size": 8},
    "encode": 16,
}


def write(prepared, inputs, folder):
    """Packs the toy corpus into a folder, and returns that."""
    pack.write(Run(make_config(), prepared, folder), reqa.read_squad([inputs / "squad.json"]), folder, TOY)
    return folder


def given_of(packed, out, name, card=""):
    """What a work gets that has time."""
    return work.Given(packed, out, name, time.monotonic() + 600, card)


def performed(module, packed, out, card="", skip=()):
    """What a work has found, in this process."""
    name = module.__name__.rpartition(".")[2]
    given = given_of(packed, out, name, card)
    work.perform(given, module.attempts(given), skip)
    return outcomes.read(out / f"{name}.json")

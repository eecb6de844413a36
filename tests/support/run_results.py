"""What a finished run left."""

import json

from retrieval.common.runtime import artefacts
from retrieval.training.checkpoint import Checkpointer


def results(folder):
    return [row | {"seconds": 0} for row in json.loads((folder / "results.json").read_text())]


def values(folder):
    """Its results, by system, split and metric."""
    return {(row["system"], row["split"], row["metric"]): row["value"] for row in results(folder)}


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics" / "train.jsonl").read_text().splitlines()]
    return [{n: v for n, v in line.items() if not n.endswith(("_per_second", "input_wait"))} for line in lines]


def state(folder):
    """Every array of the newest checkpoint."""
    import jax
    import orbax.checkpoint as ocp

    place = artefacts.checkpoints(folder)
    step = Checkpointer(place).latest_step()
    return jax.tree.leaves(ocp.StandardCheckpointer().restore(place / str(step) / "state"))

"""Our fine-tuning on labelled texts, by the program itself: pairs a second, memory, and nDCG@10."""

import json
import resource
import statistics
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import worker


def prepare(settings: Mapping[str, Any]) -> worker.Turn:
    """Settings: config, vocabulary, pairs, beir, steps, warm (not timed), seeds; test where the towers are judged."""
    import retrieval

    config = settings["config"]
    overrides = {f"{part}.{name}": value for part in config for name, value in config[part].items()} | {
        "vocab": settings["vocabulary"],
        "sets.beir": settings["beir"],
        "data.negatives": 0,
        "train.steps": settings["steps"],
        "loop.log_every": settings["warm"],
        "loop.validate_every": 0,
        "loop.checkpoint_every": settings["steps"],
    }
    home = tempfile.TemporaryDirectory()  # the process is ended, not left: its files go with this object
    labelled = Path(home.name) / "pairs.jsonl"
    _write_labelled(Path(settings["pairs"]), labelled)
    overrides["pairs.files"] = labelled
    retrieval.run("dpr:local", f"{home.name}/base", overrides, stages=("sets", "pairs"), quiet=True)
    stages = ("train", "encode", "index", "evaluate") if settings.get("test") else ("train",)

    def turn() -> dict[str, float]:
        scores, speeds = [], []
        for seed in settings["seeds"]:
            with tempfile.TemporaryDirectory() as folder:
                own = {"base": f"{home.name}/base", "stages": f"({','.join(map(repr, stages))},)", "seed": seed}
                run = retrieval.run("dpr:local", folder, overrides | own, quiet=True)
                speeds.append(_pairs_a_second(run.workdir, settings["warm"]))
                found = [
                    row["value"]
                    for row in run.results
                    if (row["system"], row["metric"], row["split"]) == ("dense", "nDCG@10", "test")
                ]
                scores += found
                worker.tell(seed, speeds[-1], found[0] if found else None)
        numbers = {
            "pairs/s": statistics.median(speeds),
            "peak MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        }
        return numbers | worker.learned(scores)

    return turn


def _write_labelled(pairs: Path, labelled: Path) -> None:
    """The pairs as the program reads them: all positives of a query in one line."""
    positives: dict[str, list[Mapping[str, str]]] = {}
    for row in map(json.loads, pairs.read_text(encoding="utf-8").splitlines()):
        positives.setdefault(row["query"], []).append({name: row[name] for name in ("title", "text")})
    lines = [json.dumps({"query": query, "positives": texts}) for query, texts in positives.items()]
    labelled.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pairs_a_second(workdir: Path, warm: int) -> float:
    rows = map(json.loads, (workdir / "metrics" / "train.jsonl").read_text().splitlines())
    counted = [row for row in rows if row["step"] > warm]
    return statistics.harmonic_mean([row["examples_per_second"] for row in counted])


if __name__ == "__main__":
    worker.serve(prepare)

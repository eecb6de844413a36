"""Fine-tuning as a user does it, on the judged pairs of a BEIR set: how fast, and how good the towers are.

Both sides begin with texts. Ours is `configs/dpr.py:local`, with the sizes of the work; theirs is the Trainer.
"""

import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.config import MODELS
from benchmarks.contest import System, Target, Work
from retrieval.common import files
from retrieval.common.errors import UserError

_PEER = "sentence-transformers, Trainer"
_BATCH = 64
_TEST = "test"


def speed(folder: Path, beir: Path, vocabulary: str, size: str, steps: int) -> Work:
    """Pairs a second of a whole training run, after a first quarter of its steps, in which programs are compiled.

    Args:
      folder: of the benchmarks, for the pairs.
      beir: a set with judgements to train on and to test with.
      size: in `MODELS`.

    Raises:
      UserError: the set has no judgements to train on.
    """
    given = _given(folder, beir, vocabulary, size, steps) | dict(seeds=(0,))
    targets = Target("pairs/s", _PEER, 1.2), Target("peak MB", _PEER, 1.0, at_most=True)
    return Work(f"fine-tuning on {beir.name}, {size}, batch {_BATCH}", _systems(given), targets, warm=0)


def learning(folder: Path, beir: Path, vocabulary: str, steps: int, seeds: int) -> Work:
    """nDCG@10 on the test split after as many steps, the mean over seeds. Args and errors are those of `speed`."""
    given = _given(folder, beir, vocabulary, "L2 H128", steps) | dict(
        seeds=tuple(range(seeds)), test=str(beir / "qrels" / f"{_TEST}.tsv")
    )
    title = f"nDCG@10 on {beir.name} after {steps} steps, {seeds} seeds"
    return Work(title, _systems(given), (Target("nDCG@10", _PEER, 1.0),), warm=0)


def _systems(given: Mapping[str, Any]) -> tuple[System, System]:
    return (System("ours", "benchmarks.ours.fine_tune", given), System(_PEER, "benchmarks.peers.fine_tune", given))


def _given(folder: Path, beir: Path, vocabulary: str, size: str, steps: int) -> dict[str, Any]:
    """What both sides get."""
    model = dict(MODELS[size], embed_dim=MODELS[size]["hidden_size"], dropout=0.0, attention_dropout=0.0)
    train = dict(batch_size=_BATCH, learning_rate=5e-4, warmup_ratio=0.067, temperature=0.05)
    config = dict(model=model, train=train, data=dict(query_length=32, document_length=128))
    pairs = write_pairs(folder, beir)
    data = dict(pairs=str(pairs), vocabulary=vocabulary, beir=str(beir.resolve()))
    return data | dict(config=config, steps=steps, warm=max(1, steps // 4))


def write_pairs(folder: Path, beir: Path) -> Path:
    """A file of JSON lines, a judged pair each: `query`, `title` and `text`. It is written once.

    The judgements are those of the split `train`, or else of `dev`.

    Raises:
      UserError: the set has neither, or no test split.
    """
    splits = {path.stem: path for path in beir.glob("qrels/*.tsv")}
    train = splits.get("train") or splits.get("dev")
    if train is None or _TEST not in splits:
        raise UserError(f"{beir / 'qrels'}: no {_TEST}.tsv beside a train.tsv or dev.tsv; name another --beir")
    path = folder / f"pairs-{beir.name}.jsonl"
    if not path.exists():
        queries, candidates = (_by_id(beir / name) for name in ("queries.jsonl", "corpus.jsonl"))
        with files.atomic(path) as temporary, temporary.open("w", encoding="utf-8") as out:
            for query, candidate in _relevant(train):
                row = {"query": queries[query]["text"], **{k: candidates[candidate][k] for k in ("title", "text")}}
                out.write(json.dumps(row) + "\n")
    return path


def _relevant(qrels: Path) -> Iterator[tuple[str, str]]:
    with qrels.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines, delimiter="\t"):
            if int(row["score"]) > 0:
                yield row["query-id"], row["corpus-id"]


def _by_id(path: Path) -> dict[str, Any]:
    with path.open(encoding="utf-8") as lines:
        return {row["_id"]: row for row in map(json.loads, lines)}

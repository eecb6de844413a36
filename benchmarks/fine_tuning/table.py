"""Tables of `results.jsonl`, which `benchmarks.fine_tuning.train` wrote, in Markdown.

    python -m benchmarks.fine_tuning.table --data=DATA --results=RESULTS/results.jsonl

Metrics are those of `retrieval.evaluation.metrics`, of the lists that were kept. A difference from the model before
training is the mean over seeds of each query. Its interval is the paired bootstrap's over queries. Its p-value is that
of the randomisation test, corrected by Holm for all differences of the table.
"""

import argparse
import base64
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.fine_tuning.train import DEPTH, Collection, Sizes
from retrieval.evaluation import metrics, significance
from retrieval.search import fusion

METRICS = ("nDCG@10", "R@100")
_START, _BM25 = "start", "bm25 alone"
_TITLES = {
    _BM25: "BM25",
    _START: "all-MiniLM-L6-v2",
    "in-batch": "fine-tuned",
    "bm25": "with BM25's negatives",
    "own": "with its own negatives",
    "teacher": "with a reranker as teacher",
    "reranker": "the reranker itself, on the first 100",
}
_SAMPLES = 10_000
_BATCH = 500


class System(NamedTuple):
    """An arm on a set: values of each metric by seed and query [S, Q], and the chosen steps."""

    values: dict[str, np.ndarray]
    hybrid: dict[str, np.ndarray]
    steps: list[int]


def decoded(text: str, dtype: Any) -> np.ndarray:
    """Ranked lists [Q, DEPTH]."""
    return np.frombuffer(base64.b64decode(text), dtype).reshape(-1, DEPTH)


def systems(collection: Collection, records: Sequence[Mapping[str, Any]]) -> dict[str, System]:
    """Every arm of a set whose seeds have all folds; queries stand in the order of their rows."""
    found: dict[str, dict[str, list]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        if record["set"] == collection.name and record["kind"] == "test":
            found[record["arm"]][str(record.get("seed", 0))].append(record)
    count, result = len(collection.splits), {}
    for arm, by_seed in found.items():
        values, hybrid, steps = defaultdict(list), defaultdict(list), []
        for parts in by_seed.values():
            if "fold" in parts[0] and len(parts) < count:
                continue
            queries = np.concatenate([part["queries"] for part in parts])
            rows = np.concatenate([decoded(part["rows"], np.uint16) for part in parts]).astype(np.int32)
            rows = np.where(rows < len(collection.texts), rows, -1)
            scores = np.concatenate([decoded(part["scores"], np.float32) for part in parts])
            steps += [part["step"] for part in parts if "step" in part]
            order = np.argsort(queries)
            queries, rows, scores = queries[order], rows[order], scores[order]
            words = collection.bm25[1][queries], collection.bm25[0][queries]
            _, fused = fusion.hybrid(words, (scores, rows), 0.5, DEPTH)
            for lists, into in ((rows, values), (fused, hybrid)):
                for name, values_Q in _measured(collection, queries, lists).items():
                    into[name].append(values_Q)
        if values:
            result[arm] = System(*({n: np.stack(v) for n, v in x.items()} for x in (values, hybrid)), steps)
    return result


def _measured(collection: Collection, queries: np.ndarray, rows_QK: np.ndarray) -> dict[str, np.ndarray]:
    ids, candidates = list(map(str, queries)), list(map(str, range(len(collection.texts))))
    qrels = {id: {str(c): int(collection.grades[q, c]) for c in collection.positives(q)} for id, q in zip(ids, queries)}
    return metrics.per_query(rows_QK, ids, candidates, qrels, METRICS)


def interval(differences_Q: np.ndarray) -> tuple[float, float]:
    """The 95 % interval of a mean, by the bootstrap over queries."""
    random, count, means = np.random.default_rng(0), len(differences_Q), []
    for _ in range(_SAMPLES // _BATCH):
        means.append(differences_Q[random.integers(0, count, (_BATCH, count))].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def table(by_set: Mapping[str, Mapping[str, System]]) -> str:
    """One row for every arm of every set; values and differences times 100."""
    compared = [
        (name, arm, metric, (system.values[metric] - found[_START].values[metric]).mean(axis=0))
        for name, found in by_set.items()
        for arm, system in found.items()
        if arm not in (_START, _BM25, "reranker")
        for metric in METRICS
    ]
    corrected = significance.holm([significance.randomisation(differences) for *_, differences in compared])
    p_values = {tuple(row[:3]): p for row, p in zip(compared, corrected)}
    differences = {tuple(row[:3]): row[3] for row in compared}
    columns = [column for metric in METRICS for column in (metric, "over the model before", "p")]
    lines = [f"| set | | {' | '.join(columns)} | hybrid nDCG@10 |", "|---|---|" + "---:|" * (len(columns) + 1)]
    for name, found in by_set.items():
        for arm in (arm for arm in _TITLES if arm in found):
            system, cells = found[arm], []
            for metric in METRICS:
                means_S = 100 * system.values[metric].mean(axis=1)
                spread = f" ± {means_S.std(ddof=1):.2f}" if len(means_S) > 1 else ""
                cells.append(f"{means_S.mean():.2f}{spread}")
                if (key := (name, arm, metric)) in differences:
                    low, high = interval(100 * differences[key])
                    cells += [f"{100 * differences[key].mean():+.2f} [{low:+.2f}, {high:+.2f}]", _p(p_values[key])]
                else:
                    cells += ["", ""]
            hybrid = "" if arm in (_BM25, "reranker") else f"{100 * system.hybrid['nDCG@10'].mean():.2f}"
            lines.append(f"| {name} | {_TITLES[arm]} | {' | '.join(cells)} | {hybrid} |")
    return "\n".join(lines)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def sweep(records: Sequence[Mapping[str, Any]]) -> str:
    """The settings that were tried, with the best nDCG@10 on dev and its step."""
    lines = ["| learning rate | positives of a query | steps | dev nDCG@10 | best step |", "|---:|---:|---:|---:|---:|"]
    for record in records:
        if record["kind"] == "sweep":
            rate, positives, steps = record["settings"]
            best = f"{100 * record['best']:.2f} | {record['step']:,}"
            lines.append(f"| {rate:g} | {positives or 'all'} | {steps:,} | {best} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Prints both tables, and the chosen steps."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--candidates", type=int, default=0, help="as many as a toy has; 0: all")
    given = parser.parse_args(argv)
    records = list(map(json.loads, given.results.read_text().splitlines()))
    sizes = Sizes(candidates=given.candidates)
    names = list(dict.fromkeys(record["set"] for record in records))
    by_set = {name: systems(Collection(given.data / f"{name}.npz", sizes), records) for name in names}
    print(table(by_set), "", sweep(records), "", sep="\n")
    for name, found in by_set.items():
        for arm, system in found.items():
            queries = system.values[METRICS[0]].shape
            print(f"{name}, {arm}: {queries[0]} seeds, {queries[1]} queries, best steps {system.steps}")


if __name__ == "__main__":
    main()

"""The memory, the time and the recall of dense indexes over synthetic clustered embeddings.

    python -m benchmarks.index_memory --folder=FOLDER --out=index_memory.json

Writes `--rows` embeddings of `--dimensions` below --folder, in shards as the stage `encode` does, as float32 and as
int8. Then builds, saves, loads and searches, every step in a process of its own. Prints a table and writes --out.
`--indexes=exact,int8,binary` leaves ScaNN out.
"""

import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from absl import logging as absl_logging

from benchmarks import measure, worker
from retrieval import cli, files
from retrieval.errors import UserError
from retrieval.search import encoding, quantised_kind, row_views, scann, vector_codes
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import recall
from retrieval.search.exact_kind import Exact
from retrieval.search.rescoring import Rescored
from retrieval.search.scann import ScannIndex
from retrieval.search.vector_codes import Form

_FOLDER = flags.DEFINE_string("folder", None, "Folder for the embeddings and the index.")
_OUT = flags.DEFINE_string("out", None, "The JSON file that is written.")
_ROWS = flags.DEFINE_integer("rows", 1_000_000, "Candidates.", lower_bound=1)
_DIMENSIONS = flags.DEFINE_integer("dimensions", 512, "Dimensions of an embedding.", lower_bound=1)
_INDEXES = flags.DEFINE_list("indexes", ["exact", "int8", "binary", "scann"], "Which are measured; exact comes first.")
_QUERIES = flags.DEFINE_integer("queries", 500, "Queries that are measured.", lower_bound=1)

_K, _SHARD, _RESCORED = 100, 65_536, 4
_CODES = "int8"  # the folder of these
# A cluster of fewer than a hundred rows: the best hundred lie in several.
_CLUSTER, _SPREAD = 50, 1.0


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    cli.refuse_arguments(argv)
    if not _FOLDER.value or not _OUT.value:
        raise UserError("--folder and --out are needed: where the embeddings go, and the file for the numbers")
    if "scann" in _INDEXES.value and not scann.available():
        raise UserError("ScaNN cannot be imported here: there is nothing to measure")
    folder = Path(_FOLDER.value)
    write_embeddings(folder, _ROWS.value, _DIMENSIONS.value, _QUERIES.value)
    steps: dict[str, Callable[[Path], dict[str, Any]]] = {
        "exact: load, search": _search_exactly,
        "int8: load, search": _search_int8,
        "binary: load int8, code, search, rescore": _search_bits,
        "scann: load, build, save": _build_scann,
        "scann: load, search": _search_scann,
    }
    wanted = {name: step for name, step in steps.items() if name.partition(":")[0] in _INDEXES.value}
    measured = {name: _in_process(step, folder) for name, step in wanted.items()}
    size = _ROWS.value * _DIMENSIONS.value * 4
    files.write_json(Path(_OUT.value), {"bytes": size, "steps": measured})
    print(table(measured, size))


def write_embeddings(folder: Path, rows: int, dimensions: int, queries: int) -> None:
    """Candidates and queries, as unit vectors around the same centres."""
    generator = np.random.default_rng(0)
    centres_CE = generator.standard_normal((max(1, rows // _CLUSTER), dimensions), np.float32)
    for name, count in (("candidates", rows), ("queries", queries)):
        shards = -(-count // _SHARD)
        for shard in range(shards):
            ids = range(shard * _SHARD, min(count, (shard + 1) * _SHARD))
            values_NE = _SPREAD * generator.standard_normal((len(ids), dimensions), np.float32)
            values_NE += centres_CE[generator.integers(len(centres_CE), size=len(ids))]
            values_NE /= np.linalg.norm(values_NE, axis=1, keepdims=True)
            path = folder / f"{name}-{shard:05d}-of-{shards:05d}.npy"
            files.write_json(path.with_suffix(".ids.json"), list(map(str, ids)))
            np.save(path, values_NE, allow_pickle=False)
    _write_codes(folder)


def _write_codes(folder: Path) -> None:
    """The candidates as int8."""
    rows = StoredRows(folder, "candidates")
    form = row_views.calibrated(Form("int8", rows.shape[1]), rows)
    vector_codes.write(folder / _CODES, "candidates", form)
    shards = len(rows.ends) - 1
    for shard in range(shards):
        ids = list(map(str, range(rows.ends[shard], rows.ends[shard + 1])))
        path = folder / _CODES / f"candidates-{shard:05d}-of-{shards:05d}.npy"
        encoding.write(path, ids, rows[rows.ends[shard] : rows.ends[shard + 1]], form)


def table(measured: dict[str, Any], size: int) -> str:
    """What was measured, as Markdown."""
    lines = [f"embeddings: {size / 2**30:.2f} GiB", ""]
    lines += ["| step | seconds | peak, GiB | as a multiple of the embeddings |", "|---|---:|---:|---:|"]
    for name, step in measured.items():
        peak = f"{step['peak_bytes'] / 2**30:.2f} | {step['peak_bytes'] / size:.2f}"
        lines.append(f"| {name} | {step['seconds']:.0f} | {peak} |")
        lines += [
            f"| - {part} | {v['seconds']:.0f} | {v['peak_bytes'] / 2**30:.2f} | |" for part, v in step["parts"].items()
        ]
        lines += [f"| {what}: {value} | | | |" for what, value in step["results"].items()]
    return "\n".join(lines)


class _Parts:
    """The seconds and the peak of every part of a step."""

    def __init__(self):
        self.parts: dict[str, dict[str, float]] = {}

    def __call__(self, name: str, function: Callable[[], Any]) -> Any:
        worker.reset_peak()
        result, seconds = measure.timed(function)
        self.parts[name] = {"seconds": seconds, "peak_bytes": int(worker.peak_mb() * 2**20)}
        return result


def _in_process(step: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    """Calls `step` in a fresh process; its seconds and its peak are those of its parts."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        measured = pool.apply(step, arguments)
    parts = measured["parts"].values()
    print(measured, flush=True)
    return measured | {
        "seconds": sum(part["seconds"] for part in parts),
        "peak_bytes": max(part["peak_bytes"] for part in parts),
    }


def _search_exactly(folder: Path) -> dict[str, Any]:
    part = _Parts()
    index = part("load", lambda: Exact().build(StoredRows(folder, "candidates"), {}))
    queries_QE, _ = encoding.load(folder, "queries")
    index.search(queries_QE, _K)  # compilation is not part of the search
    _, rows_QK = part("search", lambda: index.search(queries_QE, _K))
    np.save(folder / "exact.npy", rows_QK, allow_pickle=False)
    return {"parts": part.parts, "results": _speed(part, queries_QE)}


def _search_int8(folder: Path) -> dict[str, Any]:
    part = _Parts()
    index = part("load", lambda: Exact().build(StoredRows(folder / _CODES, "candidates"), {}))
    return _searched(folder, part, index)


def _search_bits(folder: Path) -> dict[str, Any]:
    """Bits in memory, and int8 on the disk to score again."""
    part, rows = _Parts(), StoredRows(folder / _CODES, "candidates")
    index = part("load", lambda: quantised_kind.build(rows, "binary", bits=True))
    return _searched(folder, part, Rescored(index, rows.take, _RESCORED))


def _searched(folder: Path, part: "_Parts", index: Any) -> dict[str, Any]:
    queries_QE, _ = encoding.load(folder, "queries")
    index.search(queries_QE, _K)
    _, rows_QK = part("search", lambda: index.search(queries_QE, _K))
    found = recall(np.load(folder / "exact.npy", allow_pickle=False), rows_QK)
    return {"parts": part.parts, "results": _speed(part, queries_QE) | {"recall@100": round(found, 4)}}


def _build_scann(folder: Path) -> dict[str, Any]:
    part = _Parts()
    embeddings_NE, _ = part("load", lambda: encoding.load(folder, "candidates"))
    tree = part("build", lambda: ScannIndex.build(embeddings_NE))
    part("save", lambda: tree.save(folder / "scann"))
    return {"parts": part.parts, "results": {"index": tree.description}}


def _search_scann(folder: Path) -> dict[str, Any]:
    part = _Parts()
    index = part("load", lambda: ScannIndex.load(folder / "scann"))
    queries_QE, _ = encoding.load(folder, "queries")
    _, rows_QK = part("search", lambda: index.search(queries_QE, _K))
    found = recall(np.load(folder / "exact.npy", allow_pickle=False), rows_QK)
    return {"parts": part.parts, "results": _speed(part, queries_QE) | {"recall@100": round(found, 4)}}


def _speed(part: _Parts, queries_QE: np.ndarray) -> dict[str, float]:
    return {"queries/s": round(len(queries_QE) / part.parts["search"]["seconds"], 1)}


if __name__ == "__main__":
    cli.run(main)

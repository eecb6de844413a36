"""The speed of search: exact against FAISS's IndexFlatIP, ScaNN against the indexes of FAISS.

    python -m benchmarks.search_speed --out=search_speed.json
    python -m benchmarks.search_speed --out=search_speed.json --sizes= --embeddings=CANDIDATES.npy \\
        --query_embeddings=QUERIES.npy

The first compares exact search on random embeddings of `--sizes`. The second compares approximate search, at ScaNN's
recall, on embeddings of one's own (float32, [rows, dimensions]). Half of the queries are for tuning the others, the
other half is measured. Prints a table and writes --out.
"""

import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from absl import flags
from absl import logging as absl_logging

from benchmarks.measure import markdown, spread, timed
from retrieval import cli
from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.search import scann
from retrieval.search.exact import ExactIndex, recall
from retrieval.search.scann import ScannIndex

_OUT = flags.DEFINE_string("out", None, "The JSON file that is written.")
_SIZES = flags.DEFINE_list(
    "sizes", ["1000000x128", "200000x512"], "Exact search: rows x dimensions of random candidates."
)
_EMBEDDINGS = flags.DEFINE_string("embeddings", None, "Approximate search: candidates, an .npy file.")
_QUERIES = flags.DEFINE_string(
    "query_embeddings", None, "Queries of the same dimensions; without, held-out candidates serve."
)
_PEERS = flags.DEFINE_list("peers", ["ivf", "ivfpq", "hnsw"], "FAISS indexes for approximate search.")
_FAISS = flags.DEFINE_bool("faiss", True, "Compare with FAISS; otherwise our own search is measured alone.")
_ROUNDS = flags.DEFINE_integer("rounds", 5, "How often every search is made; the searches take turns.", lower_bound=1)
_COUNT = flags.DEFINE_integer("count", 2000, "Queries: random or held-out ones.", lower_bound=2)
_K = flags.DEFINE_integer("k", 100, "Results.", lower_bound=1)

OURS, FLAT = "ours, exact", "FAISS IndexFlatIP"

_Search = Callable[[np.ndarray, int], tuple[np.ndarray, np.ndarray]]


@dataclasses.dataclass(frozen=True)
class _Peer:
    """A kind of FAISS index and the settings of its search that are tried, in the words of FAISS.

    `factory` has room for the number of partitions and half of the dimensions.
    """

    title: str
    factory: str
    settings: tuple[str, ...]


_PROBES = tuple(f"nprobe={2**power}" for power in range(12))
_FACTORS = tuple(f"k_factor_rf={factor}" for factor in (1, 2, 5, 10))
PEERS = {
    "ivf": _Peer("FAISS IVFFlat", "IVF{partitions},Flat", _PROBES),
    "ivfpq": _Peer(
        "FAISS IVFPQ fast-scan",
        "IVF{partitions},PQ{codes}x4fs,RFlat",
        tuple(",".join(pair) for pair in itertools.product(_PROBES, _FACTORS)),
    ),
    "hnsw": _Peer("FAISS HNSW", "HNSW32", tuple(f"efSearch={2**power}" for power in range(4, 13))),
}


def main(argv: Sequence[str]) -> None:
    """Measures, prints and writes."""
    absl_logging.set_verbosity(absl_logging.WARNING)
    cli.refuse_arguments(argv)
    if not _OUT.value:
        raise UserError("--out is missing: the file for the numbers, such as --out=search_speed.json")
    for name in _PEERS.value:
        if name not in PEERS:
            raise unknown_name("peer", name, PEERS)
    sizes = [parse_size(size) for size in _SIZES.value if size]
    faiss = import_faiss() if _FAISS.value else None
    measured = {"cores": len(os.sched_getaffinity(0)), "k": _K.value, "rounds": _ROUNDS.value}
    measured["exact"] = [measure_exact(size, _COUNT.value, _K.value, _ROUNDS.value, faiss) for size in sizes]
    if _EMBEDDINGS.value:
        data = read_data(Path(_EMBEDDINGS.value), Path(_QUERIES.value) if _QUERIES.value else None, _COUNT.value)
        measured["approximate"] = measure_approximate(*data, _K.value, _ROUNDS.value, faiss, _PEERS.value)
    files.write_json(Path(_OUT.value), measured)
    print(table(measured))


def import_faiss() -> ModuleType:
    """FAISS, with as many threads as there are cores.

    Raises:
      UserError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise UserError(
            f"FAISS cannot be imported ({error}): benchmarks/README.md says how to install it; "
            "--nofaiss measures without it"
        ) from error
    faiss.omp_set_num_threads(len(os.sched_getaffinity(0)))
    return faiss


def parse_size(text: str) -> tuple[int, int]:
    """'1000000x128' as (rows, dimensions)."""
    numbers = text.split("x")
    if len(numbers) != 2 or not all(number.isdecimal() and int(number) for number in numbers):
        raise UserError(f"--sizes: '{text}' is not rows x dimensions, such as 1000000x128")
    return int(numbers[0]), int(numbers[1])


def read_data(candidates: Path, queries: Path | None, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Candidates and `count` queries out of .npy files; without a file of queries, these are held-out candidates.

    Raises:
      UserError: a file cannot be read, or holds too few rows.
    """
    generator = np.random.default_rng(0)
    candidates_NE = _read(candidates)
    if queries is None:
        if len(candidates_NE) <= 2 * count:
            raise UserError(f"{candidates}: {len(candidates_NE)} rows are too few to hold out --count={count} of them")
        order = generator.permutation(len(candidates_NE))
        return candidates_NE[np.sort(order[count:])], candidates_NE[order[:count]]
    queries_QE = _read(queries)
    if len(queries_QE) < 2:
        raise UserError(f"{queries}: {len(queries_QE)} queries; some are needed to tune on and some to measure")
    return np.asarray(candidates_NE), queries_QE[generator.permutation(len(queries_QE))[:count]]


def measure_exact(size: tuple[int, int], count: int, k: int, rounds: int, faiss: ModuleType | None) -> dict[str, Any]:
    """Exact search for `count` random queries, ours and that of FAISS in turn."""
    generator = np.random.default_rng(0)
    candidates_NE, queries_QE = (generator.standard_normal((n, size[1]), np.float32) for n in (size[0], count))
    searches = {OURS: ExactIndex(candidates_NE).search}
    if faiss is not None:
        searches[FLAT] = _flat(faiss, candidates_NE)
    return {"rows": size[0], "dimensions": size[1], "systems": _measure(searches, queries_QE, k, rounds)}


def measure_approximate(
    candidates_NE: np.ndarray,
    queries_QE: np.ndarray,
    k: int,
    rounds: int,
    faiss: ModuleType | None,
    peers: Sequence[str],
) -> dict[str, Any]:
    """ScaNN, and the fastest setting of every peer that reaches its recall; exact search beside.

    A peer needs the recall only on the queries that it is tuned on, with no margin, and its settings are timed.

    Raises:
      UserError: ScaNN cannot be imported.
    """
    if not scann.Scann().available():
        raise UserError("ScaNN cannot be imported here: there is nothing to measure")
    half = len(queries_QE) // 2
    tuning_QE, measured_QE = queries_QE[:half], queries_QE[half:]
    exact_SK = ExactIndex(candidates_NE).search(tuning_QE, k)[1]
    tree, tree_seconds = timed(lambda: ScannIndex.build(candidates_NE))
    target = recall(exact_SK, tree.search(tuning_QE, k)[1])
    built = {name: timed(functools.partial(_build, faiss, PEERS[name], candidates_NE)) for name in peers if faiss}
    searches: dict[str, _Search] = {OURS: ExactIndex(candidates_NE).search, "ScaNN": tree.search}
    settings = {"ScaNN": tree.description}
    for name, (index, _) in built.items():
        tried = _try(faiss, PEERS[name], index, tuning_QE, exact_SK)
        enough = [(seconds, setting) for setting, found, seconds in tried if found >= target]
        if enough:  # a peer that does not get there has no row
            settings[PEERS[name].title] = min(enough)[1]
            searches[PEERS[name].title] = functools.partial(_search_with, faiss, index, min(enough)[1])
    measured = {"settings": settings, "systems": _measure(searches, measured_QE, k, rounds)}
    seconds = {"ScaNN": tree_seconds} | {PEERS[name].title: seconds for name, (_, seconds) in built.items()}
    rows, dimensions = candidates_NE.shape
    return {"rows": rows, "dimensions": dimensions, "build_seconds": seconds, "targets": {f"{target:.4f}": measured}}


def table(measured: Mapping[str, Any]) -> str:
    """What was measured, as Markdown."""
    rows: list[list[str]] = []
    for part in measured["exact"]:
        rows += _rows(f"{part['rows']:,} x {part['dimensions']}", part["systems"])
    approximate = measured.get("approximate", {"targets": {}})
    for target, part in approximate["targets"].items():
        rows += _rows(f"recall {target}", part["systems"])
    title = f"{measured['cores']} cores, the best {measured['k']}, {measured['rounds']} rounds"
    header = ["search", "queries/s", "lowest", "highest", "against ours", "recall"]
    return "\n".join([title, "", *markdown(header, rows)])


def _rows(title: str, systems: Mapping[str, Any]) -> Iterator[list[str]]:
    for name, numbers in systems.items():
        speeds = [f"{value:,.0f}" for value in numbers["queries_per_second"].values()]
        yield [f"{title}, {name}", *speeds, f"{numbers['ratio']['median']:.2f}", f"{numbers['recall']:.4f}"]


def _measure(searches: Mapping[str, _Search], queries_QE: np.ndarray, k: int, rounds: int) -> dict[str, Any]:
    """Every search in turn, `rounds` times, after one that is not counted.

    Returns:
      For every system its queries a second, how many times those of `OURS` in the same round that is, and the recall
      against `OURS`.
    """
    rows = {name: search(queries_QE, k)[1] for name, search in searches.items()}
    seconds = [
        {name: timed(functools.partial(search, queries_QE, k))[1] for name, search in searches.items()}
        for _ in range(rounds)
    ]
    return {
        name: {
            "queries_per_second": spread([len(queries_QE) / taken[name] for taken in seconds]),
            "ratio": spread([taken[OURS] / taken[name] for taken in seconds]),
            "recall": recall(rows[OURS], rows[name]),
        }
        for name in searches
    }


def _flat(faiss: ModuleType, candidates_NE: np.ndarray) -> _Search:
    index = faiss.IndexFlatIP(candidates_NE.shape[1])
    index.add(candidates_NE)
    return index.search


def _build(faiss: ModuleType, peer: _Peer, candidates_NE: np.ndarray) -> Any:
    """With four partitions per root of the number of candidates, as FAISS recommends; it draws what it trains on."""
    rows, dimensions = candidates_NE.shape
    factory = peer.factory.format(partitions=round(4 * rows**0.5), codes=dimensions // 2)
    index = faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    index.train(candidates_NE)
    index.add(candidates_NE)
    return index


def _search_with(faiss: ModuleType, index: Any, setting: str, queries_QE: np.ndarray, k: int) -> Any:
    faiss.ParameterSpace().set_index_parameters(index, setting)
    return index.search(queries_QE, k)


def _try(
    faiss: Any, peer: _Peer, index: Any, queries_QE: np.ndarray, exact_QK: np.ndarray
) -> Iterator[tuple[str, float, float]]:
    """Every setting of a peer with its recall and its seconds on the queries to tune on."""
    for setting in peer.settings:
        search = functools.partial(_search_with, faiss, index, setting, queries_QE, exact_QK.shape[1])
        (_, rows_QK), seconds = timed(search)
        yield setting, recall(exact_QK, rows_QK), seconds


def _read(path: Path) -> np.ndarray:
    try:
        embeddings = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{path}: cannot be read as .npy ({error})") from error
    if embeddings.ndim != 2:
        raise UserError(f"{path}: an array of shape {embeddings.shape}, not rows x dimensions")
    return embeddings.astype(np.float32, copy=False)


if __name__ == "__main__":
    cli.run(main)

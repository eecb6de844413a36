"""Served search with the model on the device: the times of the answers for clients that ask at once.

Queries go through the server's own batches: embedded on the device, compared there with all candidates. HTTP and texts
are left out, which a bare machine has not; benchmarks/README.md has what they take.
"""

import gc
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.accelerator import step
from benchmarks.accelerator.work import Attempt, Given
from benchmarks.ours import training
from retrieval.common.runtime.filler import FILLER
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.towers import build_towers
from retrieval.search.encoding import encode_few
from retrieval.search.exact import ExactIndex
from retrieval.serving.batching import Batcher

SIZES = dict(rows=1_000_000, clients=32, seconds=10.0, k=10, batch=32)
TOY_SIZES = dict(rows=500, clients=4, seconds=0.3, k=5, batch=4)
_WARM = 1.0  # seconds that are not counted
_PAUSES = (0.0, 0.05)  # seconds between an answer and the client's next question


def attempts(given: Given) -> Iterator[Attempt]:
    """Clients that ask again at once, and after a pause."""
    sizes = TOY_SIZES if given.is_toy else SIZES
    given.open(sizes)
    opened: list[Batcher] = []
    for pause in _PAUSES:
        title = f"which ask again {'at once' if not pause else f'after {1000 * pause:.0f} ms'}"
        yield Attempt(f"{sizes['clients']} clients, {title}", lambda pause=pause: _ask(given, sizes, pause, opened))


def _ask(given: Given, sizes: Mapping[str, Any], pause: float, opened: list[Batcher]) -> Iterator[dict[str, Any]]:
    if not opened:
        opened.append(Batcher(_search(given, sizes), sizes["batch"], 10 * sizes["clients"]))
    ids_QL, _ = given.pack.question_rows(np.arange(min(4096, len(given.pack.questions))), _length(given))
    queries = [row[row != FILLER].tolist() for row in ids_QL]
    began = time.perf_counter()
    warm = _WARM if not given.is_toy else 0.0
    count_from, until = began + warm, began + warm + sizes["seconds"]
    times: list[float] = []

    def client(number: int) -> None:
        place = number
        while (asked := time.perf_counter()) < until:
            opened[0].submit(queries[place % len(queries)]).result()
            if asked >= count_from:
                times.append(1000 * (time.perf_counter() - asked))
            place += sizes["clients"]
            time.sleep(pause)

    threads = [threading.Thread(target=client, args=(number,)) for number in range(sizes["clients"])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    p50, p90, p99 = np.percentile(times, [50, 90, 99]).tolist()
    yield {"p50, ms": p50, "p90, ms": p90, "p99, ms": p99, "requests/s": len(times) / sizes["seconds"]}


def _search(given: Given, sizes: Mapping[str, Any]) -> Callable[[list[list[int]]], list[np.ndarray]]:
    """From the token ids of some queries to the rows of the best candidates; all that is needed is compiled."""
    config = step.config_of(given, step.STEPS["L12 H768"])
    config.model.unroll = 1
    towers = build_towers(config, given.pack.vocab_size)
    inference = Inference(config, towers, given.pack.special("sep"), training.one_device())
    embed = inference.compiled(lambda towers, text: towers.encode_query(text, None))(parameters_of(towers))
    rng = np.random.default_rng(0)
    index = ExactIndex(rng.standard_normal((sizes["rows"], config.model.embed_dim), np.float32))

    def search(queries: list[list[int]]) -> list[np.ndarray]:
        query_QE = encode_few(queries, embed, _length(given), 1)
        return list(index.search(query_QE, sizes["k"])[1])

    count = 1
    while count <= sizes["batch"]:
        for length in range(16, _length(given) + 1, 16):
            search([[0] * length] * count)
        count *= 2
    gc.collect()
    gc.freeze()  # as the server does: a look through all modules is a pause
    return search


def _length(given: Given) -> int:
    return given.pack.settings["data"]["query_length"]

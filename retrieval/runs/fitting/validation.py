"""Retrieval over a small pool in the middle of training: recall@k by which the best checkpoint is kept.

The pool is made of what training does not see: the validation questions of a labelled set, among its candidates, or the
held-out passages of the corpus, those that `sets.sentences` does not test on if there are any. One sentence of such a
passage asks for the others, as ICT has it, whatever the tasks of the training are: those of BFS and WLP would ask with
sentences of leads, which training reads.
"""

from __future__ import annotations

import heapq
import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.libraries import seqio, tf
from retrieval.common.runtime import hashing
from retrieval.data import holdout
from retrieval.data.examples.batches import as_written
from retrieval.data.examples.example_kind import pair_lengths
from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.evaluation import metrics
from retrieval.recipes.recipe import POOL_METRICS, VALIDATORS, Validator
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens, towers_of
from retrieval.runs.fitting import examples, held_out_questions
from retrieval.runs.pipeline.run import Run
from retrieval.search import windows
from retrieval.search.exact import ExactIndex
from retrieval.training import sharding

_log = logging.getLogger(__name__)

_BATCH = 64  # examples of `summed`, rounded up to whole devices


class Pool(NamedTuple):
    """Token ids of queries and of the windows of candidates, and query id -> candidate id -> 1.

    `own`: query id -> row of the candidate that is the query itself, which is no result.
    """

    queries: dict[str, list[int]]
    candidates: dict[str, list[list[int]]]
    qrels: dict[str, dict[str, int]]
    own: dict[str, int]


def check(config: ConfigDict) -> None:
    """Checks that something is held out to validate on.

    Raises:
      UserError: nothing is.
    """
    if not (examples.labelled(config) or config.data.held_out):
        what = "needs passages to validate on: set config.data.held_out, such as 0.01, or this to 0"
        raise UserError(f"config.loop.validate_every={config.loop.validate_every} {what}")


def make(
    run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh, build: Callable[[ConfigDict, int], Any] = towers_of
) -> Callable[[Any], dict[str, float]]:
    """A function from parameters to POOL_METRICS over a pool that stays the same; `build` is as of `Embedder`."""
    config = run.config
    check(config)
    pool = (_labelled_pool if examples.labelled(config) else _held_out_pool)(run, vocabulary)
    _log.info("validation: %d queries over %d candidates", len(pool.queries), len(pool.candidates))
    embedder = Embedder(config, vocabulary, mesh, build)
    queries = list(pool.queries.values())
    rows = list(itertools.chain.from_iterable(pool.candidates.values()))
    owners_W = windows.owners([id for id, texts in pool.candidates.items() for _ in texts])

    def validate(params: Any) -> dict[str, float]:
        queries_QE = embedder.embed_rows(embedder.queries(params), queries)
        windows_WE = embedder.embed_rows(embedder.documents(params), rows)
        index = windows.over_candidates(ExactIndex(windows_WE), owners_W)
        depth = min(100 + bool(pool.own), len(pool.candidates))
        _, rows_QK = metrics.drop_self_matches(*index.search(queries_QE, depth), pool.queries, pool.own)
        return metrics.evaluate(rows_QK, list(pool.queries), list(pool.candidates), pool.qrels, POOL_METRICS)

    return validate


def summed(
    rows: Mapping[str, np.ndarray],
    mesh: jax.sharding.Mesh,
    sums: Callable[[Any, Mapping[str, jax.Array], jax.Array], list[jax.Array]],
) -> Callable[[Any], list[float]]:
    """A function from parameters to sums over examples that stay the same.

    Args:
      rows: the fields of all examples, as a batch has them.
      sums: of parameters, a batch, and the weight of each example [B]: 0 of those that fill the last batch up.
    """
    count, size = len(next(iter(rows.values()))), -(-_BATCH // mesh.size) * mesh.size

    @jax.jit
    def of_batch(params: Any, batch: Mapping[str, jax.Array], real_B: jax.Array) -> jax.Array:
        return jax.reshard(jnp.stack(sums(params, batch, real_B)), sharding.replicated(mesh))

    def of_all(params: Any) -> list[float]:
        spread, total = sharding.batch_sharding(mesh), np.zeros(())
        for start in range(0, count, size):
            at = np.arange(start, start + size)
            batch = {name: sharding.place(values[np.minimum(at, count - 1)], spread) for name, values in rows.items()}
            real = sharding.place((at < count).astype(np.float32), spread)
            with jax.set_mesh(mesh):
                total = total + np.asarray(of_batch(params, batch, real), np.float64)
        return np.atleast_1d(total).tolist()

    return of_all


class LabelledPool(NamedTuple):
    """Held-out queries, what is relevant to them, and candidates with all of that among them."""

    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]
    candidates: list[beir.Candidate]


def labelled_pool(run: Run) -> LabelledPool:
    """The validation queries of a labelled set, and as many candidates as the config asks for.

    Raises:
      UserError: no query is held out.
    """
    queries, qrels = held_out_questions.validation(run)
    golds = {candidate for grades in qrels.values() for candidate in grades}
    folder, split_set = held_out_questions.validation_folder(run), held_out_questions.split_set(run)
    everything = beir.read_candidates((run.sets / split_set if split_set else folder) / "corpus.jsonl")
    others = (candidate for candidate in everything if candidate.id not in golds)
    room = max(0, run.config.loop.validate_candidates - len(golds))
    candidates = [c for c in beir.read_candidates(folder / "corpus.jsonl") if c.id in golds]
    candidates += heapq.nsmallest(room, others, lambda c: hashing.digest(c.id))
    # Equal scores keep the order of candidates, which must not tell what is relevant.
    return LabelledPool(queries, qrels, sorted(candidates, key=lambda c: hashing.digest(c.id)))


def _labelled_pool(run: Run, vocabulary: Vocabulary) -> Pool:
    config, (queries, qrels, candidates) = run.config, labelled_pool(run)
    return Pool(
        dict(zip(queries, query_tokens(config, vocabulary, list(queries.values())))),
        dict(zip((c.id for c in candidates), candidate_windows(config, vocabulary, candidates))),
        qrels,
        beir.own_rows(queries, candidates),
    )


def _held_out_pool(run: Run, vocabulary: Vocabulary) -> Pool:
    """One sentence of a held-out passage asks for the others, in an order that is the same in every run."""
    config = run.config
    if files.read_json(run.corpus / "stats.json")["tasks"]["ict"]["pairs"]:
        name, _ = examples.register_tasks(run, vocabulary, validation=True, rates={"ict": 1.0})
        lengths = pair_lengths(config.data.query_length, config.data.document_length)
        open_dataset = as_written(seqio.get_mixture_or_task(name).get_dataset)
        dataset = open_dataset(lengths, "train", shuffle=True, seed=0, num_epochs=1)
        for tested in (holdout.bound(config.sets.sentences), 0):
            if pool := _first_held_out(dataset, config.loop, tested):
                return pool
    why = f"config.data.held_out={config.data.held_out} holds out no passage of two sentences to validate on"
    raise UserError(f"{why}: a larger share is needed, or config.loop.validate_every=0")


def _first_held_out(dataset: tf.data.Dataset, loop: ConfigDict, tested: int) -> Pool | None:
    """The pool of the first passages whose bucket is not below `tested`; None where there is none."""
    pool = Pool({}, {}, {}, {})
    for example in dataset.as_numpy_iterator():
        id = int(example["document_id"][0])
        document, query = str(id), f"q{id}"
        if document in pool.candidates or holdout.bucket(id) < tested:
            continue
        pool.candidates[document] = [example["document"][0].tolist()]
        if len(pool.queries) < loop.validate_queries:
            pool.queries[query], pool.qrels[query] = example["query"].tolist(), {document: 1}
        if len(pool.candidates) == loop.validate_candidates:
            break
    return pool if pool.queries else None


VALIDATORS.register("pool", Validator(check, make))

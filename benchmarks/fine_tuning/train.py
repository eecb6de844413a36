"""Fine-tunes a published model on the train splits of several sets, with and without hard negatives and a teacher.

    python -m benchmarks.fine_tuning.train --data=DATA --out=RESULTS --minutes=5

DATA is what `benchmarks.fine_tuning.prepare` wrote: no text is read, and no TensorFlow is needed. Learning rate,
positives and steps are chosen on the first set's dev queries with one seed. Every arm then has the seeds 1, 2 and 3.
The step with the best nDCG@10 on the dev queries is tested, and step 0 is one of them. A line of `results.jsonl` is a
run; those that are there already are not done again. `benchmarks.fine_tuning.table` makes tables of them.
"""

import argparse
import base64
import dataclasses
import functools
import json
import shutil
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx, traverse_util

from retrieval.methods.reranker.model import CrossEncoder
from retrieval.models import two_tower
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.two_tower import TowerConfig
from retrieval.runtime.filler import FILLER
from retrieval.search.exact import ExactIndex
from retrieval.search.mining import Rule, mine
from retrieval.training import loop
from retrieval.training.candidates import inner_products
from retrieval.training.objectives.distillation import kl_divergence
from retrieval.training.objectives.in_batch_softmax import in_batch_softmax
from retrieval.training.objectives.own_negatives import multi_negative_nll
from retrieval.training.optimizer import make_optimizer
from retrieval.training.schedules import schedule

DEPTH, SEEDS, TEMPERATURE = 100, (1, 2, 3), 0.05
IN_BATCH, BM25, OWN, TEACHER = "in-batch", "bm25", "own", "teacher"
_MOST_STEPS = 4096
_DROPOUT = 0.1
# Hard negatives: the first 100 of BM25; of the model before training, those that score 5 % below the best positive.
_RULES = {BM25: Rule(DEPTH, 1, DEPTH), OWN: Rule(DEPTH, 1, DEPTH, relative_margin=0.05)}
_TEACHER_POSITIVES, _TEACHER_NEGATIVES = 8, 24  # candidates of a training query that the reranker scores


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Batches in texts, lengths in tokens; a toy has the last ones."""

    batch: int = 64
    listwise_batch: int = 16
    listwise: int = 8  # documents of a query that a reranker and its student compare
    query_length: int = 64
    length: int = 256
    encode_batch: int = 512
    dtype: str = "bfloat16"
    candidates: int = 0  # 0: all
    queries: int = 0  # of a split; 0: all
    layers: int = 6


class Settings(NamedTuple):
    """What is chosen on the dev queries; `positives` are those of a query that are trained on, 0 for all."""

    learning_rate: float
    positives: int
    steps: int


class Split(NamedTuple):
    """Query rows to train on, to validate on and to test on."""

    train: np.ndarray
    dev: np.ndarray
    test: np.ndarray


class Collection:
    """A set, with padded token ids [N, L] and grades [Q, N]."""

    def __init__(self, path: Path, sizes: Sizes):
        arrays = dict(np.load(path, allow_pickle=False))
        self.name = path.stem
        self.queries = _padded(arrays["queries"], arrays["queries_lengths"], sizes.query_length)
        most = sizes.candidates or len(arrays["texts"])
        candidates = _padded(arrays["candidates"], arrays["candidates_lengths"], sizes.length)
        self.candidates, self.texts = candidates[:most], arrays["texts"][:most]
        rows_QK = arrays["bm25_rows"].astype(np.int32)
        self.bm25 = np.where(rows_QK < most, rows_QK, -1), arrays["bm25_scores"]  # 65,535: BM25 found no more
        self.grades = np.zeros((len(self.queries), most), np.int8)
        self._positives: dict[int, list[int]] = {}
        rows: dict[str, np.ndarray] = {}
        for name in [name for name in arrays if name.startswith("qrels_")]:
            kept = arrays[name][(arrays[name][:, 1] < most) & (arrays[name][:, 2] > 0)]
            kept = kept[np.isin(kept[:, 0], np.unique(kept[:, 0])[: sizes.queries or None])]
            self.grades[kept[:, 0], kept[:, 1]] = kept[:, 2]
            for query, row, _ in kept.tolist():
                self._positives.setdefault(query, []).append(row)
            rows[name.removeprefix("qrels_")] = np.unique(kept[:, 0])
        folds = arrays["folds"]
        if len(folds):
            count, judged = int(folds.max()) + 1, rows["all"]
            fold = folds[judged]
            self.splits = [
                Split(
                    judged[(fold != f) & (fold != (f + 1) % count)], judged[fold == (f + 1) % count], judged[fold == f]
                )
                for f in range(count)
            ]
        else:
            self.splits = [Split(rows["train"], rows["dev"], rows["test"])]

    def positives(self, query: int | np.integer) -> np.ndarray:
        """Rows of the relevant candidates, in the order of the judgements."""
        return np.array(self._positives.get(int(query), []), int)

    def of_results(self, queries: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
        """The grades [Q, K] of ranked rows, 0 where there is none."""
        return np.where(rows_QK >= 0, self.grades[queries[:, None], rows_QK], 0).astype(float)


def _padded(ids: np.ndarray, lengths: np.ndarray, length: int) -> np.ndarray:
    """Texts one after the other to rows [N, length]; a longer one loses what is behind, but keeps its last token."""
    rows = np.full((len(lengths), length), FILLER, np.int32)
    for row, text in enumerate(np.split(ids, np.cumsum(lengths)[:-1])):
        rows[row, : min(len(text), length)] = text[:length]
        if len(text) > length:
            rows[row, -1] = text[-1]
    return rows


def bound(model: nnx.Module) -> tuple[Callable[[Any], Any], Any]:
    """A pure function from parameters to the model that has them, and their shapes."""
    graphdef, state = nnx.split(model, nnx.Param)

    def with_parameters(params: Any) -> Any:
        values = jax.tree.map(lambda leaf: leaf, state)
        nnx.replace_by_pure_dict(values, params)
        return nnx.merge(graphdef, values)

    return with_parameters, nnx.to_pure_dict(state)


class _Scheduled(NamedTuple):
    """The state of `scheduled`: the rate of every update, how many there were, and the optimizer's own state."""

    rates: jax.Array
    count: jax.Array
    inner: Any


def scheduled(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """An optimizer of rate 1 whose rates stand in its state: one compiled program for all schedules."""

    def init(params: Any) -> _Scheduled:
        return _Scheduled(jnp.zeros(_MOST_STEPS), jnp.zeros((), jnp.int32), inner.init(params))

    def update(updates: Any, state: _Scheduled, params: Any = None) -> tuple[Any, _Scheduled]:
        updates, own = inner.update(updates, state.inner, params)
        rate = state.rates[state.count]
        return jax.tree.map(lambda u: rate * u, updates), _Scheduled(state.rates, state.count + 1, own)

    return optax.GradientTransformation(init, update)  # pyright: ignore[reportArgumentType] (its types are of any state)


def optimizer() -> optax.GradientTransformation:
    """That of `--config=fine_tune`, with rates that are set later."""
    return scheduled(make_optimizer(learning_rate=1.0, steps=10**9, warmup_ratio=0.0, clip_norm=1.0))


def with_schedule(state: Any, learning_rate: float, steps: int) -> Any:
    """The state of `optimizer` with the rates of a linear `schedule`, after a warm-up of a tenth of the steps."""
    counts = np.arange(_MOST_STEPS)
    rates = jnp.where(counts < steps, schedule("linear", learning_rate, steps, 0.1)(counts), 0.0)
    return state._replace(rates=jnp.asarray(rates, jnp.float32))


def from_planes(planes: np.ndarray) -> np.ndarray:
    """float16 values from their low bytes and their high ones, uint8 [2, ...]."""
    return np.ascontiguousarray(np.moveaxis(planes, 0, -1)).view("<f2")[..., 0]


class Programs:
    """The model of two towers, the reranker, and what is compiled of them: all at once, in threads."""

    def __init__(self, data: Path, sizes: Sizes):
        stored = dict(np.load(data / "weights.npz", allow_pickle=False))
        self.sizes = sizes
        self.sep_id = int(stored.pop("sep_id"))
        flat = {tuple(name.split("/")): jnp.asarray(from_planes(leaf), jnp.float32) for name, leaf in stored.items()}
        self.start = traverse_util.unflatten_dict(flat)
        layers = self.start["query_tower"]["encoder"]["layers"]
        self.start["query_tower"]["encoder"]["layers"] = jax.tree.map(lambda leaf: leaf[: sizes.layers], layers)
        vocab_size = len(self.start["query_tower"]["encoder"]["token_embedding"]["embedding"])
        shape: dict[str, Any] = dict(
            num_layers=sizes.layers, hidden_size=384, num_heads=12, mlp_size=1536, max_length=512
        )
        shape |= dict(vocab_size=vocab_size, dropout=_DROPOUT)
        config = TransformerConfig(**shape, dtype=sizes.dtype)
        tower = functools.partial(TowerConfig, "transformer", embed_dim=0, pooling="mean", normalize=True, tied=True)
        training, searching = (tower(dataclasses.asdict(c)) for c in (config, TransformerConfig(**shape)))
        self._train, params = bound(nnx.eval_shape(lambda: two_tower.create(training, 0)))
        self._search, _ = bound(nnx.eval_shape(lambda: two_tower.create(searching, 0)))
        assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, self.start), "the weights are another model's"
        self._reranker, self._reranker_params = bound(nnx.eval_shape(lambda: CrossEncoder(config, 1, rngs=nnx.Rngs(0))))
        self.reranker_config = config
        self.optimizer = optimizer()
        self.compiled: dict[str, Any] = {}

    def reranker_start(self, seed: int) -> Any:
        """A reranker's parameters: the towers' encoder, and a random head."""
        new = nnx.to_pure_dict(nnx.state(CrossEncoder(self.reranker_config, 1, rngs=Rngs(seed)), nnx.Param))
        return {**new, "encoder": self.start["query_tower"]["encoder"]}

    def in_batch(self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        """The objective of `--config=fine_tune`."""
        query_BE, document_BKE = self._embedded(params, batch, key)
        return in_batch_softmax(
            query_BE,
            document_BKE,
            batch["document_id"],
            None,
            temperature=TEMPERATURE,
            positive_ids_BP=batch["positive_ids"],
        )

    def distilled(self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        """The objective of `train.loss=kl_divergence`."""
        return kl_divergence(inner_products(*self._embedded(params, batch, key)), batch, temperature=TEMPERATURE)

    def listwise(self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        """The objective of a reranker with `train.loss=multi_negative_nll`."""
        B, K, L = batch["pair"].shape
        text = Text.from_ids(batch["pair"].reshape(-1, L), batch["pair_types"].reshape(-1, L))
        return multi_negative_nll(self._reranker(params)(text, key).reshape(B, K), batch)

    def _embedded(self, params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> tuple[jax.Array, jax.Array]:
        model, (B, K, L) = self._train(params), batch["document"].shape
        query_BE = model.encode_queries(_text(batch["query"]), key)
        return query_BE, model.encode_documents(_text(batch["document"].reshape(B * K, L)), key).reshape(B, K, -1)

    def compile(self, wanted: Sequence[str]) -> None:
        """Compiles programs by name, all at the same time; what fails is said and left out."""
        with ThreadPoolExecutor(len(wanted)) as pool:
            for name, future in [(name, pool.submit(self._compile, name)) for name in wanted]:
                try:
                    self.compiled[name], seconds = future.result()
                    say(f"compiled {name}: {seconds:.1f} s")
                except Exception:
                    say(f"compiling {name} failed:\n{traceback.format_exc()}")

    def _compile(self, name: str) -> tuple[Any, float]:
        began, sizes = time.perf_counter(), self.sizes
        int32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.int32)
        if name == "encode":
            text = int32((sizes.encode_batch, sizes.length))
            program = jax.jit(lambda params, ids: self._search(params).encode_documents(_text(ids), None))
            return program.lower(self.start, text).compile(), time.perf_counter() - began
        if name == "rerank":
            text = int32((sizes.encode_batch, sizes.length))
            program = jax.jit(lambda params, ids, types: self._reranker(params).scores(Text.from_ids(ids, types)))
            return program.lower(self._reranker_params, text, text).compile(), time.perf_counter() - began
        objective, B, K = {
            IN_BATCH: (self.in_batch, sizes.batch, 1),
            "negatives": (self.in_batch, sizes.batch, 2),
            TEACHER: (self.distilled, sizes.listwise_batch, sizes.listwise),
            "reranker": (self.listwise, sizes.listwise_batch, sizes.listwise),
        }[name]
        batch = {"document_id": int32((B, K)), "positive_ids": int32((B, B * K))}
        batch |= {"teacher": jax.ShapeDtypeStruct((B, K), jnp.float32)}
        if name == "reranker":
            batch |= {"pair": int32((B, K, sizes.length)), "pair_types": int32((B, K, sizes.length))}
            params = self._reranker_params
        else:
            batch |= {"query": int32((B, sizes.query_length)), "document": int32((B, K, sizes.length))}
            params = self.start
        state = jax.eval_shape(functools.partial(loop.TrainState.create, optimizer=self.optimizer), params)
        program = loop.make_step(objective, self.optimizer, seed=0)
        return program.lower(state, batch).compile(), time.perf_counter() - began

    def state(self, params: Any, settings: Settings, seed: int) -> loop.TrainState:
        """The state before the first step; its first step's number makes dropout differ between seeds."""
        state = loop.TrainState.create(jax.tree.map(jnp.copy, params), self.optimizer)
        opt_state = with_schedule(state.opt_state, settings.learning_rate, settings.steps)
        return dataclasses.replace(state, step=jnp.int32(seed * _MOST_STEPS), opt_state=opt_state)

    def embed(self, params: Any, rows_NL: np.ndarray) -> np.ndarray:
        """Embeddings [N, E], float32."""
        size, length = self.sizes.encode_batch, self.sizes.length
        padded = np.full((-(-len(rows_NL) // size) * size, length), FILLER, np.int32)
        padded[: len(rows_NL), : rows_NL.shape[1]] = rows_NL
        parts = [self.compiled["encode"](params, padded[at : at + size]) for at in range(0, len(padded), size)]
        return np.concatenate(jax.device_get(parts))[: len(rows_NL)]

    def rerank(self, params: Any, pairs_NL: np.ndarray, types_NL: np.ndarray) -> np.ndarray:
        """A reranker's scores [N]."""
        size, scores = self.sizes.encode_batch, []
        for at in range(0, len(pairs_NL), size):
            parts = [
                np.pad(x[at : at + size], ((0, size - len(x[at : at + size])), (0, 0))) for x in (pairs_NL, types_NL)
            ]
            scores.append(self.compiled["rerank"](params, *parts))
        return np.concatenate(jax.device_get(scores))[: len(pairs_NL)]

    def pairs(self, queries_NL: np.ndarray, documents_NL: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows of [CLS] query [SEP] document [SEP], and their token types."""
        length = self.sizes.length
        pairs = np.full((len(queries_NL), length), FILLER, np.int32)
        types = np.zeros_like(pairs)
        for row, (query, document) in enumerate(zip(queries_NL, documents_NL)):
            query, document = query[query != FILLER], document[document != FILLER][1:]
            both = np.concatenate([query, document])[:length]
            both[-1] = self.sep_id
            pairs[row, : len(both)], types[row, len(query) : len(both)] = both, 1
        return pairs, types


def _text(ids_BL: jax.Array) -> Text:
    return Text.from_ids(ids_BL, jnp.zeros_like(ids_BL))


class Examples:
    """Batches of a split: every positive of every training query once an epoch, in an order of the seed.

    `negatives` are rows for every training query; `teacher` are the reranker's scores by query and row.
    """

    def __init__(
        self,
        collection: Collection,
        train: np.ndarray,
        positives: int,
        seed: int,
        negatives: Mapping[int, np.ndarray] | None = None,
        teacher: Mapping[int, Mapping[int, float]] | None = None,
    ):
        self._of, self._negatives, self._teacher = collection, negatives, teacher
        pairs = [(query, row) for query in train for row in self._kept(query, positives)]
        self._pairs, self._random = np.array(pairs, np.int32), np.random.default_rng(seed)
        self._order = np.zeros(0, int)

    def _kept(self, query: int | np.integer, positives: int) -> np.ndarray:
        found = self._of.positives(query)
        if self._teacher is not None:
            return found[np.isin(found, list(self._teacher[int(query)]))]
        return found[: positives or None]

    def batch(self, size: int, documents: int) -> dict[str, np.ndarray]:
        """The next pairs, each with `documents` - 1 negatives; its positive stands where a query has too few."""
        while len(self._order) < size:
            self._order = np.concatenate([self._order, self._random.permutation(len(self._pairs))])
        chosen, self._order = self._order[:size], self._order[size:]
        queries, golds = self._pairs[chosen].T
        rows_BK = np.repeat(golds[:, None], documents, axis=1)
        for place, query in enumerate(queries):
            if documents > 1 and self._negatives is not None and len(found := self._negatives[query]):
                drawn = self._random.permutation(found)[: documents - 1]
                rows_BK[place, 1 : 1 + len(drawn)] = drawn
        ids_BK = self._of.texts[rows_BK]
        is_known_BN = self._of.grades[queries[:, None], rows_BK.ravel()] > 0
        batch = {
            "query": self._of.queries[queries],
            "document": self._of.candidates[rows_BK],
            "document_id": ids_BK,
            "positive_ids": np.where(is_known_BN, ids_BK.ravel(), ids_BK[:, :1]).astype(np.int32),
            "teacher": np.zeros(rows_BK.shape, np.float32),
        }
        if self._teacher is not None:
            scores = [[self._teacher[query][row] for row in rows] for query, rows in zip(queries, rows_BK)]
            batch["teacher"] = np.array(scores, np.float32)
        return batch


class Results:
    """`results.jsonl`: a line is a run."""

    def __init__(self, path: Path):
        self._path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.done = {self._key(record): record for record in map(json.loads, lines)}

    @staticmethod
    def _key(record: Mapping[str, Any]) -> tuple:
        return tuple(str(record.get(name)) for name in ("kind", "set", "fold", "arm", "seed", "settings"))

    def find(self, record: Mapping[str, Any]) -> Any:
        """The record of the same run, if it is there."""
        return self.done.get(self._key(record))

    def add(self, record: dict[str, Any]) -> None:
        """Writes a line at once."""
        self.done[self._key(record)] = record
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")


class Experiment:
    """All runs, one after the other, as long as there is time."""

    def __init__(self, programs: Programs, results: Results, ends: float):
        self.programs, self.results, self._ends = programs, results, ends
        self._took: dict[tuple[str, str], float] = {}  # seconds of a step, by program and set
        self._before: dict[tuple[str, int], float] = {}  # nDCG@10 on dev of the model as it came, by set and fold

    def search(self, params: Any, collection: Collection, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scores and rows [Q, DEPTH] of the queries of some rows."""
        index = ExactIndex(self.programs.embed(params, collection.candidates), batch_size=512)
        return index.search(self.programs.embed(params, collection.queries[queries]), DEPTH)

    def untrained(self, collection: Collection) -> None:
        """The model as it came, and BM25, on dev and test queries."""
        split, fold = collection.splits[0], len(collection.splits) > 1
        for arm in ("start", "bm25 alone"):
            for part, queries in (("dev", split.dev), ("test", split.test)):
                queries = np.concatenate([s.test for s in collection.splits]) if fold else queries
                record = {"kind": part, "set": collection.name, "arm": arm}
                if self.results.find(record) or (fold and part == "dev"):
                    continue
                if arm == "start":
                    scores_QK, rows_QK = self.search(self.programs.start, collection, queries)
                else:
                    rows_QK, scores_QK = (x[queries] for x in collection.bm25)
                self._add(record, collection, queries, scores_QK, rows_QK)

    def tuned(
        self,
        arm: str,
        collection: Collection,
        fold: int,
        settings: Settings,
        seed: int,
        kind: str = "test",
        **given: Any,
    ) -> float | None:
        """Trains once, and tests the best step on dev; returns the best nDCG@10 on dev, None where there is no time."""
        split = collection.splits[fold]
        record = {"kind": kind, "set": collection.name, "fold": fold, "arm": arm, "seed": seed, "settings": [*settings]}
        if known := self.results.find(record):
            return known["best"]
        scale, program = settings.steps, IN_BATCH if arm == IN_BATCH else TEACHER if arm == TEACHER else "negatives"
        expected = self._took.get((program, collection.name), 0.02) * scale + 2
        if program not in self.programs.compiled or time.monotonic() + expected > self._ends:
            say(f"left out: {collection.name} {arm} seed {seed} fold {fold}")
            return None
        began = time.monotonic()
        examples = Examples(collection, split.train, settings.positives, seed, **given)
        sizes = self.programs.sizes
        shape = (sizes.listwise_batch, sizes.listwise) if arm == TEACHER else (sizes.batch, 1 + (arm != IN_BATCH))
        state = self.programs.state(self.programs.start, settings, seed)
        best, step_fn = (-1.0, 0, self.programs.start), self.programs.compiled[program]
        curve, losses, every = [], [], max(1, settings.steps // 6)

        def on_dev(params: Any) -> float:
            _, rows_QK = self.search(params, collection, split.dev)
            return float(ndcg(collection, split.dev, rows_QK).mean())

        for step in range(settings.steps + 1):
            if step % every == 0 or step == settings.steps:
                if not step and (collection.name, fold) not in self._before:
                    self._before[collection.name, fold] = on_dev(self.programs.start)
                score = on_dev(state.params) if step else self._before[collection.name, fold]
                curve.append((step, round(score, 5)))
                if curve[-1][1] > best[0]:
                    best = curve[-1][1], step, jax.tree.map(jnp.copy, state.params)
            if step < settings.steps:
                state, metrics = step_fn(state, examples.batch(*shape))
                losses.append(metrics["loss"])
        losses = [float(part.mean()) for part in np.array_split(np.array(jax.device_get(losses)), 4)]
        record |= {"best": best[0], "step": best[1], "curve": curve, "losses": losses}
        queries = split.test if kind == "test" else split.dev
        self._took[program, collection.name] = (time.monotonic() - began) / scale
        record["seconds"] = time.monotonic() - began
        self._add(record, collection, queries, *self.search(best[2], collection, queries), lists=kind == "test")
        return best[0]

    def _add(
        self,
        record: dict[str, Any],
        collection: Collection,
        queries: np.ndarray,
        scores_QK: np.ndarray,
        rows_QK: np.ndarray,
        lists: bool = True,
    ) -> None:
        ndcg_Q, recall_Q = ndcg(collection, queries, rows_QK), recall(collection, queries, rows_QK)
        record |= {"nDCG@10": float(ndcg_Q.mean()), "R@100": float(recall_Q.mean())}
        told = {name: value for name, value in record.items() if name not in ("losses",)}
        say(json.dumps(told, default=str))
        if lists:
            record |= {"queries": queries.tolist(), "rows": coded(rows_QK, np.uint16)}
            record |= {"scores": coded(scores_QK, np.float32)}
        self.results.add(record)

    def sweep(
        self, collection: Collection, base: Settings, rates: Sequence[float], positives: Sequence[int]
    ) -> Settings:
        """The settings with the best nDCG@10 on dev: first the rate, then the positives, then the steps."""
        best = (-1.0, base)

        def try_all(choices: Sequence[Settings]) -> None:
            nonlocal best
            for settings in choices:
                found = self.tuned(IN_BATCH, collection, 0, settings, 0, kind="sweep")
                if found is not None and found > best[0]:
                    best = found, settings

        try_all([base._replace(learning_rate=rate) for rate in rates])
        try_all([best[1]._replace(positives=count) for count in positives])
        try_all([best[1]._replace(steps=best[1].steps * 2)])
        say(f"chosen on {collection.name}: {best[1]}")
        return best[1]

    def mined(self, collection: Collection) -> dict[str, dict[int, np.ndarray]]:
        """Hard negatives of every training query, by where they are from."""
        queries = np.unique(np.concatenate([split.train for split in collection.splits]))
        lists = {BM25: (collection.bm25[1][queries], collection.bm25[0][queries])}
        lists[OWN] = self.search(self.programs.start, collection, queries)
        golds = [collection.positives(query).tolist() for query in queries]
        found = {}
        for name, (scores_QK, rows_QK) in lists.items():
            drawn = mine(
                scores_QK,
                rows_QK,
                positives=golds,
                others=[[]] * len(golds),
                texts_N=collection.texts,
                rule=_RULES[name],
                seed=[0],
            )
            found[name] = dict(zip(queries.tolist(), drawn.rows))
            say(f"{collection.name}: {name}: {np.mean([len(rows) for rows in drawn.rows]):.1f} negatives of a query")
        return found

    def teacher(
        self, collection: Collection, negatives: Mapping[str, Mapping[int, np.ndarray]], steps: int, rate: float
    ) -> Any:
        """The scores of a reranker that is trained on the first split, by query and row, with the negatives."""
        split, programs, began = collection.splits[0], self.programs, time.monotonic()
        both = {query: np.union1d(negatives[BM25][query], negatives[OWN][query]) for query in split.train}
        examples = Examples(collection, split.train, _TEACHER_POSITIVES, 0, both)
        state = programs.state(programs.reranker_start(0), Settings(rate, _TEACHER_POSITIVES, steps), 0)
        losses = []
        for _ in range(steps):
            batch = examples.batch(programs.sizes.listwise_batch, programs.sizes.listwise)
            B, K, L = batch["document"].shape
            queries = np.repeat(batch.pop("query"), K, axis=0)
            pairs, types = programs.pairs(queries, batch.pop("document").reshape(B * K, L))
            batch |= {"pair": pairs.reshape(B, K, L), "pair_types": types.reshape(B, K, L)}
            state, metrics = programs.compiled["reranker"](state, batch)
            losses.append(metrics["loss"])
        losses = [float(part.mean()) for part in np.array_split(np.array(jax.device_get(losses)), 6)]
        say(f"{collection.name}: reranker: losses {losses}, {time.monotonic() - began:.1f} s")
        for part, queries in (("dev", split.dev), ("test", split.test)):
            _, rows_QK = self.search(programs.start, collection, queries)
            scores_QK = self._reranked(state.params, collection, queries, rows_QK)
            order = np.argsort(-scores_QK, axis=1, kind="stable")
            scores_QK, rows_QK = (np.take_along_axis(x, order, axis=1) for x in (scores_QK, rows_QK))
            self._add(
                {"kind": part, "set": collection.name, "arm": "reranker"}, collection, queries, scores_QK, rows_QK
            )
        random, rows = np.random.default_rng(0), {}
        for query in split.train:
            golds = random.permutation(collection.positives(query))[:_TEACHER_POSITIVES]
            rows[query] = np.concatenate([golds, random.permutation(both[query])[:_TEACHER_NEGATIVES]])
        flat = self._scored(state.params, collection, [(query, row) for query in rows for row in rows[query]])
        scores, at = {}, 0
        for query, found in rows.items():
            scores[query] = dict(zip(found.tolist(), flat[at : at + len(found)].tolist()))
            at += len(found)
        candidates = {query: np.setdiff1d(found, collection.positives(query)) for query, found in rows.items()}
        say(f"{collection.name}: teacher after {time.monotonic() - began:.1f} s, {len(flat)} pairs")
        return {"negatives": candidates, "teacher": scores}

    def _reranked(self, params: Any, collection: Collection, queries: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
        pairs = [(query, row) for query, rows in zip(queries, rows_QK) for row in rows]
        return self._scored(params, collection, pairs).reshape(rows_QK.shape)

    def _scored(self, params: Any, collection: Collection, pairs: Sequence[tuple[int, int]]) -> np.ndarray:
        queries, rows = np.array(pairs).T
        return self.programs.rerank(
            params, *self.programs.pairs(collection.queries[queries], collection.candidates[rows])
        )


def ndcg(collection: Collection, queries: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
    """nDCG@10 [Q], for choosing; the tables have that of `retrieval.evaluation.metrics`."""
    discounts = 1 / np.log2(np.arange(2, 12))
    ideal_QK = np.zeros((len(queries), 10))
    for place, query in enumerate(queries):
        best = -np.sort(-collection.grades[query, collection.positives(query)].astype(float))[:10]
        ideal_QK[place, : len(best)] = best
    return (collection.of_results(queries, rows_QK[:, :10]) @ discounts) / (ideal_QK @ discounts)


def recall(collection: Collection, queries: np.ndarray, rows_QK: np.ndarray) -> np.ndarray:
    """R@100 [Q]."""
    counts = np.array([len(collection.positives(query)) for query in queries])
    return (collection.of_results(queries, rows_QK) > 0).sum(axis=1) / counts


def coded(values: np.ndarray, dtype: Any) -> str:
    """An array as text; `decoded` of `benchmarks.fine_tuning.table` reads it."""
    return base64.b64encode(np.ascontiguousarray(values, dtype).tobytes()).decode()


_BEGAN = time.monotonic()


def say(text: str) -> None:
    """Prints with the seconds since the start, at once."""
    print(f"[{time.monotonic() - _BEGAN:6.1f}] {text}", flush=True)


def attempt(what: str, function: Callable[[], Any]) -> Any:
    """What a function gives; where it fails, the error is printed and the rest goes on."""
    try:
        return function()
    except Exception:
        say(f"{what} failed:\n{traceback.format_exc()}")
        return None


def _order(names: Sequence[str], arms: Sequence[str]) -> list[tuple[str, str]]:
    """Set and arm, what matters most first. One set alone has a reranker: others would need one for every fold."""
    plan = [(0, IN_BATCH), (0, BM25), (1, IN_BATCH), (0, TEACHER), (1, BM25), (0, OWN)]
    plan += [(number, arm) for arm in (IN_BATCH, BM25, OWN) for number in range(1, len(names))]
    return [(names[number], arm) for number, arm in dict.fromkeys(plan) if number < len(names) and arm in arms]


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what there is time for, in the order of what matters most."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=5.0, help="of this process")
    parser.add_argument("--sets", default="nfcorpus,cranfield,npl", help="the first one chooses settings")
    parser.add_argument("--arms", default=",".join((IN_BATCH, BM25, TEACHER, OWN)))
    parser.add_argument("--steps", type=int, default=300, help="of the first runs of the sweep")
    parser.add_argument("--settings", default="", help="learning rate, positives and steps, in place of a sweep")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--toy", action="store_true", help="a few tiny steps, to see that everything runs")
    given = parser.parse_args(argv)
    given.out.mkdir(parents=True, exist_ok=True)
    sizes = Sizes(4, 2, 3, 16, 32, 64, "bfloat16", 300, 15, 1) if given.toy else Sizes()
    say(f"jax {jax.__version__} on {jax.devices()[0].device_kind}")
    programs = Programs(given.data, sizes)
    arms = given.arms.split(",")
    wanted = ["encode", IN_BATCH, *(["negatives"] if {BM25, OWN} & set(arms) else [])]
    programs.compile(wanted + ([TEACHER, "reranker", "rerank"] if TEACHER in arms else []))
    if (earlier := given.data / "results.jsonl").exists() and not (given.out / earlier.name).exists():
        shutil.copy(earlier, given.out / earlier.name)
    results = Results(given.out / "results.jsonl")
    experiment = Experiment(programs, results, _BEGAN + 60 * given.minutes)
    collections = [Collection(given.data / f"{name}.npz", sizes) for name in given.sets.split(",")]
    say("sets are read")
    first = collections[0]
    attempt("start", lambda: experiment.untrained(first))
    if given.settings:
        rate, positives, steps = given.settings.split(",")
        chosen = Settings(float(rate), int(positives), int(steps))
    else:
        base = Settings(5e-5, 0, 4 if given.toy else given.steps)
        chosen = attempt("sweep", lambda: experiment.sweep(first, base, (2e-5, 5e-5, 1e-4, 2e-4), (5, 20))) or base
    by_name = {collection.name: collection for collection in collections}
    prepared: dict[str, dict[str, Any]] = {}
    for name, arm in _order(list(by_name), given.arms.split(",")):
        collection = by_name[name]
        attempt("start", functools.partial(experiment.untrained, collection))
        most = chosen.steps if collection is first else 100 if len(collection.splits) > 1 else 200
        settings = chosen._replace(steps=min(chosen.steps, most))
        given_to = prepared.setdefault(name, {IN_BATCH: {}})
        if arm != IN_BATCH and BM25 not in given_to:
            found = attempt("mining", functools.partial(experiment.mined, collection)) or {}
            given_to |= {source: {"negatives": rows} for source, rows in found.items()}
        if arm == TEACHER and BM25 in given_to:
            negatives = {source: given_to[source]["negatives"] for source in (BM25, OWN)}
            taught = functools.partial(experiment.teacher, collection, negatives, 4 if given.toy else 600, 1e-4)
            given_to |= {TEACHER: found} if (found := attempt("teacher", taught)) else {}
        for seed in SEEDS[: given.seeds] if arm in given_to else ():
            for fold in range(len(collection.splits)):
                run = functools.partial(experiment.tuned, arm, collection, fold, settings, seed, **given_to[arm])
                attempt(f"{name} {arm}", run)
    say("done")


if __name__ == "__main__":
    main()

"""The curves of pre-training: what towers find by the steps of ICT+BFS+WLP, of ICT, and of a masked LM.

Chang et al. 2020, Tables 2 and 3, at a batch of their size. Towers are evaluated as ReQA does: every question among all
candidates, by exact search, without labels at every quarter of the steps, and at the end after some steps with labels.
"""

import collections
import concurrent.futures
import contextlib
import functools
import itertools
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.accelerator.data import SLOTS, Batch, Labelled, Masked, Pack, Pairs, ranks
from benchmarks.accelerator.outcomes import DEPTHS, DONE
from benchmarks.accelerator.work import Attempt, Given
from retrieval.common.errors import UserError
from retrieval.data.examples.example_kind import PERCENT, share
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import bind
from retrieval.recipes.recipe import abstract_model, recipe_of
from retrieval.runs.weights import initial_parameters, train_state
from retrieval.search.exact import ExactIndex
from retrieval.training import sharding
from retrieval.training.loop import TrainState

_QUARTERS = 4
_DRAWERS = 3  # threads that draw batches
_AHEAD = 2  # steps that are dispatched before the host waits for one
# Of the time of a step of two towers, that of one of MLM and of BoW-MLP: a third of the work is not done twice there.
_SHARES = {"all": 1.0, "ict": 1.0, "mlm": 0.65, "bow": 0.15}
_COMPILING = 100.0  # seconds, of all programs behind the first evaluation


class Arm(NamedTuple):
    """A line of the curves.

    Attributes:
      label: in tables.
      tasks: that it is trained on; without any it is not trained.
      encoder: of its towers.
    """

    label: str
    tasks: tuple[str, ...]
    encoder: str = "transformer"


# `settings` has them in the order of their value. The evaluation of the first says how fast the device is.
ARMS = {
    "none": Arm("no pre-training", ()),
    "all": Arm("ICT+BFS+WLP", ("ict", "bfs", "wlp")),
    "ict": Arm("ICT", ("ict",)),
    "mlm": Arm("MLM", ("mlm",)),
    "bow": Arm("BoW-MLP, ICT+BFS+WLP", ("ict", "bfs", "wlp"), "bow_mlp"),
}


class Curves:
    """The arms of a seed, which share compiled programs and parameters to start from, on all devices."""

    def __init__(self, given: Given, seed: int):
        """Args:
        given: with the outcome open.
        """
        self._pack, self._outcome, self._seed, self._given = given.pack, given.outcome, seed, given
        pack = given.pack
        self._settings = pack.settings
        self._chunk = self._settings["chunk"]
        self._mesh = sharding.make_mesh(devices=taking_part(self._settings, jax.devices()))
        self._steps: dict[tuple, Callable] = {}
        self._embedders: dict[str, tuple[Callable, Callable]] = {}
        is_labelled_Q = np.zeros(len(pack.questions), bool)
        is_labelled_Q[pack["labelled"]] = True
        self._asked_Q = np.flatnonzero(~is_labelled_Q)
        self._gold_QN = pack.gold(self._asked_Q)
        self._encoding = self._searching = 0.0
        lengths, candidate_N = self._settings["data"], np.arange(len(pack["candidate_paragraph"]))
        self._rows = (
            pack.question_rows(self._asked_Q, lengths["query_length"])[0],
            pack.candidate_rows(candidate_N, lengths["document_length"])[0],
        )

    def run(self, name: str) -> Iterator[dict[str, Any]]:
        """An arm, from its beginning to its end; again in smaller chunks where the memory is too small."""
        while True:
            try:
                yield from self._run(ARMS[name])
                return
            except jax.errors.JaxRuntimeError as error:
                if "RESOURCE_EXHAUSTED" not in str(error) or self._chunk <= 64:
                    raise
                self._chunk //= 2
                self._steps.clear()
                _tell(f"{name}: the device has not enough memory; again in chunks of {self._chunk}")

    def _run(self, arm: Arm) -> Iterator[dict[str, Any]]:
        run: dict[str, Any] = {"label": arm.label, "seed": self._seed, "tasks": list(arm.tasks), "points": []}
        run["devices"] = self._mesh.size
        self._outcome.values |= {"questions": len(self._asked_Q), "candidates": len(self._pack["candidate_paragraph"])}
        yield run
        params = None
        if arm.tasks:
            self._plan()
            params = yield from self._pretrain(arm, run)
        if arm.tasks != ("mlm",) and not run["points"]:
            run["points"].append({"step": 0, **self._evaluate(arm, self._start(arm, None).params)})
            yield run
        yield {"tuned": self._fine_tune(arm, params)}

    def _plan(self) -> None:
        """How many steps all arms have: as many as the first of them have time for, by what the evaluation took."""
        values = self._outcome.values
        if "steps" in values:
            return
        if not self._encoding:  # an earlier call has evaluated these
            self._evaluate(ARMS["none"], self._start(ARMS["none"], None).params)
        settings, lengths = self._settings, self._settings["data"]
        places = settings["batch"] * sum(lengths.values())
        encoded = values["candidates"] * lengths["document_length"] + values["questions"] * lengths["query_length"]
        # Twice forward, and the backward pass is worth two. Encoding waits for the host too, which a step does not.
        step = 3.2 * places * self._encoding / encoded + 0.02
        _tell(f"evaluation: encoding {self._encoding:.2f} s, search {self._searching:.2f} s")
        evaluations = _QUARTERS * len(self._settings["first"])
        left = self._given.left() - _COMPILING - evaluations * (self._encoding + self._searching)
        steps = int(left / self._work() / step) // 20 * 20
        values["steps"] = values["last"] = min(settings["steps"], max(2 * _QUARTERS, steps))
        _tell(f"plan: {values['steps']} steps of about {step:.2f} s each")
        self._outcome.save()

    def _work(self) -> float:
        """That of a step of the arms that come first, in steps of two towers."""
        return sum(_SHARES.get(name, 0.0) for name in self._settings["first"])

    def _pretrain(self, arm: Arm, run: dict[str, Any]) -> Generator[dict[str, Any], None, Any]:
        """The parameters of the arm's model after its steps; yields the run at every quarter."""
        name, values, settings = arm.label, self._outcome.values, self._settings
        is_mlm = arm.tasks == ("mlm",)
        config = self._config(arm, is_mlm)
        lengths = config.data.query_length, config.data.document_length
        if is_mlm:
            places = max(1, share(lengths[1] - 2, PERCENT))
            source: Any = Masked(self._pack, self._seed, lengths[1], places, PERCENT)
        else:
            source = Pairs(self._pack, {task: settings["rates"][task] for task in arm.tasks}, self._seed, *lengths)
        parts, size = config.train.accumulation, config.train.batch_size
        step, state = self._step(config), self._state(config)
        last = values["last"]
        is_first = not any(other.get("points") for other in values["runs"].values() if other.get("tasks"))
        metrics: list[Any] = []
        began, waited, counted = time.perf_counter(), 0.0, 0
        with contextlib.closing(_drawn(source.batch, size, parts * last)) as batches:
            for number, batch in enumerate(batches, 1):
                state, said = self._take(step, state, batch)
                metrics.append(said)
                if len(metrics) > _AHEAD:
                    jax.block_until_ready(metrics[-1 - _AHEAD])
                if number == 1:  # which compiled it
                    jax.block_until_ready(said)
                    compiling = time.perf_counter() - began
                    _tell(f"{name}: the first step took {compiling:.1f} s, loss {float(said['loss']):.3f}")
                    run["compiling"], began = round(compiling, 1), time.perf_counter()
                    continue
                counted += 1
                if counted == 5 and is_first:
                    jax.block_until_ready(said)
                    last = self._shorten((time.perf_counter() - began) / 5, last)
                marks = {max(1, last * quarter // _QUARTERS) for quarter in range(1, _QUARTERS + 1)}
                if number % parts or number // parts not in marks:
                    continue
                jax.block_until_ready(said)
                seconds = time.perf_counter() - began - waited
                point = {"step": number // parts, **_means(metrics), "seconds": seconds}
                per_second = counted * size / seconds
                point |= {"examples/s": per_second, "tokens/s": per_second * point.pop("tokens")}
                metrics, pause = [], time.perf_counter()
                _check(said)
                if not is_mlm:
                    point |= self._evaluate(arm, state.params)
                waited += time.perf_counter() - pause
                run["points"].append(point)
                _tell(f"{name}: {_shown(point)}")
                yield run
                if number // parts >= last:
                    break
        return state.params

    def _shorten(self, seconds: float, last: int) -> int:
        """Fewer steps for all arms, where they turn out to be too slow. The learning rate stays as it was planned."""
        evaluation, evaluations = self._encoding + self._searching, _QUARTERS * len(self._settings["first"])
        left = self._given.left() - 0.6 * _COMPILING - evaluations * evaluation
        fitting = int(left / self._work() / seconds) // _QUARTERS * _QUARTERS
        fewer = max(2 * _QUARTERS, min(last, fitting))
        _tell(f"plan: a step takes {seconds:.3f} s, so {fewer} steps of {last} are made")
        self._outcome.values["last"] = fewer
        self._outcome.save()
        return fewer

    def _fine_tune(self, arm: Arm, params: Any) -> dict[str, Any]:
        """What towers find after some steps with labels."""
        config, tuning = self._config(arm, False), self._settings["fine_tuning"]
        config.train.update(steps=tuning["steps"], batch_size=tuning["batch_size"], chunk_size=0, log_q=False)
        config.train.learning_rate = tuning["learning_rate"]
        lengths = config.data.query_length, config.data.document_length
        source = Labelled(self._pack, self._pack["labelled"], self._seed, *lengths)
        step, state = self._step(config), self._start(arm, params, config)
        metrics = []
        for batch in _drawn(source.batch, tuning["batch_size"], tuning["steps"]):
            state, said = self._take(step, state, batch)
            metrics.append(said)
        _check(metrics[-1])
        point = {"step": tuning["steps"], "loss": _means(metrics[-10:])["loss"], **self._evaluate(arm, state.params)}
        _tell(f"{arm.label}, fine-tuned: {_shown(point)}")
        return point

    def _config(self, arm: Arm, is_mlm: bool) -> ConfigDict:
        return config_of(self._pack, arm, is_mlm, self._chunk, self._outcome.values.get("steps", 1), self._seed)

    def _step(self, config: ConfigDict) -> Callable:
        """The train step of a config, compiled once for all arms that have the same."""
        key = (config.recipe, config.model.encoder, config.train.to_json(), config.seed)
        if key not in self._steps:
            self._steps[key] = train_state.make_step(config, abstract_model(config, self._pack.vocab_size))
        return self._steps[key]

    def _state(self, config: ConfigDict, begin: Callable[[Any], None] = lambda model: None) -> TrainState:
        like = train_state.abstract_state(config, abstract_model(config, self._pack.vocab_size), self._mesh)
        return initial_parameters.initial_state(config, self._pack.vocab_size, like, begin)

    def _start(self, arm: Arm, params: Any, config: ConfigDict | None = None) -> TrainState:
        """Towers before they are fine-tuned: as they are trained, with the encoder of an MLM, or untrained."""
        config = config or self._config(arm, False)
        if params is None:
            return self._state(config)
        if arm.tasks == ("mlm",):
            masked = self._config(arm, True)
            trained = bind(abstract_model(masked, self._pack.vocab_size))(jax.device_get(params))
            return self._state(config, lambda model: recipe_of(config).start_from(model, trained))
        create = functools.partial(TrainState.create, optimizer=train_state.make_optimizer(config))
        with jax.set_mesh(self._mesh):
            return jax.jit(create)(params)

    def _take(self, step: Callable, state: TrainState, batch: Batch) -> tuple[TrainState, Any]:
        rows = jax.device_put(batch, sharding.batch_sharding(self._mesh))
        with jax.set_mesh(self._mesh):
            return step(state, rows)

    def _evaluate(self, arm: Arm, params: Any) -> dict[str, float]:
        """R@k of all questions that are not for fine-tuning."""
        config, size = self._config(arm, False), self._settings["encode"]
        if arm.encoder not in self._embedders:
            model = abstract_model(config, self._pack.vocab_size)
            inference = Inference(config, model, self._pack.special("sep"), self._mesh)
            self._embedders[arm.encoder] = (
                inference.compiled(lambda towers, text: towers.encode_query(text, None)),
                inference.compiled(lambda towers, text: towers.encode_document(text, None)),
            )
        sides = [(embedder(params), rows) for embedder, rows in zip(self._embedders[arm.encoder], self._rows)]
        for embed, rows in sides:  # compiled before the clock runs
            embed(_filled(rows[:size], size))
        began = time.perf_counter()
        query_QE, document_NE = (_embedded(*side, size) for side in sides)
        encoded = time.perf_counter()
        index = ExactIndex(document_NE)
        if not self._encoding:  # the first one is to compile what the next ones use
            self._encoding = encoded - began
            index.search(query_QE, max(DEPTHS))
            encoded = time.perf_counter()
        rank_Q = ranks(index.search(query_QE, max(DEPTHS))[1], self._gold_QN)
        self._searching = time.perf_counter() - encoded
        return {f"R@{k}": float((rank_Q < k).mean()) for k in DEPTHS}


def taking_part(settings: Mapping[str, Any], devices: Sequence[sharding.Device]) -> Sequence[sharding.Device]:
    """As many of the devices as divide the rows of all batches; several examples share one."""
    rows = [size // SLOTS for size in (settings["chunk"], settings["fine_tuning"]["batch_size"])]
    return devices[: math.gcd(len(devices), *rows)]


def config_of(pack: Pack, arm: Arm, is_mlm: bool, chunk: int, steps: int = 1, seed: int = 0) -> ConfigDict:
    """The config of an arm's towers, or of the masked language model before them."""
    settings, config = pack.settings, ConfigDict(pack.facts["config"])
    batch = settings["batch"]
    config.recipe, config.seed = "mlm" if is_mlm else "two_tower", seed
    config.data.update(settings["data"], lanes=1, negatives=0)
    config.data.pack.update(query=0.0, document=0.0)
    config.model.update(settings["model"])
    if arm.encoder == "bow_mlp":
        config.model.update(encoder="bow_mlp", **settings["bow"])
    parts = max(1, batch // chunk) if is_mlm else 1
    config.train.update(
        steps=steps * parts,
        batch_size=batch // parts,
        chunk_size=0 if is_mlm else chunk,
        accumulation=parts,
        learning_rate=settings["learning_rate"],
        temperature=0.05,
        log_q=True,
        loss="in_batch_softmax",
    )
    return config


def attempts(given: Given) -> Iterator[Attempt]:
    """The arms of the first seed of which one is not done."""
    arms = given.pack.settings["arms"]
    outcome = given.open({name: given.pack.facts[name] for name in ("version", "counts", "settings")})
    seed, runs = 0, outcome.values["runs"]
    while all(runs.get(f"{name}-s{seed}", {}).get("status") == DONE for name in arms):
        seed += 1
    curves = Curves(given, seed)
    for name in arms:
        yield Attempt(f"{name}-s{seed}", lambda name=name: curves.run(name))


def _embedded(embed: Callable, rows_BL: np.ndarray, size: int) -> np.ndarray:
    parts = (rows_BL[start : start + size] for start in range(0, len(rows_BL), size))
    return np.concatenate([embed(_filled(part, size))[: len(part)] for part in parts])


def _filled(ids_BL: np.ndarray, size: int) -> np.ndarray:
    return np.pad(ids_BL, ((0, size - len(ids_BL)), (0, 0)))


def _drawn(draw: Callable[[int, int], Batch], size: int, count: int) -> Generator[Batch]:
    """Batches that other threads draw, a few ahead."""
    numbers, drawn = iter(range(count)), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(_DRAWERS) as pool:
        drawn.extend(pool.submit(draw, number, size) for number in itertools.islice(numbers, 2 * _DRAWERS))
        while drawn:
            batch = drawn.popleft().result()
            drawn.extend(pool.submit(draw, number, size) for number in itertools.islice(numbers, 1))
            yield batch


def _means(metrics: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over the last steps, at most 20."""
    values = jax.device_get(list(metrics[-20:]))
    names = [name for name in ("loss", "recall@1", "accuracy", "gradient_norm", "tokens") if name in values[0]]
    return {name: float(np.mean([value[name] for value in values])) for name in names}


def _check(said: Mapping[str, Any]) -> None:
    if (skipped := int(said["skipped"])) > 3:
        raise UserError(f"loss or gradient was not finite for {skipped} steps in a row")


def _shown(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value:,.4g}" for name, value in point.items())


def _tell(what: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {what}", flush=True)

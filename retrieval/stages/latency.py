"""The stage `latency`: how long one question takes when nobody else asks, from its text to the list."""

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from retrieval import files
from retrieval.api.loaded_model import of_run
from retrieval.api.reranking import PairReranker
from retrieval.data.sets import beir
from retrieval.data.sets.row_texts import RowTexts
from retrieval.errors import UserError
from retrieval.evaluation import display, result_files
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import rerankers
from retrieval.recipes.initial_parameters import check_towers
from retrieval.recipes.recipe import recipe_of
from retrieval.search.side_by_side import SideBySide
from retrieval.stage_outputs import Run
from retrieval.stages import indexes
from retrieval.stages.collection import Collection, open_collection, set_names

_MODEL = "config.rerank.model"


Ask = Callable[[str], Any]


def fetch(run: Run) -> None:
    """Copies down the reranker, where one on a store is to be measured."""
    if run.config.latency.reranked:
        rerankers.KIND.fetch(run, run.config.rerank.model, _MODEL)


def check(run: Run) -> None:
    """Checks that there is a reranker, where one is to be measured.

    Raises:
      UserError: there is none.
    """
    if run.config.latency.reranked:
        rerankers.check(run, run.config.rerank.model, _MODEL)


def latency(run: Run) -> list[dict[str, Any]]:
    """Prints the milliseconds of a question by system, and writes `latency.json`.

    Nothing is compiled while the time is taken, and every index lies in memory.

    Raises:
      UserError: there is no evaluation set, or no index of one.
    """
    collections = [open_collection(run, name) for name in set_names(run.sets)]
    if not collections:
        raise UserError(f"--stage=latency: {run.place} has no evaluation set, so no questions: name one in config.sets")
    fields, indexed = run.config.latency, run.holder("index").config
    options_of = functools.partial(indexes.options_of, config=indexed)
    trained = recipe_of(run.holder("train").config)
    is_embedded = not (trained.reranks or trained.reads) and any(each.has_embeddings() for each in collections)
    embed = of_run(run).encode_queries if is_embedded else None
    reranker = PairReranker(run, run.config.rerank.model, _MODEL) if fields.reranked else None
    rows = []
    for collection in collections:
        value = beir.read_judged(run.sets / collection.name)
        asked, candidates = spread(list(value.queries.values()), fields.questions), len(value.candidates)
        depth = min(run.config.evaluate.depth, candidates)
        systems = indexes.open_all(collection, indexed.index.words, options_of, embed, depth, candidates)
        for system, ask in _systems(systems, depth, reranker, collection, fields.reranked):
            rows.append({"system": system, "dataset": value.name, "results": depth, **milliseconds(ask, asked)})
    files.write_json(run.folder / result_files.LATENCY, rows)
    print(display.markdown(list(rows[0]), [list(row.values()) for row in rows], left=2))
    return rows


def spread(questions: Sequence[str], most: int) -> list[str]:
    """At most so many of some questions, at equal distances."""
    places = np.linspace(0, len(questions) - 1, min(most, len(questions))).round().astype(int)
    return [questions[int(place)] for place in places]


def milliseconds(ask: Ask, questions: Sequence[str]) -> Mapping[str, float]:
    """How long a question takes, in milliseconds: the mean, the median and the 99th percentile.

    All are asked once before, so that programs are compiled and pages are in memory.
    """
    seconds = []
    for taken in ([], seconds):
        for question in questions:
            began = time.perf_counter()
            ask(question)
            taken.append(time.perf_counter() - began)
    values = 1000 * np.array(seconds)
    told = {"mean": values.mean(), "median": np.median(values), "p99": np.percentile(values, 99)}
    return {"questions": len(questions), **{name: round(float(value), 3) for name, value in told.items()}}


def _systems(
    systems: SideBySide, depth: int, reranker: PairReranker | None, collection: Collection, reranked: int
) -> Iterator[tuple[str, Ask]]:
    """Each system as tables name it, and what asks it a question; the reranker after the first index of words."""
    names = {name: systems.in_tables.get(name, name) for name in systems.systems}
    for name in systems.systems:
        yield names[name], lambda question, name=name: systems.search([question], depth, [name])
    if reranker is None:
        return
    texts, first = RowTexts(collection.files), systems.first_words

    def rerank(question: str) -> np.ndarray:
        (rows_K,) = systems.search([question], min(reranked, len(texts)), [first])[first][1]
        return reranker.scores(question, [texts[row] for row in rows_K.tolist() if row >= 0])

    yield f"{names[first]}+rerank@{reranked}", rerank


STAGES.register(
    "latency",
    Stage(
        latency,
        check=(check, check_towers),
        reads="evaluation sets, indexes, a checkpoint",
        writes="`latency.json`; prints the milliseconds of one question by system",
        uses=("seed", "evaluate.depth", "rerank.model"),
        needs=("sets", "index"),
        requires=("sets", "index"),
        needs_if_made=("encode", "train"),
        fetch=fetch,
        texts_of=("sets",),
        inputs=Run.vocabulary_inputs,
        leaves=(result_files.LATENCY,),
        always=True,
    ),
)

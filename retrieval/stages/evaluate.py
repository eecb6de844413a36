"""The stage `evaluate`: ranked lists and their metrics."""

import functools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import SWITCH, TEXTS, Field, Kind, declare, whole
from retrieval.data.sets import answers, beir, reqa
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.errors import UserError
from retrieval.evaluation import metrics, per_query, runs
from retrieval.evaluation.metrics import check_name, cutoff, is_of_answers
from retrieval.pipeline.records import details
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import examples
from retrieval.search import encoding, exact, fusion, tuning, windows
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import DENSE, EXACT, INDEXES
from retrieval.stages import index as indexes
from retrieval.stages import sets
from retrieval.stages.index import BM25, BM25_ALSO, TRAINED, UNTRAINED

WEIGHTS = tuple(step / 20 for step in range(21))
_FEWEST = 10  # questions by which a weight is chosen
HITS = ("Success@1", "Success@5", "Success@10", "Success@50", "Success@100", "RR")
RANKING = ("nDCG@10", "R@100", "RR@10")
ANSWERS = ("Answer@1", "Answer@5", "Answer@20", "Answer@100")  # DPR and those after it report the last two

_METRICS = Kind(
    "a tuple of metrics, such as \"('RR@10', 'R@1000')\", or ()",
    lambda value: TEXTS.fits(value) and not any("," in name for name in value),
)
declare(
    "evaluate",
    depth=Field(100, whole(1), "results that are looked for; no metric looks deeper"),
    metrics=Field((), _METRICS, "metrics as ir_measures writes them, such as RR@10; (): those that suit each set"),
    runs=Field(True, SWITCH, "whether the ranked lists are written as TREC runs"),
)


class Ranking(NamedTuple):
    """A system's ranked lists for every query of a set: scores and rows [Q, depth], and how long the search took.

    `weight` is that of the dense list in a weighted hybrid, chosen by so many `validation` questions.
    """

    system: str
    scores: np.ndarray
    rows: np.ndarray
    seconds: float
    weight: float | None = None
    validation: int = 0


class Scores(NamedTuple):
    """A system's metrics by one rule of a set, which is `split` in results.json: metric -> value of each query."""

    ranking: Ranking
    split: str
    queries: list[str]
    values: dict[str, np.ndarray]


def check(config: ConfigDict) -> None:
    """Checks the metrics.

    Raises:
      UserError: one is unknown or there twice, or looks deeper than `config.evaluate.depth`.
    """
    names = tuple(config.evaluate.metrics)
    if len(set(names)) != len(names):
        raise UserError(f"config.evaluate.metrics={names!r}: one is there twice; leave it out")
    for name in names:
        try:
            if not is_of_answers(name):
                check_name(name)
        except UserError as error:
            raise UserError(f"config.evaluate.metrics: {error}") from error
    of_answers = [name for name in names if is_of_answers(name)] or (ANSWERS if sets.has_unjudged(config) else ())
    by_judgements = [name for name in names if not is_of_answers(name)]
    if not (by_judgements or sets.has_answers_alone(config)):
        by_judgements = [*HITS, *RANKING]
    deepest = max((*by_judgements, *of_answers), key=cutoff)
    if config.evaluate.depth < cutoff(deepest):
        raise UserError(
            f"config.evaluate.depth={config.evaluate.depth} is too few results for the metric {deepest}: take at least "
            f"{cutoff(deepest)}"
        )


def evaluate(run: Run) -> dict[str, Any]:
    """Writes `runs/SET/SYSTEM.trec`, `per_query/SET/SPLIT.npz` and `results.json`.

    Returns what the report says about the searches.
    """
    rows, notes = [], {}
    for folder in sorted(path for path in run.sets.iterdir() if path.is_dir()):
        value = beir.read_judged(folder)
        rankings = {ranking.system: ranking for ranking in _rankings(run, value)}
        scores = [each for ranking in rankings.values() for each in _evaluate(run, value, ranking)]
        if value.answers and (names := _of_answers(run, value)):
            scores += _evaluate_answers(run, value, rankings.values(), names)
        _write_per_query(run, value, scores)
        rows += [row for each in scores for row in _results(run, value, each)]
        notes |= _speed(value, rankings)
    files.write_json(run.folder / "results.json", rows)
    return notes


def _rankings(run: Run, value: Judged) -> Iterator[Ranking]:
    search = functools.partial(_search, value, min(run.config.evaluate.depth, len(value.candidates)))
    words = _load_bm25(run, value, BM25)
    bm25 = search("bm25", words, list(value.queries.values()))
    yield bm25
    if run.index(value.name, BM25_ALSO).exists():
        also = _load_bm25(run, value, BM25_ALSO)
        yield search(also.system, also, list(value.queries.values()))
    if not indexes.has_embeddings(run, value.name):
        return
    if indexes.has_embeddings(run, value.name, UNTRAINED):
        yield search("untrained", *_exact(run, value, UNTRAINED))
    trained, queries = _exact(run, value, TRAINED)
    dense = search("dense", trained, queries)
    yield dense
    for kind in indexes.saved_kinds(run, value.name):
        yield search(kind.system, indexes.open_index(run, value.name, kind), queries)
    weight, questions = _weight(run, value, words, trained)
    began = time.perf_counter()
    fused = fusion.hybrid((bm25.scores, bm25.rows), (dense.scores, dense.rows), weight, bm25.rows.shape[1])
    yield Ranking("hybrid", *fused, bm25.seconds + dense.seconds + time.perf_counter() - began, weight, questions)


def _load_bm25(run: Run, value: Judged, kind: str) -> Bm25Index:
    """A BM25 index of a set, over as many texts as the set has candidates."""
    words = Bm25Index.load(run.index(value.name, kind))
    indexes.check_count(run.index(value.name, kind), len(words), len(value.candidates))
    return words


def _weight(run: Run, value: Judged, words: Bm25Index, dense: windows.Index) -> tuple[float, int]:
    """The weight of the dense list, and how many validation questions chose it: 0 where it is the usual one.

    It is the smallest one whose mean reciprocal rank lies within a standard error of the best (the rule of Breiman et
    al. 1984): of a dozen questions the best one itself would be chance, and the smallest is the nearest to BM25 alone.
    The test questions have no say in it.
    """
    if value.name != examples.split_set(run):
        return fusion.DENSE_WEIGHT, 0
    embeddings, ids = encoding.load(run.embeddings(value.name, TRAINED), "validation")
    if len(ids) < _FEWEST:
        return fusion.DENSE_WEIGHT, 0
    queries, qrels = examples.validation(run, ids)  # those of a base may be more, or fewer
    depth = min(run.config.evaluate.depth, len(value.candidates))
    own = {}
    if not queries.keys().isdisjoint(value.candidates):
        own = beir.own_rows(queries, beir.read_candidates(run.sets / value.name / "corpus.jsonl"))
    deep = min(depth + bool(own), len(value.candidates))
    both = words.search(list(queries.values()), deep), dense.search(embeddings, deep)
    by_words, by_dense = (_others(*ranked, queries, own, depth) for ranked in both)
    rows_of = {candidate: row for row, candidate in enumerate(value.candidates)}
    golds = [[rows_of[candidate] for candidate in qrels[id]] for id in ids]

    def reciprocal_ranks(weight: float) -> np.ndarray:
        _, rows_QK = fusion.hybrid(by_words, by_dense, weight, depth)
        hits_QK = np.stack([np.isin(rows, gold) for rows, gold in zip(rows_QK, golds)])
        return np.where(hits_QK.any(axis=1), 1 / (1 + hits_QK.argmax(axis=1)), 0)

    ranks_WQ = np.stack([reciprocal_ranks(weight) for weight in WEIGHTS])
    losses_WQ = ranks_WQ[ranks_WQ.mean(axis=1).argmax()] - ranks_WQ
    errors_W = losses_WQ.std(axis=1, ddof=1) / np.sqrt(len(ids))
    return WEIGHTS[int(np.argmax(losses_WQ.mean(axis=1) <= errors_W))], len(ids)


def _exact(run: Run, value: Judged, system: str) -> tuple[windows.Index, np.ndarray]:
    """Exact search over a set's candidates, and the embeddings of its queries."""
    indexes.check_embeddings(run, system, value)
    queries, _ = encoding.load(run.embeddings(value.name, system), "queries")
    return indexes.open_index(run, value.name, INDEXES[EXACT], system), queries


def _search(value: Judged, depth: int, system: str, index: Any, queries: Any) -> Ranking:
    """The first `depth` candidates of every query, without the query itself."""
    # Where a candidate may be the query itself, one more is asked for: dropping it leaves a list of full length.
    deep = min(depth + bool(value.own), len(value.candidates))
    # Compilation is not part of the search, and BM25 has none.
    index.search(queries[: 1 if isinstance(queries, list) else exact.compiling(len(queries))], deep)
    began = time.perf_counter()
    scores, rows = index.search(queries, deep)
    seconds = time.perf_counter() - began
    return Ranking(system, *_others(scores, rows, value.queries, value.own, depth), seconds)


def _others(
    scores: np.ndarray, rows: np.ndarray, queries: Iterable[str], own: Mapping[str, int], depth: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first `depth` results that are not the query itself."""
    scores, rows = metrics.drop_self_matches(scores, rows, queries, own)
    return scores[:, :depth], rows[:, :depth]


def _evaluate(run: Run, value: Judged, ranking: Ranking) -> Iterator[Scores]:
    query_ids, candidate_ids = list(value.queries), value.candidates
    if run.config.evaluate.runs:
        path = run.folder / "runs" / value.name / f"{ranking.system.replace(' ', '_')}.trec"
        runs.write_run(path, query_ids, candidate_ids, ranking.scores, ranking.rows, ranking.system.replace(" ", "_"))
    for rule, qrels in value.qrels.items():
        # ReQA's rules (which BEIR's folders do not have) ask for the first that answers, also where several do.
        hits = max(map(len, qrels.values())) == 1 or reqa.PAIR in value.qrels
        asked = [name for name in run.config.evaluate.metrics if not metrics.is_of_answers(name)]
        names = asked or (HITS if hits else RANKING)
        found = metrics.per_query(ranking.rows, query_ids, candidate_ids, qrels, names)
        yield Scores(ranking, rule, metrics.judged(query_ids, qrels), found)


def _of_answers(run: Run, value: Judged) -> Sequence[str]:
    """The metrics of a set by its answers: those that are asked for; where it has no judgements, some in any case.

    Of these, none that looks at more results than there are.
    """
    asked = [name for name in run.config.evaluate.metrics if metrics.is_of_answers(name)]
    usual = [name for name in ANSWERS if metrics.cutoff(name) <= run.config.evaluate.depth]
    return asked or ([] if value.qrels else usual)


def _evaluate_answers(run: Run, value: Judged, rankings: Collection[Ranking], names: Sequence[str]) -> Iterator[Scores]:
    """By the answers that the passages hold, over the questions whose answers are known.

    Each passage of a question is looked at once for all systems.
    """
    is_known_Q = np.array([id in value.answers for id in value.queries])
    ids = [id for id in value.queries if id in value.answers]
    known = [value.answers[id] for id in ids]
    rows_QK = np.concatenate([ranking.rows for ranking in rankings], axis=1)[is_known_Q]
    with CandidateTexts(run.sets / value.name / "corpus.jsonl") as texts:
        found_QK = answers.found(known, rows_QK, lambda row: texts[row].text)
    ends = np.cumsum([ranking.rows.shape[1] for ranking in rankings])
    for ranking, part_QK in zip(rankings, np.split(found_QK, ends[:-1], axis=1)):
        yield Scores(ranking, "answers", ids, metrics.answered(part_QK, names))


def _write_per_query(run: Run, value: Judged, scores: Sequence[Scores]) -> None:
    for split in dict.fromkeys(each.split for each in scores):
        of_split = [each for each in scores if each.split == split]
        found = {each.ranking.system: each.values for each in of_split}
        per_query.write(per_query.path_of(run.folder, value.name, split), of_split[0].queries, found)


def _results(run: Run, value: Judged, scores: Scores) -> Iterator[dict[str, Any]]:
    """The rows of results.json for the metrics of a system."""
    ranking = scores.ranking
    for metric, values_Q in scores.values.items():
        yield {
            "system": ranking.system,
            "dataset": value.name,
            "split": scores.split,
            "metric": metric,
            "value": round(float(values_Q.mean()), 6),
            "queries": len(scores.queries),
            "seconds": round(ranking.seconds, 3),
            "step": details(run, "train")["step"] if ranking.system.startswith("dense") else None,
        }


def _speed(value: Judged, rankings: dict[str, Ranking]) -> dict[str, Any]:
    """Queries per second of every system, and ScaNN's recall against exact search."""
    notes = {
        f"{value.name}, {name}": {"queries_per_second": round(len(value.queries) / max(ranking.seconds, 1e-9), 1)}
        for name, ranking in rankings.items()
    }
    for name, ranking in rankings.items():
        if ranking.weight is not None:
            notes[f"{value.name}, {name}"] |= {"weight_of_dense": ranking.weight, "validation": ranking.validation}
    for system in {INDEXES[kind].system for kind in DENSE if kind != EXACT} & set(rankings):
        recalls = tuning.recalls(rankings["dense"].rows, rankings[system].rows)
        notes[f"{value.name}, {system}"]["recall_against_exact"] = round(float(recalls.mean()), 4)
    return notes


STAGES.register(
    "evaluate",
    Stage(
        evaluate,
        check_settings=check,
        reads="indexes",
        writes="`runs/*/*.trec`, `per_query/*/*.npz`, `results.json`",
        settings=("evaluate",),
        needs=("sets", "encode", "index"),
        outputs=("runs", "per_query", "results.json"),
    ),
)

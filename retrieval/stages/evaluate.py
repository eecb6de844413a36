"""The stage `evaluate`: ranked lists and their metrics."""

import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.sets import answers, beir, relevance
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.data.sets.set_format import named_sets
from retrieval.evaluation import by_article, metrics, per_query, result_files
from retrieval.evaluation.metrics import cutoff
from retrieval.runs.fitting import held_out_questions
from retrieval.runs.fitting.training_length import CUT_SHORT
from retrieval.runs.pairs import labelled_groups
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import costs, failures, fused, indexes, pod_search, ranked_lists, rankings
from retrieval.runs.ranking.collection import NOTES, Collection, open_collection, set_names
from retrieval.runs.ranking.indexes import Together
from retrieval.runs.ranking.ranked_lists import Ranking, RunFile
from retrieval.runs.ranking.rankings import Validation
from retrieval.search import encoding

_log = logging.getLogger(__name__)

HITS = ("Success@1", "Success@5", "Success@10", "Success@50", "Success@100", "RR")
RANKING = ("nDCG@10", "R@100", "RR@10")
_WITHIN = 1000  # questions that are ranked within their article
ANSWERS = ("Answer@1", "Answer@5", "Answer@20", "Answer@100")  # DPR and those after it report the last two


class Scores(NamedTuple):
    """A system's metrics by one rule of a set, which is `split` in results.json: metric -> value of each query."""

    ranking: Ranking
    split: str
    queries: list[str]
    values: dict[str, np.ndarray]


def check(config: ConfigDict) -> None:
    """Checks the metrics, the run files and what is to be fused.

    Raises:
      UserError: a metric is unknown, or looks deeper than `config.evaluate.depth`; a file is missing; or what is to be
        fused does not fit.
    """
    sets, depth = list(named_sets(config)), config.evaluate.depth
    names_of_sets = [] if config.base else [name for named in sets for name in named.form.names(named.value)]
    _check_one_set(ranked_lists.run_files(config.runs.files), names_of_sets)
    fused.fusing(config.fuse)
    try:
        by_judgements, of_answers = metrics.by_kind(tuple(config.evaluate.metrics))
    except UserError as error:
        raise UserError(f"config.evaluate.metrics: {error}") from error
    is_judged = {named.form.is_judged for named in sets}
    of_answers = of_answers or (ANSWERS if False in is_judged else ())
    if not by_judgements and is_judged != {False}:
        by_judgements = [*HITS, *RANKING]
    deepest = max((*by_judgements, *of_answers), key=cutoff)
    if depth < (least := cutoff(deepest)):
        raise UserError(f"config.evaluate.depth={depth} is too few results for the metric {deepest}: at least {least}")


def _check_one_set(files_of_others: Sequence[RunFile], names: Sequence[str]) -> None:
    if files_of_others and len(names) > 1:
        raise UserError(f"config.runs.files are of one set, and there are {', '.join(names)}: evaluate each in a run")


def evaluate(run: Run) -> dict[str, Any]:
    """Writes `runs/SET/SYSTEM.trec`, `per_query/SET/SPLIT.npz` and `results.json`.

    In a pod the first host does, and all of them search the embeddings.

    Returns what the report says: of searches by 'SET, SYSTEM', and of a set by its name.
    """
    if hosts.is_alone():
        return _Evaluation(run, None).write()
    return pod_search.lead(functools.partial(open_collection, run), lambda together: _Evaluation(run, together).write())


class _Evaluation:
    """Every set of a run, searched by all indexes over it, beside what others found, and what is fused of both."""

    def __init__(self, run: Run, together: Together | None):
        self._run, self._together, indexed = run, together, run.owner("index").config
        self._fusing = fused.fusing(run.config.fuse)
        self._files = ranked_lists.run_files(run.config.runs.files)
        _check_one_set(self._files, set_names(run.sets))
        self._encoded = details(run.owner("encode"), "encode") or {}
        self._search = rankings.Search(
            depth=run.config.evaluate.depth,
            words=indexed.index.words,
            options=functools.partial(indexes.options_of, config=indexed),
            step=(details(run, "train") or {}).get("step"),
            weight=fused.weight_of(run, run.chain[1:]),
        )

    def write(self) -> dict[str, Any]:
        """Writes the results of all sets; returns what the report says."""
        run, rows, notes = self._run, [], {}
        for name in set_names(run.sets):
            value, lists = self._lists(beir.read_judged(run.sets / name))
            if run.config.evaluate.runs:
                for ranking in lists:
                    ranked_lists.write_run(run.folder / "runs" / name, value, ranking)
            scores = self._scores(value, lists)
            rows += write_values(run.folder, name, scores)
            notes[name] = _failed(run.sets / name, value, scores)
            notes |= {f"{name}, {ranking.system}": _notes(ranking) for ranking in lists}
            if of_training := list(_of_training(run, name, value)):
                notes[name] |= {NOTES: of_training}
        files.write_json(run.folder / result_files.NAME, rows)
        return notes

    def _scores(self, value: Judged, lists: Sequence[Ranking]) -> list[Scores]:
        wanted = self._run.config.evaluate.metrics
        measured = metrics_of_judgements(value, wanted) if value.qrels else wanted
        for metric in [metric for metric in metrics.by_kind(wanted)[0] if metric not in measured]:
            _log.warning("set %s: %s is left out, for no judgement has such a grade", value.name, metric)
        scores = measure(self._run.sets / value.name, value, lists, wanted, self._search.depth)
        return [*scores, *(by_articles(value, lists) if value.articles and not wanted else ())]

    def _lists(self, value: Judged) -> tuple[Judged, list[Ranking]]:
        """The set with the candidates of run files, and the lists of every system, in the order of the tables."""
        run, name, depth = self._run, value.name, self._search.depth
        # Before a search, which is long.
        whole, of_files = ranked_lists.read(self._files, value, run.config.runs.unknown)
        read = [*ranked_lists.read_searched(run, value), *(ranking.first(whole, depth) for ranking in of_files)]
        collection, validation = open_collection(run, name), None
        is_weighed = collection.has_embeddings() or self._fusing.systems
        if is_weighed and name == held_out_questions.split_set(run):
            validation = _validation(run, collection, value)
        search = self._search._replace(encoding=self._encoded.get(costs.of_set(name), {}))
        lists = [*rankings.Ranker(value, collection, search, validation, self._together).lists(), *read]
        if not lists:
            way = "add 'index' to config.stages, or name files in config.runs.files"
            raise UserError(f"set '{name}': there is no index and no run file to evaluate; {way}")
        lists += list(fused.fuse(name, lists, self._fusing, validation.golds if validation else (), depth))
        if same := ranked_lists.same_tag([ranking.system for ranking in lists]):
            raise UserError(f"set '{name}': {same}; give one another name")
        return whole, lists


def _validation(run: Run, collection: Collection, value: Judged) -> Validation:
    """The validation questions of a set, those whose embeddings there are."""
    embeddings_QE, ids = np.zeros((0, 0), np.float32), []
    if collection.has_embeddings():
        embeddings_QE, ids = encoding.load(collection.embeddings(), "validation")
    queries, qrels = held_out_questions.validation(run, ids)  # those of a base may be more, or fewer
    is_candidate = not queries.keys().isdisjoint(value.candidates)
    own_rows = beir.own_rows(queries, collection.candidates()) if is_candidate else {}
    rows_of = {candidate: row for row, candidate in enumerate(value.candidates)}
    golds = [[rows_of[candidate] for candidate in qrels[id]] for id in queries]
    return Validation(queries, embeddings_QE, golds, own_rows, len(value.candidates))


def measure(folder: Path, value: Judged, lists: Sequence[Ranking], wanted: Sequence[str], depth: int) -> list[Scores]:
    """The metrics of the systems of a set, by its judgements and by its answers.

    Args:
      folder: of the set.
      wanted: the metrics; without one those that suit the set.
      depth: of the lists.
    """
    scores = [each for ranking in lists for each in by_judgements(value, ranking, wanted)]
    if value.answers and (names := metrics_of_answers(value, wanted, depth)):
        scores += by_answers(folder, value, lists, names)
    return scores


def by_judgements(value: Judged, ranking: Ranking, wanted: Sequence[str]) -> Iterator[Scores]:
    """The metrics of a system by every rule of a set.

    Args:
      wanted: the metrics; without one those that suit the rule.
    """
    query_ids, wanted = list(value.queries), metrics_of_judgements(value, wanted)
    for rule, qrels in value.qrels.items():
        # Rules of ReQA and of documents, which BEIR's folders lack, ask for the first that answers, if several do, too.
        right = max(sum(grade > 0 for grade in of.values()) for of in qrels.values())
        hits = right <= 1 or bool({relevance.PAIR, relevance.DOCUMENT} & value.qrels.keys())
        names = wanted or (HITS if hits else RANKING)
        values = metrics.per_query(ranking.rows, query_ids, value.candidates, qrels, names)
        yield Scores(ranking, rule, metrics.judged(query_ids, qrels), values)


def metrics_of_judgements(value: Judged, wanted: Sequence[str]) -> list[str]:
    """Those that are asked for and that the judgements tell: where no grade is high enough, all values would be 0."""
    grades = (grade for qrels in value.qrels.values() for of in qrels.values() for grade in of.values())
    highest = max(grades, default=0)
    return [name for name in metrics.by_kind(wanted)[0] if metrics.least_grade(name) <= highest]


def metrics_of_answers(value: Judged, wanted: Sequence[str], depth: int) -> Sequence[str]:
    """The metrics of a set by its answers: those that are asked for; where it has no judgements, some in any case.

    Of these, none that looks at more results than there are.
    """
    usual = [] if value.qrels else [name for name in ANSWERS if cutoff(name) <= depth]
    return metrics.by_kind(wanted)[1] or usual


def by_answers(folder: Path, value: Judged, lists: Sequence[Ranking], names: Sequence[str]) -> Iterator[Scores]:
    """The metrics of systems by the answers that the passages hold, over the questions whose answers are known.

    Each passage of a question is looked at once for all systems.
    """
    is_known_Q = np.array([id in value.answers for id in value.queries])
    ids = [id for id in value.queries if id in value.answers]
    known = [value.answers[id] for id in ids]
    rows_QK = np.concatenate([ranking.rows for ranking in lists], axis=1)[is_known_Q]
    with CandidateTexts(folder / "corpus.jsonl") as texts:
        holds_QK = answers.holding(known, rows_QK, lambda row: texts[row].text if row < len(texts) else "")
    ends = np.cumsum([ranking.rows.shape[1] for ranking in lists])
    for ranking, part_QK in zip(lists, np.split(holds_QK, ends[:-1], axis=1)):
        yield Scores(ranking, "answers", ids, metrics.per_answered_query(part_QK, names))


def by_articles(value: Judged, lists: Sequence[Ranking]) -> Iterator[Scores]:
    """Whether a result is of the right article, and whether the right passage comes first among those of its article.

    The first tells of finding the topic, the second of finding the passage. The second takes all scores of an article,
    so it is measured for some of the questions, and for systems that have such scores. Nothing is measured where no
    right passage has an article that is known.
    """
    rules = [value.qrels[relevance.PAIR]] if relevance.PAIR in value.qrels else value.qrels.values()
    judged = {query: grades for rule in rules for query, grades in rule.items()}
    questions = by_article.Questions(value.queries, value.candidates, value.articles, judged)
    if questions.queries:
        ids = [questions.queries[place] for place in questions.some(_WITHIN)]
        for each in lists:
            yield Scores(each, "article", questions.queries, questions.anywhere(each.rows, HITS))
        for each in lists:
            if each.among:
                yield Scores(each, "within-article", ids, questions.within(each.among, _WITHIN, HITS))


def write_values(folder: Path, name: str, scores: Sequence[Scores]) -> list[dict[str, Any]]:
    """Writes what every system got for every question of a set, a file for each rule; returns rows of results.json."""
    for split in dict.fromkeys(each.split for each in scores if each.values):
        of_split = [each for each in scores if each.split == split and each.values]
        values = {each.ranking.system: each.values for each in of_split}
        per_query.write(per_query.path_of(folder, name, split), of_split[0].queries, values)
    return [
        {
            "system": each.ranking.system,
            "dataset": name,
            "split": each.split,
            "metric": metric,
            "value": round(float(values_Q.mean()), 6),
            "queries": len(each.queries),
            "seconds": None if each.ranking.seconds is None else round(each.ranking.seconds, 3),
            "step": each.ranking.step,
        }
        for each in scores
        for metric, values_Q in each.values.items()
    ]


def _of_training(run: Run, name: str, value: Judged) -> Iterator[str]:
    """What the report says of a set because of how the model was trained; what flatters it is told the log, too."""
    if cut := (details(run, "train") or {}).get(CUT_SHORT):
        yield f"The model was trained for {cut}."
    if trained := labelled_groups.trained_on(run, value.queries.values()):
        such = ", ".join(f"'{query[:80]}'" for query in trained[:3])
        what = f"The model was trained on {len(trained)} of these {len(value.queries)} questions, such as {such}"
        _log.warning("set %s: %s: what is measured there flatters it", name, what)
        yield f"{what}: what is measured here flatters it."


def _failed(folder: Path, value: Judged, scores: Sequence[Scores]) -> dict[str, Any]:
    """The questions that the best system fails most, by the primary metric; nothing where it fails none."""
    rule = metrics.main_rule([each.split for each in scores])
    of_rule = [each for each in scores if each.split == rule and each.values]
    if not of_rule or not (metric := metrics.primary(of_rule[0].values)):
        return {}
    best = max(of_rule, key=lambda each: each.values[metric].mean())
    questions = failures.failed(folder, value, rule, best.queries, metric, best.values[metric], best.ranking.rows)
    return {failures.FAILED: {"system": best.ranking.system, "questions": questions}} if questions else {}


def _notes(ranking: Ranking) -> dict[str, Any]:
    """What the report says about a search."""
    notes = dict(ranking.notes)
    if ranking.seconds is not None:
        notes["milliseconds"] = round(1000 * ranking.seconds / len(ranking.rows), 3)
    if ranking.weights:
        notes |= {"weights": [round(weight, 6) for weight in ranking.weights], "validation": ranking.validation}
    notes |= {costs.PARTS: list(ranking.parts)} if ranking.parts else {}
    return notes | ({} if ranking.recall is None else {"recall_against_exact": round(ranking.recall, 4)})


STAGES.register(
    "evaluate",
    Stage(
        evaluate,
        check_config=(check,),
        check=(lambda run: ranked_lists.check_beginnings(run.config.runs.files),),
        fields=("evaluate", "runs", "fuse"),
        reads=lambda config: (
            Read("sets", required=True, must_match=True),
            Read("encode", must_match=True),
            "index",
            *ranked_lists.searched_stages(),
        ),
        files=lambda run: [file.path for file in ranked_lists.run_files(run.config.runs.files)],
        writes=("runs", "per_query", "results.json"),
        on_every_host=True,
    ),
)

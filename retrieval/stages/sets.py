"""The stage `sets`: evaluation sets of any format to BEIR folders, and the questions to train on."""

import dataclasses
import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import beir, open_domain, relevance, splits
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.sets.set_format import Context, named_sets
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking.collection import CORPUS, NOTES
from retrieval.search.bm25 import Bm25Index

_FEW = 100  # questions that tell large differences alone

_log = logging.getLogger(__name__)


def write_sets(run: Run) -> dict[str, Any]:
    """Writes `sets/NAME/` for every evaluation set, and `training/` for the one to split; returns their sizes.

    Raises:
      UserError: a set has no query.
    """
    run.sets.mkdir(exist_ok=True)
    values: dict[str, RetrievalSet] = {}
    for named in named_sets(run.config):
        for value in named.form.read(named.value, Context(named.options, run.corpus, run.sets)):
            if not value.queries:
                raise UserError(f"evaluation set '{value.name}' has no query")
            values[value.name] = value
    sizes = {name: _size(value) | dict(value.left_out) for name, value in values.items()}
    if (split := run.config.split).set:
        value = values[split.set]
        values[split.set], training = (
            splits.by_files(value, split.train, split.dev, split.validation, split.seed)
            if split.train
            else splits.split(value, split.ratio, split.validation, split.seed, split.fold)
        )
        if relevance.DOCUMENT in value.qrels:
            training = _best_first(training)
            _log.info("training: of a right document, the passages that BM25 finds best for a question are first")
        beir.write_folder(run.training, training)
        of_set: dict[str, Any] = sizes[split.set]
        of_set |= {f"{side} queries": len(qrels) for side, qrels in training.qrels.items()} | dict(training.left_out)
        of_set["test queries"] = tested = len(values[split.set].queries)
        if tested < _FEW:
            way = ": configs/studies/folds.py tests on all" if run.config.sets.labelled else ""
            note = f"Tested on {tested} of {len(value.queries)} questions, which are few{way}."
            of_set[NOTES].append(note)
            _log.warning("set %s: %s", split.set, note)
    for name, value in values.items():
        extended = _with_distractors(value, run.config.sets.distractors, run.corpus, split.seed)
        if more := len(extended.candidates) - len(value.candidates):
            sizes[name]["more candidates from the corpus"] = more
        beir.write_folder(run.sets / name, extended)
        _log.info("set %s: %s", name, sizes[name])
    files.remove_temporaries(run.sets)
    if not sizes:
        _log.warning("the config names no evaluation set (config.sets): there will be nothing to evaluate")
    return sizes


def inputs(run: Run) -> list[Path]:
    """The files that evaluation sets are read from."""
    paths = [path for form, value, options in named_sets(run.config) for path in form.inputs(value, options)]
    return [*source_paths.existing(paths), *run.vocabulary_inputs()]


def check_inputs(run: Run) -> None:
    """Checks the evaluation sets of a run, in seconds.

    Raises:
      UserError: a file is missing or wrong, two sets have one name, or the set to divide cannot be divided.
    """
    named, divided = list(named_sets(run.config)), run.config.split.set
    for form, value, options in named:
        form.check(value, options, run.prepares)
    is_judged = [(name, form.is_judged) for form, value, _ in named for name in form.names(value)]
    names = [CORPUS, *(name for name, _ in is_judged)]
    if twice := [name for name in names if names.count(name) > 1]:
        other = ", as the prepared corpus is" if twice[0] == CORPUS else ""
        raise UserError(f"two evaluation sets are named '{twice[0]}'{other}: rename the folder or the file of one")
    if divided and divided not in names[1:]:
        of_base = "; sets of config.base do not count, name the set's files in config.sets" if run.config.base else ""
        raise UserError(f"{unknown_name('set in config.split.set', divided, names[1:])}{of_base}")
    if divided and not dict(is_judged)[divided]:
        why = "no passage of open-domain questions is known to be right"
        raise UserError(f"config.split.set={divided}: {why}: split another set, such as reqa")


def check_split(split: ConfigDict) -> None:
    """Checks that what divides a set goes together."""
    for field, needed in (("train", "set"), ("dev", "train"), ("fold", "set")):
        if split[field] and not split[needed]:
            raise UserError(f"config.split.{field}={split[field]} needs config.split.{needed}: set that too")
    if split.fold and split.train:
        raise UserError(f"config.split.fold={split.fold} is a part of all questions: set config.split.train=''")
    if split.train and split.train == split.dev:
        raise UserError(f"config.split.train and config.split.dev are both {split.dev}: validate on other judgements")


def _with_distractors(value: RetrievalSet, count: int, corpus: Path, seed: int) -> RetrievalSet:
    if not (count and value.qrels):  # questions with answers alone have the passages that they are asked of
        return value
    passages = open_domain.corpus_passages(corpus, f"config.sets.distractors={count}")
    return open_domain.extend(value, passages, count, seed)


def _best_first(training: RetrievalSet) -> RetrievalSet:
    """The right passages of each question in BM25's order: training takes the first ones (`config.pairs.positives`)."""
    passages = list(training.candidates)
    index = Bm25Index.build((f"{passage.title} {passage.text}" for passage in passages), "title + text")

    def ordered(query: str, grades: dict[str, int]) -> dict[str, int]:
        rows = index.search([training.queries[query]], len(passages))[1][0]
        best = (passages[row].id for row in rows.tolist() if row >= 0)
        return {id: grades[id] for id in (*best, *grades) if id in grades}

    rules = training.qrels.items()
    qrels = {rule: {query: ordered(query, grades) for query, grades in judged.items()} for rule, judged in rules}
    return dataclasses.replace(training, qrels=qrels)


def _size(value: RetrievalSet) -> dict[str, Any]:
    """Queries, candidates, and the right pairs by each rule."""
    sizes: dict[str, Any] = {"queries": len(value.queries), "candidates": len(value.candidates), NOTES: [*value.notes]}
    for rule, qrels in value.qrels.items():
        sizes[f"tuples ({rule})"] = sum(grade > 0 for grades in qrels.values() for grade in grades.values())
    return sizes


STAGES.register(
    "sets",
    Stage(
        write_sets,
        check_config=(of_fields(check_split, "split"),),
        check=(check_inputs,),
        fields=("sets", "split", "pairs.format", "pairs.fields"),
        also_reads=("pairs.queries", "pairs.collection"),
        reads=("prepare",),
        files=inputs,
        writes=("sets", "training"),
    ),
)

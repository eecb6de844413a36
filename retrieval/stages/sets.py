"""The stage `sets`: evaluation sets of any format to BEIR folders, and the questions to train on."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import beir, open_domain, splits
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.sets.set_format import Given, NamedSets, named_sets
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking.collection import CORPUS

_log = logging.getLogger(__name__)


def write_sets(run: Run) -> dict[str, Any]:
    """Writes `sets/NAME/` for every evaluation set, and `training/` for the one to split; returns their sizes.

    Raises:
      UserError: a set has no query.
    """
    run.sets.mkdir(exist_ok=True)
    values: dict[str, RetrievalSet] = {}
    for named in named_sets(run.config):
        for value in named.form.read(named.value, Given(named.options, run.corpus, run.sets)):
            if not value.queries:
                raise UserError(f"evaluation set '{value.name}' has no query")
            values[value.name] = value
    sizes = {name: _size(value) | dict(value.left_out) for name, value in values.items()}
    split = run.config.split
    if split.set:
        value = values[split.set]
        values[split.set], training = (
            splits.by_files(value, split.train, split.dev, split.validation, split.seed)
            if split.train
            else splits.split(value, split.ratio, split.validation, split.seed)
        )
        beir.write_folder(run.training, training)
        sizes[split.set] |= {f"{side} queries": len(qrels) for side, qrels in training.qrels.items()}
        sizes[split.set] |= dict(training.left_out)
        sizes[split.set]["test queries"] = len(values[split.set].queries)
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


def inputs(named: Sequence[NamedSets]) -> Sequence[Path]:
    """The files that evaluation sets are read from."""
    return source_paths.existing([path for form, value, options in named for path in form.inputs(value, options)])


def check_inputs(run: Run) -> None:
    """Checks the evaluation sets of a run."""
    config = run.config
    check(named_sets(config), config.split.set, has_base=bool(config.base), has_corpus=run.prepares)


def check(named: Sequence[NamedSets], divided: str, *, has_base: bool, has_corpus: bool) -> None:
    """Checks evaluation sets, in seconds.

    Args:
      divided: the one that is divided for training, '' for none.
      has_base: whether the run has a base, which may have sets too.
      has_corpus: whether there is a prepared corpus, or a stage that makes one.

    Raises:
      UserError: a file is missing or wrong, two sets have one name, or the set to divide cannot be divided.
    """
    for form, value, options in named:
        form.check(value, options, has_corpus)
    is_judged = [(name, form.is_judged) for form, value, _ in named for name in form.names(value)]
    names = [name for name, _ in is_judged]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two evaluation sets are named '{twice[0]}': rename the folder or the file of one")
    if CORPUS in names:
        raise UserError(
            f"an evaluation set is named '{CORPUS}', as the prepared corpus is: rename its folder or its file"
        )
    _check_divided(divided, dict(is_judged), has_base)


def check_split(split: ConfigDict) -> None:
    """Checks that what divides a set goes together.

    Raises:
      UserError: judgements to train or to validate on are named without what they need.
    """
    for field, needed in (("train", "set"), ("dev", "train")):
        if split[field] and not split[needed]:
            raise UserError(f"config.split.{field}={split[field]} needs config.split.{needed}: set that too")
    if split.train and split.train == split.dev:
        raise UserError(f"config.split.train and config.split.dev are both {split.dev}: validate on other judgements")


def _check_divided(name: str, is_judged: dict[str, bool], has_base: bool) -> None:
    if name and name not in is_judged:
        of_base = "; sets of config.base do not count, name the set's files in config.sets" if has_base else ""
        raise UserError(f"{unknown_name('set in config.split.set', name, is_judged)}{of_base}")
    if name and not is_judged[name]:
        raise UserError(
            f"config.split.set={name}: no passage of open-domain questions is known to be right, so there is no "
            "positive to train on; split another set, such as reqa"
        )


def _with_distractors(value: RetrievalSet, count: int, corpus: Path, seed: int) -> RetrievalSet:
    if not (count and value.qrels):  # questions with answers alone have the passages that they are asked of
        return value
    passages = open_domain.corpus_passages(corpus, f"config.sets.distractors={count}")
    return open_domain.extend(value, passages, count, seed)


def _size(value: RetrievalSet) -> dict[str, Any]:
    """Queries, candidates, and the right pairs by each rule."""
    tuples = {
        f"tuples ({rule})": sum(grade > 0 for grades in qrels.values() for grade in grades.values())
        for rule, qrels in value.qrels.items()
    }
    return {"queries": len(value.queries), "candidates": len(value.candidates), **tuples}


STAGES.register(
    "sets",
    Stage(
        write_sets,
        check_config=(of_fields(check_split, "split"),),
        check=(check_inputs,),
        fields=("sets", "split", "pairs.format", "pairs.fields"),
        also_reads=("pairs.queries", "pairs.collection"),
        reads=("prepare",),
        files=lambda run: [*inputs(named_sets(run.config)), *run.vocabulary_inputs()],
        writes=("sets", "training"),
    ),
)

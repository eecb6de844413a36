"""The questions of an evaluation set divided into training, validation and test (Chang et al. 2020, section 4.1)."""

import collections
import dataclasses
import functools
import logging
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.libraries import tf
from retrieval.common.parsing import accents
from retrieval.common.runtime import hashing
from retrieval.data.sets import relevance
from retrieval.data.sets.beir import RetrievalSet, Stream

_log = logging.getLogger(__name__)

TRAIN, VALIDATION = "train", "validation"
_NQ_DEV = Path(__file__).with_name("nq_dev.txt")  # 40 bits of a hash of each question, as NQ-open and as DPR spell it
Value = TypeVar("Value")
Divided = tuple[RetrievalSet, RetrievalSet]  # the test set, and one with the rules 'train' and 'validation'


def split(value: RetrievalSet, ratio: float, validation: float, seed: int, fold: str = "") -> Divided:
    """Divides a set by question: no question that is trained on is evaluated on, under whatever id.

    Questions are one where `wording` says so. A hash of seed and id gives the order in which they go to one side or the
    other. A question has the smallest of its ids. Validation takes the first share of those that are not tested on. So
    the training and validation questions of a smaller ratio, together, are among those of a larger one, together.

    Args:
      ratio: share of the questions to train on, and those that are the last one again; 0.01, 0.05 and 0.8 in the paper.
      validation: share of the training questions that is held out to choose settings and checkpoint; 0.1 in the paper.
      fold: '2/5' tests on the second of five parts, whatever the ratio: every question is tested on in one of the five.

    Returns:
      The set with its test questions alone and every candidate; and one whose rules are 'train' and 'validation', with
      what is relevant by any rule of `value` (of ReQA by the paper's) and no other candidate.

    Raises:
      UserError: a share leaves no question to train on, to validate on or to test on; or
        no candidate is known to be right, or no question to test on is judged.
    """
    if not value.qrels:
        raise UserError(f"set '{value.name}' of config.split.set has answers and no judgements: split another set")
    ids, wordings = _ordered(value.queries, seed)
    training = _behind(wordings, ratio * len(ids))
    if fold:
        part, parts = map(int, fold.split("/"))
        start, end = (_behind(wordings, number / parts * len(ids)) for number in (part - 1, part))
        training = len(ids[:start] + ids[end:])
        ids, wordings = (each[:start] + each[end:] + each[start:end] for each in (ids, wordings))  # the test is last
    held_out = _behind(wordings, validation * training)
    sizes = {"train": training - held_out, "validation": held_out, "test": len(ids) - training}
    if not all(sizes.values()):
        counts = ", ".join(f"{count} {name}" for name, count in sizes.items())
        shares = f"config.split.{f'fold={fold}' if fold else f'ratio={ratio}'} and config.split.validation={validation}"
        raise UserError(f"set '{value.name}': {shares} makes {counts} of {len(ids)} questions: choose others")
    train, validate_on = ids[held_out:training], ids[:held_out]
    return _test_set(value, set(ids[training:])), _training_set(value, _positives(value), train, validate_on)


def by_files(value: RetrievalSet, train: str, dev: str, validation: float, seed: int) -> Divided:
    """Divides a set by its own rules, such as the train, dev and test of a BEIR folder.

    The rules that are left are the test. No question of the test is trained on or validated on, and none to validate on
    is trained on, under whatever id or wording: what is left out is in `left_out` of the second set.

    Args:
      train: the rule to train on.
      dev: the rule to validate on; '' for a share of the training questions, `validation`, in the order of `seed`.

    Returns:
      As `split`, with what is relevant by the rule of each side alone.

    Raises:
      UserError: the set has no such rule, or nothing is left to train on, to validate on or to test on.
    """
    for field, rule in (("train", train), ("dev", dev)):
        if rule and rule not in value.qrels:
            raise unknown_name(f"judgements of set '{value.name}' in config.split.{field}", rule, value.qrels)
    tested = {rule: judgements for rule, judgements in value.qrels.items() if rule not in (train, dev)}
    test = _test_set(dataclasses.replace(value, qrels=tested), set().union(*tested.values()))
    left_out: dict[str, int] = {}

    def unused(rule: str, how: str) -> list[str]:
        """The questions of a rule whose wording is not among those that are used; the others are counted."""
        ids = [id for id in value.qrels[rule] if wording(value.queries[id]) not in used]
        if count := len(value.qrels[rule]) - len(ids):
            what = f"questions of '{rule}' that are {how}, left out"
            left_out[what] = count
            _log.warning("set '%s': %d %s", value.name, count, what)
        return ids

    used = {wording(text) for text in test.queries.values()}
    held_out = unused(dev, "tested on") if dev else []
    used |= {wording(value.queries[id]) for id in held_out}
    ids = unused(train, "tested or validated on")
    if not dev:
        ids, wordings = _ordered({id: value.queries[id] for id in ids}, seed)
        border = _behind(wordings, validation * len(ids))
        held_out, ids = ids[:border], ids[border:]
    if not (ids and held_out):
        counts = f"{len(ids)} questions to train on and {len(held_out)} to validate on"
        raise UserError(f"set '{value.name}': config.split.train={train} leaves {counts}: choose other judgements")
    positives = {id: grades for rule in (train, dev) if rule for id, grades in _relevant(value.qrels[rule]).items()}
    training = _training_set(value, positives, ids, held_out)
    return test, dataclasses.replace(training, left_out=left_out)


def wording(question: str) -> str:
    """What questions share that an uncased model sees alike: they differ in white space, case or accents alone.

    SQuAD has 118 that differ so from another one.
    """
    return accents.fold(" ".join(question.split()).casefold())


def _ordered(queries: Mapping[str, str], seed: int) -> tuple[list[str], list[str]]:
    """The ids in the order of a hash, and those of one wording next to each other; and their wordings."""
    wordings, first = {id: wording(text) for id, text in queries.items()}, dict[str, str]()
    for id in sorted(queries):
        first.setdefault(wordings[id], id)
    ids = sorted(queries, key=lambda id: (hashing.digest(f"{seed} {first[wordings[id]]}"), first[wordings[id]], id))
    return ids, [wordings[id] for id in ids]


def _behind(wordings: Sequence[str], count: float) -> int:
    """The first border from `count`, rounded, on that does not part equal wordings."""
    border = round(count)
    while 0 < border < len(wordings) and wordings[border - 1] == wordings[border]:
        border += 1
    return border


def held_out(queries: int, share: float) -> int:
    """How many of some labelled queries are held out to validate on: their share, at most 2,000, and never all."""
    return min(max(1, round(share * queries)), 2000, max(0, queries - 1))


def is_of_nq_dev(question: str) -> bool:
    """Whether everybody tests on a question, in any case and spacing: one of NQ's dev set with short answers, 3,610."""
    return nq_dev_line(question) in _nq_dev_lines()


def nq_dev_line(question: str) -> str:
    """The line that a question has in the file of NQ's dev set, which so knows the questions, and has none."""
    return hashing.digest("nq dev", wording(question)).hex()[:10]


@functools.cache
def _nq_dev_lines() -> frozenset[str]:
    return frozenset(_NQ_DEV.read_text(encoding="utf-8").split())


def is_of_orqa_dev(questions: Sequence[str]) -> np.ndarray:
    """Which training questions ORQA (Lee et al. 2019) validates on, bool [N]: a tenth, by TensorFlow's FarmHash."""
    if not questions:
        return np.zeros(0, bool)
    return tf.strings.to_hash_bucket_fast(list(questions), 100_000).numpy() % 10 == 0


def _test_set(value: RetrievalSet, ids: Collection[str]) -> RetrievalSet:
    queries = {id: text for id, text in value.queries.items() if id in ids}
    qrels = {rule: _of(judgements, queries) for rule, judgements in value.qrels.items()}
    for rule in [rule for rule, judgements in qrels.items() if not judgements]:  # a folder with such a file is refused
        _log.warning("set '%s': no question of '%s' is left to test on, so it is not evaluated", value.name, rule)
        del qrels[rule]
    if not qrels:
        problem = f"none of {len(queries)} questions that are left to test on is judged; choose another one"
        raise UserError(f"set '{value.name}' in config.split.set: {problem}")
    return RetrievalSet(value.name, queries, value.candidates, qrels, _of(value.answers, queries))


def _training_set(
    value: RetrievalSet, positives: Mapping[str, dict[str, int]], train: Collection[str], validation: Collection[str]
) -> RetrievalSet:
    qrels = {TRAIN: _of(positives, train), VALIDATION: _of(positives, validation)}
    relevant = {candidate for rule in qrels.values() for grades in rule.values() for candidate in grades}
    queries = {id: value.queries[id] for id in (*train, *validation)}
    # Hundreds of thousands of documents need not be held.
    candidates = Stream(lambda: (each for each in value.candidates if each.id in relevant), len(relevant))
    return RetrievalSet("training", queries, candidates, qrels, _of(value.answers, queries))


def _positives(value: RetrievalSet) -> dict[str, dict[str, int]]:
    """Question -> what is relevant to it.

    The rules of a BEIR folder are parts of the set, such as dev and test. Those of ReQA are two readings of the same
    questions.
    """
    rules = [value.qrels[relevance.PAIR]] if relevance.PAIR in value.qrels else value.qrels.values()
    positives = collections.defaultdict[str, dict[str, int]](dict)
    for rule in rules:
        for id, grades in _relevant(rule).items():
            positives[id] |= grades
    return positives


def _relevant(judgements: Mapping[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {id: {c: grade for c, grade in grades.items() if grade > 0} for id, grades in judgements.items()}


def _of(values: Mapping[str, Value], ids: Collection[str]) -> dict[str, Value]:
    """What some questions have, of those that have anything."""
    return {id: values[id] for id in ids if values.get(id)}

"""Hard negatives of a set's training questions: what the stage `mine` and a refresh in the middle of training share."""

import contextlib
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime import hashing
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets import answers, beir, splits
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.candidate import Candidate
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.data.sets.set_format import any_answers, named_sets
from retrieval.runs.pipeline.run import Run
from retrieval.search import mining as search_mining
from retrieval.search.mining import Drawn, Rule

_log = logging.getLogger(__name__)

RULE = ("negatives", "first", "last", "margin", "relative_margin", "sampling")


WITHOUT_ANSWERS = ", or set config.mine.answers=False"
_PART = 10_000  # questions whose ranked lists are held at a time


class Mining(NamedTuple):
    """Which negatives are mined: the fields of `refresh_kind.MINED`.

    Attributes:
      answers: whether passages that hold an answer of the question are left out.
      seed: of the draw.
    """

    rule: Rule
    answers: bool
    seed: int


class Question(NamedTuple):
    """A training question.

    Attributes:
      positives: rows of its positives.
      own: the row of the candidate that is the question itself, where there is one.
      known: rows of its positives, and of those of the questions that differ from it by their spelling alone.
    """

    id: str
    text: str
    positives: list[int]
    own: list[int]
    answers: Answers | None = None
    known: Sequence[int] = ()


Lists = tuple[np.ndarray, np.ndarray]  # scores and rows [Q, K], best first


class Searched(NamedTuple):
    """Questions and what finds candidates for them.

    Attributes:
      queries: the questions as `search` takes them, a list of texts or embeddings [Q, E].
      search: an index over the candidates: from queries and k to lists.
      judge: from the number of the first question, some questions and their lists to lists in another order, and the
        score [Q] of each question's positive that margins are to. None: that of the best one in its list.
    """

    questions: Sequence[Question]
    candidates: CandidateTexts
    queries: Any
    search: Callable[[Any, int], Lists]
    judge: Callable[[int, Sequence[Question], Lists], tuple[Lists, np.ndarray]] | None = None


class Mined(NamedTuple):
    """Rows of each question's negatives, and what is counted of all."""

    rows: list[np.ndarray]
    counts: dict[str, Any]


def check(taken: int, rule: ConfigDict) -> None:
    """Checks which results are to be negatives.

    Args:
      taken: negatives of an example in a batch.
      rule: the group `mine` of the config.
    """
    check_drawn(taken, rule.negatives)
    first, last = f"config.mine.first={rule.first}", f"config.mine.last={rule.last}"
    if rule.first > rule.last:
        raise UserError(f"{first} is behind {last}: no result has such a rank; lower the first or raise the second")
    if (room := rule.last - rule.first + 1) < rule.negatives:
        what = f"are more than the ranks from {first} to {last}, which are {room}"
        raise UserError(f"config.mine.negatives={rule.negatives} {what}: lower the first or raise the last")


def mining_of(mine: ConfigDict, seed: int) -> Mining:
    """What the group `mine` of a config says, with the seed of the draw."""
    margins = mine.margin or None, mine.relative_margin or None
    rule = Rule(mine.negatives, mine.first, mine.last, *margins, top=mine.sampling == "top")
    return Mining(rule, mine.answers, seed)


def check_drawn(taken: int, mined: int, place: str = "") -> None:
    """Checks that a question has as many negatives as a batch takes of it: what is taken twice would count twice.

    Args:
      place: of the run that mines, where it is another one.
    """
    if taken > mined:
        way = f" of {place}: lower the first, or mine more there" if place else ": lower the first, or raise the second"
        raise UserError(f"config.data.negatives={taken} are more than config.mine.negatives={mined}{way}")


@contextlib.contextmanager
def open_questions(
    training: Path, candidates_file: Path, *, needs_answers: bool
) -> Iterator[tuple[list[Question], CandidateTexts]]:
    """The training questions of a set, and all its candidates.

    Args:
      training: the BEIR folder of the questions.
      candidates_file: the set's corpus.jsonl.
      needs_answers: whether the questions must have answers, as config.mine.answers says.

    Raises:
      UserError: a positive is none of the candidates, or config.mine.answers asks for answers that are not there.
    """
    judged, again = beir.read_judged(training), "--stage=sets makes both again"
    if needs_answers and not judged.answers:
        raise UserError(f"{training}: config.mine.answers=True, and no answer is there; set it to False, or {again}")
    qrels = judged.qrels[splits.TRAIN]
    wanted = {id for grades in qrels.values() for id in grades} | qrels.keys()
    with CandidateTexts(candidates_file, wanted) as candidates:
        questions, rows = [], candidates.row_of
        for id, grades in qrels.items():
            if (missing := next((positive for positive in grades if positive not in rows), None)) is not None:
                what = f"training question '{id}' has the positive '{missing}', which is not there"
                raise UserError(f"{candidates_file}: {what}: {again}")
            text, row = judged.queries[id], rows.get(id)
            itself = [] if row is None or candidates[row].text != text else [row]
            positives = [rows[positive] for positive in grades]
            questions.append(Question(id, text, positives, itself, judged.answers.get(id)))
        yield with_known(questions), candidates


def with_known(questions: Sequence[Question]) -> list[Question]:
    """The questions with their `known`."""
    known: dict[str, set[int]] = {}
    for question in questions:
        known.setdefault(splits.wording(question.text), set()).update(question.positives)
    return [question._replace(known=sorted(known[splits.wording(question.text)])) for question in questions]


def draw(questions: Sequence[Question], share: float, seed: int, version: int) -> list[Question]:
    """A share of the questions, at least one: every version goes on where the one before ended, and round again.

    So a share of 1/n has all questions in versions 1 to n, each once, as in ANCE's code. A hash gives the order. It is
    the wording's: those that are one question but for their spelling are drawn together or not at all.
    """
    hashes = [hashing.digest(f"{seed} {splits.wording(question.text)}") for question in questions]
    places = {hash: place for place, hash in enumerate(sorted(set(hashes)))}
    begin, end = (round(number * share * len(places)) for number in (version - 1, version))
    size = max(1, end - begin)
    chosen = {hash for hash, place in places.items() if (place - begin) % len(places) < size}
    return [question for question, hash in zip(questions, hashes, strict=True) if hash in chosen]


def mine(mining: Mining, searched: Searched, version: int = 0, keeps_lone: bool = False) -> Mined:
    """The negatives of the questions.

    A question with fewer than `mining.rule.count` keeps those that it has; one with none is left out of training.

    Args:
      version: of the draw.
      keeps_lone: whether questions without a negative are trained on, so that all may have none.

    Raises:
      UserError: no question has a negative, and they are not kept.
    """
    rule, questions, candidates = mining.rule, searched.questions, searched.candidates
    # Positives and what is no result are taken out of a list that still has to be long enough.
    depth = rule.last + max(len(question.known) + len(question.own) for question in questions) + len(candidates.blank)
    parts, options = [], {"texts_N": candidates.keys_N, "rule": rule, "seed": (mining.seed, version)}
    for start in range(0, len(questions), _PART):
        some = questions[start : start + _PART]
        lists = searched.search(searched.queries[start : start + _PART], min(depth, len(candidates)))
        left_out: dict[str, Any] = {"positives": [question.known for question in some]}
        left_out["others"] = [[*question.own, *candidates.blank] for question in some]
        if searched.judge:
            lists, left_out["compared_Q"] = searched.judge(start, some, lists)
        if mining.answers:
            wanted = [question.answers for question in some]
            left_out["answered_QK"] = answers.holding(wanted, lists[1], lambda row: candidates[row].text)
        parts.append(search_mining.mine(*lists, start=start, **left_out, **options))
    counts = _counts(mining, questions, len(candidates), parts)
    if not counts["negatives"] and not keeps_lone:
        way = f"raise config.mine.last={rule.last}, or lower config.mine.first={rule.first} and the margins"
        what = f"no question has a negative left, from '{questions[0].id}' ({questions[0].text}) on"
        raise UserError(f"{what}: {way}{WITHOUT_ANSWERS if mining.answers else ''}")
    return Mined([row for part in parts for row in part.rows], counts)


def _counts(mining: Mining, questions: Sequence[Question], candidates: int, parts: Sequence[Drawn]) -> dict[str, Any]:
    """What is counted of all questions; a warning where some have fewer negatives."""
    rule = mining.rule
    left_Q = np.concatenate([part.left_Q for part in parts])
    rank_Q = np.concatenate([part.rank_Q for part in parts])
    short = np.flatnonzero(left_Q < rule.count)
    if len(short):
        numbers = len(short), len(questions), rule.count, (left_Q == 0).sum(), questions[short[0]].text
        _log.warning("%d of %d questions have fewer than %d negatives left, and %d none; the first is: %s", *numbers)
    found_Q = rank_Q > 0
    return {
        "questions": len(questions),
        "candidates": candidates,
        "negatives": sum(len(row) for part in parts for row in part.rows),
        "questions with fewer": len(short),
        "questions without any": int((left_Q == 0).sum()),
        "results of equal text": sum(part.equal for part in parts),
        "results too close to the positive": sum(part.too_close for part in parts),
        **({"results with an answer": sum(part.answered for part in parts)} if mining.answers else {}),
        "RR": round(float(np.mean(found_Q / np.maximum(rank_Q, 1))), 6),
    }


@dataclasses.dataclass(frozen=True)
class MinedExamples:
    """The questions that have negatives, with their texts, each time that they are iterated over."""

    questions: Sequence[Question]
    candidates: CandidateTexts
    rows: Sequence[np.ndarray]

    def __iter__(self) -> Iterator[Example]:
        for question, negatives in zip(self.questions, self.rows, strict=True):
            if len(negatives):
                yield Example(question.text, self._texts(question.positives), self._texts(negatives))

    def _texts(self, rows: Iterable[int]) -> tuple[Candidate, ...]:
        return tuple(self.candidates[row] for row in rows)


def check_questions(run: Run) -> None:
    """Checks that there are training questions to mine for, with answers where these count."""
    if not (name := run.owner("sets").config.split.set):
        way = "set config.split.set to an evaluation set to divide, such as reqa"
        raise UserError(f"negatives are mined for the training questions of a set among its candidates: {way}")
    if run.config.mine.answers and not has_answers(run, name):
        way = "set config.mine.answers=False, or split a set with answers"
        raise UserError(f"config.mine.answers=True: the questions of set '{name}' have no answers: {way}")
    if (every := run.config.mine.refresh_every) and (paths := run.owner("pairs").config.pairs.files):
        why = f"mines for the questions of config.split.set alone, and config.pairs.files={paths} has others"
        raise UserError(f"config.mine.refresh_every={every} {why}: set one of the two to nothing")


def has_answers(run: Run, name: str) -> bool:
    """Whether the questions of the set that is divided, or is to be, have answers."""
    written = (run.training / beir.ANSWERS).is_file()
    return written or any_answers(named_sets(run.owner("sets").config), name)

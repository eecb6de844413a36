"""The stage `spans`: training questions with retrieved paragraphs, and where in these their answers stand."""

import array
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import answers, beir, qa, splits
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.methods.reader import recipe, task
from retrieval.methods.reader.task import Compared, Retrieved, Rows
from retrieval.recipes.towers import query_tokens
from retrieval.runs.fitting.examples import check_shards
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking.collection import Collection, open_collection, set_names
from retrieval.search import encoding
from retrieval.search.encoding import StoredRows
from retrieval.stages import mine

_log = logging.getLogger(__name__)

FOLDER = "spans"
_PART = 5_000  # questions whose lists are held at a time
_EMBEDDINGS = 65_536  # that are held at a time
_OF_SETS, _OF_NQ = "questions of evaluation sets", "questions of NQ's dev set"

# Scores and rows of the passages of each question, best first.
Lists = Iterator[tuple[np.ndarray, np.ndarray]]


class _Question(NamedTuple):
    """A training question; `golds` are the ids of judged passages, where there are some."""

    id: str
    text: str
    answers: Answers
    golds: Sequence[str] = ()


def write_spans(run: Run) -> dict[str, Any]:
    """Writes `spans/`: shards of questions, and `stats.json`; returns what that says.

    Raises:
      UserError: a file or an index is not what it should be, or no question is left.
    """
    config, fields, source = run.config, run.config.spans, run.as_seen_by(FOLDER)
    names = set_names(run.sets)
    name = fields.set or config.split.set or (names[0] if len(names) == 1 else "")
    if name not in names:
        raise unknown_name("set in config.spans.set", name, names)
    if fields.questions:
        tested = name, len(beir.read_queries(run.sets / name / "queries.jsonl"))
        read, division = _of_files(fields.questions, config.sets.qa_patterns, tested)
    else:
        read, division = _of_set(run.training), {}
    questions, left_out = _not_evaluated(read, run.sets)
    texts = [question.text for question in questions]
    vocabulary, folder = run.load_vocabulary(), run.labelled(FOLDER)
    with CandidateTexts(run.sets / name / "corpus.jsonl", {id for each in questions for id in each.golds}) as passages:
        early = None
        if fields.early:
            early = EarlyCandidates(source.owner("train"), open_collection(source, name), passages, texts)
        retrieved = _retrieved(questions, _searched(fields, source, name, texts), passages, fields.depth, early)
        making = Rows(vocabulary, config.data.query_length, config.data.document_length)
        statistics = task.write(retrieved, making, folder, config.split.shards)
        if early:
            statistics["embeddings"] = early.write(folder / task.CANDIDATES)
    files.remove_temporaries(folder)
    statistics |= {"left out": left_out, "vocabulary": vocabulary.fingerprint, **division}
    _log.info("spans: %d questions, %d places of answers", statistics["questions"], statistics["spans"])
    for what, number in ({what: statistics.get(what) for what in task.WARNED_OF} | left_out).items():
        if number:
            first = statistics["first"].get(what)
            _log.warning("spans: %d %s%s", number, what, f", the first: {first}" if first else "")
    return statistics


def _of_set(training: Path) -> list[_Question]:
    """The training questions of the divided set, with their judged passages."""
    judged = beir.read_judged(training)
    queries, known, qrels = judged.queries, judged.answers, judged.qrels[splits.TRAIN]
    return [_Question(id, queries[id], known[id], list(golds)) for id, golds in qrels.items() if id in known]


def _of_files(paths: str, patterns: bool, tested: tuple[str, int]) -> tuple[list[_Question], dict[str, Any]]:
    """The questions of files that ORQA trains on, and the counts of its division.

    Args:
      patterns: whether the answers are regular expressions.
      tested: the set whose passages are read, and how many questions it has.
    """
    queries, known = qa.read_questions(map(Path, source_paths.split(paths)), patterns)
    is_dev = splits.is_of_orqa_dev(list(queries.values()))
    to_train_on = [_Question(id, queries[id], known[id]) for id, held_out in zip(queries, is_dev) if not held_out]
    counts = {"train": len(to_train_on), "dev": int(is_dev.sum()), "sets": dict([tested])}
    _log.info("spans: ORQA's division: %s", counts)
    return to_train_on, {"division": counts}


def _not_evaluated(questions: Sequence[_Question], sets: Path) -> tuple[list[_Question], dict[str, int]]:
    """The questions that are asked neither by an evaluation set nor by NQ's dev set, and how many those are."""
    queries = (beir.read_queries(sets / name / "queries.jsonl").values() for name in set_names(sets))
    evaluated = set(map(splits.wording, itertools.chain.from_iterable(queries)))
    left_out, to_train_on = {_OF_SETS: 0, _OF_NQ: 0}, []
    for question in questions:
        is_dev = splits.is_of_nq_dev(question.text)
        if is_dev or splits.wording(question.text) in evaluated:
            left_out[_OF_NQ if is_dev else _OF_SETS] += 1
        else:
            to_train_on.append(question)
    if not to_train_on:
        counted = ", ".join(f"{count} {what}" for what, count in left_out.items())
        raise UserError(f"stage 'spans': no question is left to train on, of {len(questions)}: {counted}")
    return to_train_on, left_out


def _searched(fields: ConfigDict, source: Run, name: str, texts: list[str]) -> Lists:
    """What an index finds for the questions.

    Args:
      fields: of `config.spans`.
    """
    queries, search = mine.open_search(source, name, fields.system, texts)
    for start in range(0, len(texts), _PART):
        yield from zip(*search(queries[start : start + _PART], max(fields.depth, fields.early)))


class EarlyCandidates:
    """What a question tower is trained with: the first candidates of each question, and their embeddings.

    Xiong et al. 2020, equation 3; Lee et al. 2019, section 6. The embeddings are those that the stage `encode` wrote of
    the set whose passages are read. Candidates are numbered as they come first; rows that no question has are not
    copied.
    """

    def __init__(self, towers: Run, collection: Collection, texts: CandidateTexts, questions: Sequence[str]):
        """Args:
          towers: the run with the towers that embedded the collection.
          texts: of the collection, open.

        Raises:
          UserError: the embeddings are of other passages, or of several windows of one.
        """
        self._folder = _checked(collection)
        self._tokens = query_tokens(towers.config, towers.load_vocabulary(), questions)
        self._holding = answers.finder(lambda row: texts[row].text)
        self._number_N = np.full(len(texts), -1, np.int32)
        self._rows = array.array("i")

    def of(self, question: int, known: Answers, rows: Sequence[int]) -> Compared:
        """What the tower is trained with of the question of a number, whose candidates are some rows, best first.

        Raises:
          TooSlowError: a regular expression of its answers takes too long.
        """
        holding = set(self._holding(known, rows))
        for row in rows:
            if self._number_N[row] < 0:
                self._number_N[row] = len(self._rows)
                self._rows.append(row)
        holds = [place for place, row in enumerate(rows) if row in holding]
        return Compared(self._tokens[question], self._number_N[list(rows)].tolist(), holds)

    def write(self, path: Path) -> int:
        """Writes the embeddings, float32 [M, E], in the order of their numbers; returns M."""
        stored, rows_M = StoredRows(self._folder, "candidates"), np.asarray(self._rows, np.int64)
        parts = (stored[rows_M[start : start + _EMBEDDINGS]] for start in range(0, len(rows_M), _EMBEDDINGS))
        files.write_rows(path, (len(rows_M), stored.shape[1]), parts)
        return len(rows_M)


def _checked(collection: Collection) -> Path:
    """The folder of the embeddings of a collection's candidates, a row for each."""
    folder = collection.embeddings()
    if encoding.load_ids(folder, "candidates") != [candidate.id for candidate in collection.candidates()]:
        way = "name in config.base a run that has encoded this set, with config.encode.windows=1"
        raise UserError(f"config.spans.early: {folder}: not one embedding of each of the set's passages: {way}")
    return folder


def _retrieved(
    questions: Sequence[_Question], lists: Lists, texts: CandidateTexts, depth: int, early: EarlyCandidates | None
) -> Iterator[Retrieved]:
    """Each question with its paragraphs; a judged passage that was not retrieved takes the place of the last one."""
    for number, (question, (scores_K, rows_K)) in enumerate(zip(questions, lists, strict=True)):
        deep = [(row, score) for row, score in zip(rows_K.tolist(), scores_K.tolist()) if row >= 0]
        passages, known = deep[:depth], question.answers
        golds = [texts.row_of[id] for id in question.golds if id in texts.row_of]
        if golds and not {row for row, _ in passages} & set(golds):
            lowest = passages[-1][1] if passages else 0.0
            passages[max(0, min(depth, len(rows_K)) - 1) :] = [(golds[0], lowest)]
        rows = list(dict.fromkeys(row for row, _ in passages + deep))[: len(rows_K)]  # those that are read come first
        compared = functools.partial(early.of, number, known, rows) if early else None
        yield Retrieved(question.text, known, [texts[row] for row, _ in passages], [s for _, s in passages], compared)


def read(system: str, early: int) -> list[str | Read]:
    """What the stage reads: the texts, what is searched, and what the question tower is trained with."""
    of_tower = ("train", "encode") if early else ()
    searched = dict.fromkeys((*mine.needs(system, "config.spans.system"), *of_tower))
    of_base = (Read(stage, from_base_if_later=True, required=True) for stage in searched)
    return ["prepare", Read("sets", must_match=True), *of_base]


def check(run: Run) -> None:
    """Checks that there are questions, and passages with an index."""
    fields = run.config.spans
    if fields.early:
        recipe.check_towers(run.as_seen_by(FOLDER).owner("train"), f"config.spans.early={fields.early}")
    divided = run.owner("sets").config.split.set
    if not fields.questions and not (divided and hard_negatives.has_answers(run, divided)):
        way = "set it to one that has, such as squad, or config.spans.questions to files such as NQ-open.train.jsonl"
        raise UserError(f"stage 'spans': config.split.set='{divided}' has no questions with answers: {way}")
    source_paths.checked("config.spans.questions", source_paths.split(fields.questions))
    for path in inputs(fields.questions):
        qa.check_beginning(path, run.config.sets.qa_patterns)


def inputs(questions: str) -> Sequence[Path]:
    """The files that `config.spans.questions` names."""
    return source_paths.existing([Path(path) for path in source_paths.split(questions)])


def check_reader(writer: Run, reader: Run) -> None:
    """Checks that the lanes of a run that trains on the questions divide their shards."""
    check_shards(reader.config.data.lanes, writer.config.split.shards, "labelled spans, config.split.shards")


STAGES.register(
    "spans",
    Stage(
        write_spans,
        check=(check, Run.check_vocabulary),
        check_reader=check_reader,
        fields=("spans", "split", "sets.qa_patterns", "data.query_length", "data.document_length"),
        reads=of_fields(read, "spans.system", "spans.early"),
        files=lambda run: [*inputs(run.config.spans.questions), *run.vocabulary_inputs()],
        writes=("spans",),
    ),
)

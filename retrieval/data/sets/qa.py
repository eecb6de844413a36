"""Open-domain questions with answers, over passages that nobody has judged (Karpukhin et al. 2020), plain or .gz.

questions    DPR's nq-test.qa.csv and pyserini's topics: question, tab, Python list of answers
             NQ-open: lines of {"question": ..., "answer": [...]}
             WebQuestions: one array of {"qId": ..., "qText": ..., "answers": [...]}
             CuratedTREC: question number, kind, question and a regular expression, with tabs between them; DPR and
             DrQA have its expressions in files that look like DPR's questions and NQ-open
passages     DPR's psgs_w100.tsv: id, text and title, with tabs between them and below a line with these names;
             BEIR's corpus.jsonl, or MS MARCO's collection.tsv
"""

import ast
import collections
import csv
import json
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from retrieval import hashing
from retrieval.data.labelled import json_array
from retrieval.data.sets import answers as answer
from retrieval.data.sets import beir, msmarco, text_files, trec
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

_PASSAGE_FIELDS = ["id", "text", "title"]


class _Record(NamedTuple):
    """A question as it was read at `at`; its id is empty where the file has none."""

    at: str
    id: str
    question: str
    answers: Answers
    wordless: int  # answers that are left out, for they are in every passage


def read_set(
    name: str, passages: Callable[[], Iterable[Candidate]], questions: Path, are_patterns: bool = False
) -> RetrievalSet:
    """The questions of a file over some passages, which are not held in memory; there is no judgement.

    Args:
      are_patterns: as `read_questions` has it.

    Raises:
      UserError: as `read_questions` and as the reader of the passages, or there is no passage.
    """
    queries, answers = read_questions(questions, are_patterns)
    count = sum(1 for _ in passages())
    if not count:
        raise UserError(f"set '{name}' has no passage to find answers in")
    return RetrievalSet(name, queries, Stream(lambda: iter(passages()), count), {}, answers)


def read_passages(path: Path) -> Iterator[Candidate]:
    """The passages of a file, whose format is told by its first line, one after the other.

    Raises:
      UserError: the file is not what its format says, or an id is there twice; with the line.
    """
    _, line = next(text_files.lines(path), ("", ""))
    return _dpr_passages(path) if line.split("\t") == _PASSAGE_FIELDS else trec.read_candidates(path)


def read_questions(path: Path, are_patterns: bool = False) -> tuple[dict[str, str], dict[str, Answers]]:
    """Question id -> question, and question id -> its answers, of a file whose format is told by its content.

    A question that is there again is one question, with the answers of all. Those without an answer are left out.
    Both are counted in the log. Where the file has no ids, they come from the questions.

    Args:
      are_patterns: whether answers are regular expressions, which those of CuratedTREC's own format are in any case.

    Raises:
      UserError: the file is not what its format says, an id is of two questions, or no question has an answer.
    """
    ids: dict[str, str] = {}
    queries: dict[str, str] = {}
    answers: dict[str, Answers] = {}
    counts: collections.Counter[str] = collections.Counter()
    for at, id, question, found, wordless in _records(path, are_patterns):
        if not question.strip():
            raise UserError(f"{at}: the question is empty; write one, or drop it")
        id = beir.check_id(id or hashing.digest(question).hex(), "question id", at)
        counts["questions that are there again, whose answers are joined"] += question in ids
        counts["answers without a word, left out"] += wordless
        id = ids.setdefault(question, id)
        if queries.setdefault(id, question) != question:
            raise UserError(f"{at}: the question id '{id}' is there twice; ids must be distinct")
        before = answers.get(id, Answers((), found.are_patterns))
        answers[id] = before._replace(values=tuple(dict.fromkeys(before.values + found.values)))
    asked = {id: question for id, question in queries.items() if answers[id].values}
    counts["questions without an answer, left out"] = len(queries) - len(asked)
    for what, number in counts.items():
        if number:
            _log.warning("%s: %d %s", path, number, what)
    if not asked:
        raise UserError(f"{path}: not one question with an answer; README.md shows what files of questions look like")
    answers = {id: answers[id] for id in asked}
    answer.warn_of_patterns(path, asked, answers, "set config.sets.qa_patterns=True")
    return asked, answers


def _records(path: Path, are_patterns: bool) -> Iterator[_Record]:
    if (first := trec.first_character(path)) in ("{", "["):
        return _nq_open(path, are_patterns) if first == "{" else _web_questions(path, are_patterns)
    _, line = next(text_files.lines(path), ("", ""))
    if (count := len(line.split("\t"))) not in (2, 4):
        raise UserError(
            f"{path}, line 1: no format of questions that is known, {count} fields between tabs; README.md shows what "
            "they look like"
        )
    return _dpr_questions(path, are_patterns) if count == 2 else _curated_trec(path)


def _nq_open(path: Path, are_patterns: bool) -> Iterator[_Record]:
    for at, line in text_files.lines(path):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{at}: not valid JSON ({error}); one object a line is needed") from error
        values = text_files.strings(record, "answer", at)
        yield _record(at, "", text_files.string(record, "question", at), values, are_patterns)


def _web_questions(path: Path, are_patterns: bool) -> Iterator[_Record]:
    for at, record in json_array.read(path):
        values = text_files.strings(record, "answers", at)
        yield _record(
            at, text_files.string(record, "qId", at), text_files.string(record, "qText", at), values, are_patterns
        )


def _dpr_questions(path: Path, are_patterns: bool) -> Iterator[_Record]:
    for at, (question, literal) in _quoted_rows(path, ("question", "list of answers")):
        yield _record(at, "", question, _texts_of(literal, at), are_patterns)


def _curated_trec(path: Path) -> Iterator[_Record]:
    names = ("question number", "kind", "question", "regular expression")
    for at, line in text_files.lines(path):
        fields = line.split("\t")
        if len(fields) != len(names):
            raise UserError(f"{at}: {len(fields)} fields, expected {len(names)} between tabs: {', '.join(names)}")
        id, _, question, pattern = fields
        beir.check_id(id, "question number", at)
        yield _record(at, id, question, [pattern], are_patterns=True)


def _record(at: str, id: str, question: str, values: list[str], are_patterns: bool) -> _Record:
    found = answer.of_patterns(values, at) if are_patterns else answer.of_texts(values)
    return _Record(at, id, question, found, wordless=len(set(values)) - len(found.values))


def _texts_of(literal: str, at: str) -> list[str]:
    """The texts of a Python list, of which nothing is run."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that '\\d' is no escape
            values = ast.literal_eval(literal)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
        raise UserError(
            f"{at}: the answers are no Python list ({type(error).__name__}): ['a', 'b'] is needed"
        ) from error
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{at}: the answers are no list of texts: ['a', 'b'] is needed")
    return text_files.strings({"answers": values}, "answers", at)


def _dpr_passages(path: Path) -> Iterator[Candidate]:
    rows = _quoted_rows(path, _PASSAGE_FIELDS)
    next(rows)  # their names
    seen = msmarco.Distinct(path)
    for at, (id, text, title) in rows:
        seen.add(beir.check_id(id, "passage id", at), int(at.rpartition(" ")[2]))
        yield Candidate(id, title, text)
    if not seen:
        raise UserError(f"{path}: no passage in it; lines of {', '.join(_PASSAGE_FIELDS)} with tabs between are needed")
    seen.check()


def _quoted_rows(path: Path, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Each row of fields with tabs between them, after the place where it begins.

    A field in quotation marks may hold whatever, quotation marks doubled.
    """
    names = list(names)
    lines = (
        text_files.decoded(line, f"{path}, line {number}") for number, line in enumerate(text_files.byte_lines(path), 1)
    )
    reader = csv.reader((f"{line}\n" for line in lines), delimiter="\t", strict=True)
    while True:
        at = f"{path}, line {reader.line_num + 1}"
        try:
            fields = next(reader, None)
        except csv.Error as error:
            raise UserError(
                f"{at}: {error}; are the quotation marks of its fields closed, and doubled within?"
            ) from error
        if fields is None:
            return
        if fields and len(fields) != len(names):
            raise UserError(f"{at}: {len(fields)} fields, expected {len(names)} between tabs: {', '.join(names)}")
        if fields:
            yield at, fields

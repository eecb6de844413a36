"""Open-domain questions with answers, over passages that nobody has judged (Karpukhin et al. 2020), plain or .gz.

questions    DPR's nq-test.qa.csv and pyserini's topics: question, tab, Python list of answers
             NQ-open: lines of {"question": ..., "answer": [...]}, or of FiD with "answers"
             WebQuestions: one array of {"qId": ..., "qText": ..., "answers": [...]}, or of EntityQuestions with
             "question" and no id
             TriviaQA: {"Data": [{"QuestionId": ..., "Question": ..., "Answer": {"Value": ..., "Aliases": [...]}}]}
             CuratedTREC: question number, kind, question and a regular expression, with tabs between them. A tab
             behind a backslash belongs to the expression. DPR and DrQA have its expressions in files that look like
             DPR's questions and NQ-open
passages     DPR's psgs_w100.tsv: id, text and title, with tabs between them and below a line with these names;
             BEIR's corpus.jsonl, or MS MARCO's collection.tsv
"""

import ast
import collections
import csv
import functools
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from retrieval import foreign_json, hashing, identifiers, text_files
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import json_array
from retrieval.data.sets import answers as answer
from retrieval.data.sets import beir, msmarco, open_domain, trec
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError
from retrieval.registry import Table

_log = logging.getLogger(__name__)

_CORPUS = "corpus"  # stands for the passages of the run's corpus
_JSON = ("{", "[")
_NQ_OPEN = '{"question": "q", "answer": ["a", "b"]}'
_PASSAGE_FIELDS = ["id", "text", "title"]
_TREC_FIELDS = ("question number", "kind", "question", "regular expression")
_TRIVIA_QA = re.compile(r'\{\s*"(Data|Domain|Split|VerificationEval|Version)"\s*:')
_BARE_TAB = re.compile(r"(?<!\\)\t")


class Record(NamedTuple):
    """A question as it was read at `at`; its id is empty where the file has none."""

    at: str
    id: str
    question: str
    answers: Answers
    wordless: int  # answers that are left out, for they are in every passage


class QuestionFormat(NamedTuple):
    """A format of files of questions with answers.

    Attributes:
      what: what people call it.
      setting: files that have it.
      example: a line of it, with ⇥ for a tab.
      recognises: whether a file is of it, by the first character of the file and by its first line (of JSON, by its
        first kilobyte).
      read: the questions of a file; the second argument says whether the answers are regular expressions.
    """

    what: str
    setting: str
    example: str
    recognises: Callable[[str, str], bool]
    read: Callable[[Path, bool], Iterator["Record"]]


QUESTIONS: Table[QuestionFormat] = Table("format of questions")


def read_set(
    name: str, passages: Callable[[], Iterable[Candidate]], questions: Path, are_patterns: bool = False
) -> RetrievalSet:
    """The questions of a file over some passages, which are not held in memory; there is no judgement.

    Args:
      are_patterns: as `read_questions` has it.

    Raises:
      UserError: as `read_questions` and as the reader of the passages, or there is no passage.
    """
    return set_of(name, passages, *read_questions(questions, are_patterns))


def set_of(
    name: str, passages: Callable[[], Iterable[Candidate]], queries: dict[str, str], answers: dict[str, Answers]
) -> RetrievalSet:
    """Questions with their answers over some passages, as `read_set` gives them."""
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
        raise UserError(
            f"{path}: not one question with an answer; docs/reference/formats.md shows what such files look like"
        )
    answers = {id: answers[id] for id in asked}
    answer.warn_of_patterns(path, asked, answers, "set config.sets.qa_patterns=True")
    return asked, answers


def check_beginning(path: Path, are_patterns: bool = False) -> None:
    """Reads the first question of a file.

    Raises:
      UserError: as `read_questions`.
    """
    next(_records(path, are_patterns), None)


def read_together(paths: Iterable[Path], are_patterns: bool = False) -> tuple[dict[str, str], dict[str, Answers]]:
    """As `read_questions`, of several files: a question that is in two has its first id, and the answers of both.

    Raises:
      UserError: as `read_questions`, or files that do not go together: with one id for two questions, or with texts and
        regular expressions as answers of one.
    """
    ids: dict[str, str] = {}
    queries: dict[str, str] = {}
    answers: dict[str, Answers] = {}
    again = 0
    for path in paths:
        asked, known = read_questions(path, are_patterns)
        for its_id, question in asked.items():
            again += question in ids
            id, found = ids.setdefault(question, its_id), known[its_id]
            if queries.setdefault(id, question) != question:
                raise UserError(f"{path}: the question id '{id}' is of another question in another file; make it new")
            before = answers.get(id, found)
            if before.are_patterns != found.are_patterns:
                raise UserError(
                    f"{path}: the answers of the question '{question[:80]}' are regular expressions in one file of "
                    "questions, and texts in another; leave one of the files out"
                )
            answers[id] = before._replace(values=tuple(dict.fromkeys(before.values + found.values)))
    if again:
        _log.warning("%d questions are there again in another file, and have the answers of both", again)
    return queries, answers


def _records(path: Path, are_patterns: bool) -> Iterator[Record]:
    line = text_files.beginning(path)
    first = line[:1]
    if first not in _JSON:
        _, line = next(text_files.lines(path), ("", ""))
    for form in QUESTIONS.values():
        if form.recognises(first, line):
            return form.read(path, are_patterns)
    raise UserError(
        f"{path}, line 1: no format of questions that is known, {_columns(line)} fields between tabs; "
        "docs/reference/formats.md shows what they look like"
    )


def _columns(line: str) -> int:
    return len(line.split("\t"))


def _nq_open(path: Path, are_patterns: bool) -> Iterator[Record]:
    for at, line in text_files.lines(path):
        record = foreign_json.parse(line, at)
        field = "answer" if isinstance(record, dict) and "answer" in record else "answers"
        if not isinstance(record, dict) or not isinstance(record.get(field), list):
            raise UserError(
                f"{at}: no question of NQ-open, a line such as {_NQ_OPEN}; is it a file of another data set? "
                "SQuAD's go into config.sets.squad, labelled examples into config.sets.labelled"
            )
        values = text_files.strings(record, field, at)
        yield _record(at, "", text_files.string(record, "question", at), values, are_patterns)


def _web_questions(path: Path, are_patterns: bool) -> Iterator[Record]:
    for at, record in json_array.read(path):
        if isinstance(record, dict) and "positive_ctxs" in record:
            raise UserError(
                f"{at}: that is an example of DPR with its passages; such files go into config.sets.labelled or "
                "config.pairs.files"
            )
        values = text_files.strings(record, "answers", at)
        id = "" if record.get("qId") is None else identifiers.of_value(record["qId"], "qId", at)
        question = "question" if "qText" not in record and "question" in record else "qText"
        yield _record(at, id, text_files.string(record, question, at), values, are_patterns)


def _trivia_qa(path: Path, are_patterns: bool) -> Iterator[Record]:
    """Right are its answer, the aliases, and what people answered, as its own evaluation has it (Joshi et al. 2017)."""
    for at, record in json_array.read_field(path, "Data"):
        right = record.get("Answer", {})  # the test split has none
        if not isinstance(right, dict):
            raise UserError(f'{at}: the field \'Answer\' is no object: {{"Value": ..., "Aliases": [...]}} is needed')
        values = [text_files.string(right, "Value", at)] if "Value" in right else []
        for name in ("Aliases", "HumanAnswers"):
            values += text_files.strings(right, name, at) if name in right else []
        question = text_files.string(record, "Question", at)
        yield _record(
            at, identifiers.of_value(record.get("QuestionId"), "QuestionId", at), question, values, are_patterns
        )


def _dpr_questions(path: Path, are_patterns: bool) -> Iterator[Record]:
    for at, (question, literal) in _quoted_rows(path, ("question", "list of answers")):
        yield _record(at, "", question, _texts_of(literal, at), are_patterns)


def _is_curated_trec(line: str) -> bool:
    """Judgements have as many fields, with a 0 in place of the kind."""
    fields = _BARE_TAB.split(line)
    return len(fields) == len(_TREC_FIELDS) and fields[1] != "0"


def _curated_trec(path: Path) -> Iterator[Record]:
    names = ", ".join(_TREC_FIELDS)
    for at, line in text_files.lines(path):
        fields = _BARE_TAB.split(line)
        if len(fields) != len(_TREC_FIELDS):
            raise UserError(f"{at}: {len(fields)} fields, expected {len(_TREC_FIELDS)} between tabs: {names}")
        id, _, question, pattern = fields
        beir.check_id(id, "question number", at)
        yield _record(at, id, question, [pattern], are_patterns=True)


def _record(at: str, id: str, question: str, values: list[str], are_patterns: bool) -> Record:
    found = answer.of_patterns(values, at) if are_patterns else answer.of_texts(values)
    return Record(at, id, question, found, wordless=len(set(values)) - len(found.values))


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
    again, is_empty = msmarco.repeated(path, lambda: _numbered_rows(path), "passage id"), True
    for line, at, (id, text, title) in _passage_rows(path):
        if line not in again:
            is_empty = False
            yield Candidate(beir.check_id(id, "passage id", at), title, text)
    if is_empty:
        raise UserError(f"{path}: no passage in it; lines of {', '.join(_PASSAGE_FIELDS)} with tabs between are needed")


def _numbered_rows(path: Path) -> Iterator[tuple[int, str, str]]:
    return ((line, fields[0], "\t".join(fields)) for line, _, fields in _passage_rows(path))


def _passage_rows(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """The number of the line, the place and the fields of each row below their names."""
    for at, fields in itertools.islice(_quoted_rows(path, _PASSAGE_FIELDS), 1, None):
        yield int(at.rpartition(" ")[2]), at, fields


def _quoted_rows(path: Path, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Each row of fields with tabs between them, after the place where it begins.

    A field in quotation marks may hold whatever, quotation marks doubled.
    """
    names = list(names)
    lines = (
        text_files.decoded(line, f"{path}, line {number}") for number, line in enumerate(text_files.byte_lines(path), 1)
    )
    bounded = text_files.CsvLines(f"{line}\n" for line in lines)
    reader = csv.reader(bounded, delimiter="\t", strict=True)
    while True:
        at = f"{path}, line {reader.line_num + 1}"
        try:
            fields = next(reader, None)
        except csv.Error as error:
            remedy = (
                "end its lines with a line feed, and leave no carriage return within"
                if "new-line" in str(error)
                else "are the quotation marks of its fields closed, and doubled within?"
            )
            raise UserError(f"{at}: {error}; {remedy}") from error
        if fields is None:
            return
        bounded.size = 0
        if fields and len(fields) != len(names):
            raise UserError(f"{at}: {len(fields)} fields, expected {len(names)} between tabs: {', '.join(names)}")
        if fields:
            yield at, fields


QUESTIONS.register(
    "dpr",
    QuestionFormat(
        "DPR's questions, TSV with a Python list",
        "nq-test.qa.csv, topics.dpr.nq.dev.txt",
        "q⇥['a', 'b']",
        lambda first, line: first not in _JSON and _columns(line) == 2,
        _dpr_questions,
    ),
)
QUESTIONS.register(
    "nq_open",
    QuestionFormat(
        "NQ-open, JSON lines",
        "NQ-open.dev.jsonl",
        _NQ_OPEN,
        lambda first, line: first == "{" and not _TRIVIA_QA.match(line),
        _nq_open,
    ),
)
QUESTIONS.register(
    "web_questions",
    QuestionFormat(
        "WebQuestions, one array",
        "test.json",
        '[{"qId": "1", "qText": "q", "answers": ["a", "b"]}]',
        lambda first, line: first == "[",
        _web_questions,
    ),
)
QUESTIONS.register(
    "trivia_qa",
    QuestionFormat(
        "TriviaQA, one object",
        "unfiltered-web-dev.json",
        '{"Data": [{"QuestionId": "1", "Question": "q", "Answer": {"Value": "a", "Aliases": ["a", "b"]}}]}',
        lambda first, line: _TRIVIA_QA.match(line) is not None,
        _trivia_qa,
    ),
)
QUESTIONS.register(
    "curated_trec",
    QuestionFormat(
        "CuratedTREC, TSV with regular expressions",
        "large2470-test.tsv",
        "1⇥factoid⇥q⇥Mt\\.? Everest",
        lambda first, line: first not in _JSON and _is_curated_trec(line),
        lambda path, are_patterns: _curated_trec(path),
    ),
)


def passages_of(name: str, value: str, given: Given) -> Callable[[], Iterator[Candidate]]:
    """What reads the passages that a field of a name begins with."""
    passages = source_paths.split(value)[0]
    if passages == _CORPUS:
        return functools.partial(open_domain.corpus_passages, given.corpus, f"config.sets.{name}={_CORPUS}")
    return functools.partial(read_passages, Path(passages))


@register
class OpenDomain(SetFormat):
    """The format 'qa': questions over passages that nobody has judged. Each further file of questions is a set, too."""

    name = "qa"
    what = "open-domain questions with answers (below), over DPR's passages or the run's corpus"
    setting = "--config.sets.qa=psgs_w100.tsv,QUESTIONS,… or corpus,QUESTIONS,…"
    example = "id⇥text⇥title"
    options = ("sets.qa_patterns",)
    is_judged = False
    parts = ("passages", "questions")

    def read(self, value: str, given: Given) -> Iterator[RetrievalSet]:
        questions = source_paths.split(value)[1:]
        for name, path in zip(self.names(value), questions):
            yield read_set(name, passages_of(self.name, value, given), Path(path), given.options["sets.qa_patterns"])

    def names(self, value: str) -> list[str]:
        """'qa', and for each further file of questions 'qa-' and the beginning of its name."""
        further = source_paths.split(value)[2:]
        return [self.name, *(f"{self.name}-{Path(path).name.partition('.')[0]}" for path in further)]

    def check_parts(self, value: str) -> None:
        if len(source_paths.split(value)) < len(self.parts):
            super().check_parts(value)

    def sources(self, value: str) -> list[str]:
        passages, *questions = source_paths.split(value) or [_CORPUS]
        return [*([] if passages == _CORPUS else [passages]), *questions]

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        if source_paths.split(value)[0] == _CORPUS and not has_corpus:
            raise UserError(
                f"config.sets.{self.name}={value}: 'corpus' is the prepared corpus, and no stage prepares one: add "
                "'prepare' to config.stages, or set config.base to a run that has it"
            )

"""Open-domain questions with answers, over passages that nobody has judged (Karpukhin et al. 2020), plain or .gz.

questions    DPR's nq-test.qa.csv and pyserini's topics: question, tab, Python list of answers
             NQ-open: lines of {"question": ..., "answer": [...]}, or of FiD with "answers"
             WebQuestions: one array of {"qId": ..., "qText": ..., "answers": [...]}, or of EntityQuestions with
             "question" and no id
             CuratedTREC: question number, kind, question and a regular expression, with tabs between them. A tab
             behind a backslash belongs to the expression. DPR and DrQA have its expressions in files that look like
             DPR's questions and NQ-open
passages     DPR's psgs_w100.tsv: id, text and title, with tabs between them and below a line with these names;
             BEIR's corpus.jsonl, or MS MARCO's collection.tsv
"""

import ast
import collections
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.parsing import scalars, text_files
from retrieval.common.runtime import hashing
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import json_array
from retrieval.data.sets import answers as answer
from retrieval.data.sets import beir, msmarco, open_domain, splits, trec
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import NOT_PREPARED, Context, Options, SetFormat, register

_log = logging.getLogger(__name__)

_SEE = "docs/reference/formats.md shows what such files look like"
_PATTERNS = "sets.qa_patterns"
_CORPUS = "corpus"  # stands for the passages of the run's corpus
_NQ_OPEN = '{"question": "q", "answer": ["a", "b"]}'
_PASSAGE_FIELDS = ["id", "text", "title"]
_TREC_FIELDS = ("question number", "kind", "question", "regular expression")
_BARE_TAB = re.compile(r"(?<!\\)\t")


# Where a question stands, its id, which is empty where the file has none, the question and its answers.
Record = tuple[str, str, str, list[str]]


class QuestionFormat(NamedTuple):
    """A format of files of questions with answers.

    Attributes:
      what: what people call it.
      setting: files that have it.
      example: a line of it, with ⇥ for a tab.
      read: the questions of a file.
      has_patterns: whether its answers are regular expressions, whatever the config says.
    """

    what: str
    setting: str
    example: str
    read: Callable[[Path], Iterator[Record]]
    has_patterns: bool = False


def read_passages(path: Path) -> Iterator[Candidate]:
    """The passages of a file, whose format is told by its first line, one after the other.

    Raises:
      UserError: the file is not what its format says, or an id is there twice; with the line.
    """
    _, line = next(text_files.lines(path), ("", ""))
    return _dpr_passages(path) if line.split("\t") == _PASSAGE_FIELDS else trec.read_candidates(path)


def read_questions(paths: Iterable[Path], are_patterns: bool = False) -> tuple[dict[str, str], dict[str, Answers]]:
    """Question id -> question, and question id -> its answers, of files in any of the formats.

    A question that is there again, in the same file or in another one, is one question, with its first id and the
    answers of all. Those without an answer are left out. Both are counted in the log. Where a file has no ids, they
    come from the questions.

    Args:
      are_patterns: whether answers are regular expressions, which those of CuratedTREC's own format are in any case.

    Raises:
      UserError: a file is not what its format says, an id is of two questions, one question has both texts and regular
        expressions as answers, or none of a file has an answer.
    """
    ids, queries, answers = dict[str, str](), dict[str, str](), dict[str, Answers]()
    for path in paths:
        counts: collections.Counter[str] = collections.Counter()
        own: dict[str, None] = {}  # the ids of its questions, in order
        for (at, id, question, texts), of_file in _answered(path, are_patterns):
            text_files.required(question, "question", at)
            id = beir.check_id(id or hashing.digest(question).hex(), "question id", at)
            counts["questions that are there again, whose answers are joined"] += question in ids
            counts["answers without a word, left out"] += len(set(texts)) - len(of_file.values)
            id = ids.setdefault(question, id)
            if queries.setdefault(id, question) != question:
                raise UserError(f"{at}: the question id '{id}' is there twice; ids must be distinct")
            before = answers.setdefault(id, of_file)
            if before.are_patterns != of_file.are_patterns:
                both = "regular expressions in one file of questions, and texts in another; leave one of them out"
                raise UserError(f"{at}: the answers of '{question[:80]}' are {both}")
            answers[id] = before._replace(values=tuple(dict.fromkeys(before.values + of_file.values)))
            own[id] = None
        known = {id: answers[id] for id in own if answers[id].values}
        if not known:
            raise UserError(f"{path}: not one question with an answer; {_SEE}")
        counts["questions without an answer, left out"] = len(own) - len(known)
        for what, number in (+counts).items():
            _log.warning("%s: %d %s", path, number, what)
        answer.warn_of_patterns(path, known, "set config.sets.qa_patterns=True")
    return {id: queries[id] for id in answers if answers[id].values}, {
        id: own for id, own in answers.items() if own.values
    }


def check_beginning(path: Path, are_patterns: bool = False) -> None:
    """Reads the first question of a file."""
    next(_answered(path, are_patterns), None)


def _answered(path: Path, are_patterns: bool) -> Iterator[tuple[Record, Answers]]:
    """Each question with its answers: JSON is known by its first character, other files by the number of columns."""
    if not (name := {"{": "nq_open", "[": "web_questions"}.get(text_files.first_character(path))):
        _, line = next(text_files.lines(path), ("", ""))
        columns = len(_BARE_TAB.split(line))
        if not (name := {2: "dpr", 4: "curated_trec"}.get(columns)):
            raise UserError(f"{path}, line 1: no known format of questions, {columns} fields between tabs; {_SEE}")
    form = QUESTIONS[name]
    for record in form.read(path):
        at, *_, texts = record
        has_patterns = are_patterns or form.has_patterns
        yield record, answer.of_patterns(texts, at) if has_patterns else answer.of_texts(texts)


def _of_objects(records: Iterable[tuple[str, dict[str, Any]]]) -> Iterator[Record]:
    for at, record in records:
        question = "question" if "question" in record else "qText"
        answers = "answer" if "answer" in record else "answers"
        id = "" if record.get("qId") is None else scalars.of_value(record["qId"], "qId", at)
        yield at, id, text_files.string(record, question, at), text_files.strings(record, answers, at)


def _nq_open(path: Path) -> Iterator[Record]:
    return _of_objects(text_files.objects(path, _NQ_OPEN))


def _web_questions(path: Path) -> Iterator[Record]:
    return _of_objects(json_array.read(path))


def _dpr_questions(path: Path) -> Iterator[Record]:
    for at, (question, literal) in _quoted_rows(path, ("question", "list of answers")):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # that '\\d' is no escape
                values = ast.literal_eval(literal)  # of which nothing is run
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError) as error:
            name = type(error).__name__
            raise UserError(f"{at}: the answers are no Python list ({name}): ['a', 'b'] is needed") from error
        yield at, "", question, text_files.strings({"answers": values}, "answers", at)


def _curated_trec(path: Path) -> Iterator[Record]:
    for at, line in text_files.lines(path):
        id, _, question, pattern = msmarco.fields(_BARE_TAB.split(line), _TREC_FIELDS, at)
        yield at, beir.check_id(id, "question number", at), question, [pattern]


def _dpr_passages(path: Path) -> Iterator[Candidate]:
    rows = itertools.islice(_quoted_rows(path, _PASSAGE_FIELDS), 1, None)  # below their names
    for at, (id, text, title) in msmarco.distinct(path, rows):
        yield Candidate(beir.check_id(id, "passage id", at), title, text)


def _quoted_rows(path: Path, names: Sequence[str]) -> msmarco.Rows:
    """Each row of fields with tabs between them; one in quotation marks may hold whatever, quotation marks doubled."""
    for at, values in text_files.table_rows(path, lambda first: {"delimiter": "\t"}):
        yield at, msmarco.fields(values, names, at)


_WEB_QUESTIONS = '[{"qId": "1", "qText": "q", "answers": ["a", "b"]}]'
_CURATED_TREC = "1⇥factoid⇥q⇥Mt\\.? Everest"
_DPR_FILES, _TREC_FILES = "nq-test.qa.csv, topics.dpr.nq.dev.txt", "large2470-test.tsv"
QUESTIONS = {
    "dpr": QuestionFormat("DPR's questions, TSV with a Python list", _DPR_FILES, "q⇥['a', 'b']", _dpr_questions),
    "nq_open": QuestionFormat("NQ-open, JSON lines", "NQ-open.dev.jsonl", _NQ_OPEN, _nq_open),
    "web_questions": QuestionFormat("WebQuestions, one array", "test.json", _WEB_QUESTIONS, _web_questions),
    "curated_trec": QuestionFormat(
        "CuratedTREC, TSV with regular expressions", _TREC_FILES, _CURATED_TREC, _curated_trec, has_patterns=True
    ),
}


@register
class OpenDomain(SetFormat):
    """The format 'qa': questions over passages that nobody has judged. Each further file of questions is a set, too."""

    name = "qa"
    what = "open-domain questions with answers (below), over DPR's passages or the run's corpus"
    setting = "--config.sets.qa=psgs_w100.tsv,QUESTIONS,… or corpus,QUESTIONS,…"
    example = "id⇥text⇥title"
    options = (_PATTERNS,)
    is_judged = False
    parts = ("passages", "questions")
    repeats_last = True

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        first = source_paths.split(value)[0]

        def passages() -> Iterator[Candidate]:  # which are not held in memory
            if first != _CORPUS:
                return read_passages(Path(first))
            return open_domain.corpus_passages(context.corpus, f"config.sets.{self.name}={_CORPUS}")

        if not (count := sum(1 for _ in passages())):
            raise UserError(f"{first}: no passage in it to find answers in; name another file")
        candidates = Stream(passages, count)
        for name, queries, answers in self.questions(value, context.options[_PATTERNS]):
            yield RetrievalSet(name, queries, candidates, {}, answers)

    def questions(self, value: str, are_patterns: bool) -> Iterator[tuple[str, dict[str, str], dict[str, Answers]]]:
        """The name of each set, its questions and their answers, as `read_questions` gives them."""
        for name, path in zip(self.names(value), source_paths.split(value)[1:]):
            yield name, *read_questions([Path(path)], are_patterns)

    def names(self, value: str) -> list[str]:
        """'qa', and for each further file of questions 'qa-' and the beginning of its name."""
        further = source_paths.split(value)[2:]
        return [self.name, *(f"{self.name}-{Path(path).name.partition('.')[0]}" for path in further)]

    def sources(self, value: str) -> list[str]:
        passages, *questions = source_paths.split(value) or [_CORPUS]
        return [*([] if passages == _CORPUS else [passages]), *questions]

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        if source_paths.split(value)[0] == _CORPUS and not has_corpus:
            raise UserError(f"config.sets.{self.name}={value}: 'corpus' {NOT_PREPARED}")


@register
class HeldOut(OpenDomain):
    """The format 'qa_dev': of files of training questions those that ORQA validates on, together one set.

    The stage `spans` trains on the others, where `spans.questions` names the same files.
    """

    name = "qa_dev"
    what = "the tenth of open-domain training questions that ORQA validates on (the set qa-dev)"
    setting = "--config.sets.qa_dev=psgs_w100.tsv,QUESTIONS,… or corpus,QUESTIONS,…"

    def questions(self, value: str, are_patterns: bool) -> Iterator[tuple[str, dict[str, str], dict[str, Answers]]]:
        queries, answers = read_questions(map(Path, source_paths.split(value)[1:]), are_patterns)
        held_out = list(itertools.compress(queries, splits.is_of_orqa_dev(list(queries.values()))))
        if not held_out:
            problem = f"ORQA holds out none of these {len(queries)} questions; name more files"
            raise UserError(f"config.sets.{self.name}={value}: {problem}")
        yield "qa-dev", {id: queries[id] for id in held_out}, {id: answers[id] for id in held_out}

    def names(self, value: str) -> list[str]:
        return ["qa-dev"]

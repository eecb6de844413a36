"""Test collections: queries, candidates and relevance judgements, as BEIR folders.

Every evaluation set of the project, wherever it comes from, is kept as such a folder:

    corpus.jsonl    {"_id": ..., "title": ..., "text": ...}; "section" and "url" too, where a passage has them
    queries.jsonl   {"_id": ..., "text": ...}
    qrels/NAME.tsv  query-id, corpus-id, score (with a header line); one file per rule of relevance
    answers.jsonl   {"_id": ..., "answers": [...]}, or "patterns", regular expressions; where answers are known

What is read may be compressed (.jsonl.gz), for the first two files. A title may be left out. With answers there need be
no qrels: what is retrieved is then judged by them.
"""

import dataclasses
import json
import logging
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json, scalars, text_files
from retrieval.data.corpora import addresses
from retrieval.data.sets import answers as answer
from retrieval.data.sets import relevance
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.candidate import Candidate

_log = logging.getLogger(__name__)

ANSWERS = "answers.jsonl"
# Of an id and a text: in MS MARCO's second version (passages, documents), of MIRACL and Tevatron, and of pyserini.
_OTHER_NAMES = (("pid", "passage"), ("docid", "body"), ("docid", "text"), ("id", "contents"), ("id", "text"))
_ON_ONE_LINE = re.compile(r"[^\t\n\r\v\f\0]+")  # what a qrels file and trec_eval can hold; run files quote blanks


@dataclasses.dataclass
class Stream:
    """Candidates that are read again whenever they are asked for: a collection may be larger than the memory."""

    read: Callable[[], Iterator[Candidate]]
    count: int

    def __iter__(self) -> Iterator[Candidate]:
        return self.read()

    def __len__(self) -> int:
        return self.count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream | list) and list(self) == list(other)


@dataclasses.dataclass(frozen=True)
class RetrievalSet:
    """One evaluation set.

    Attributes:
      queries: query id -> text, in the order of the file.
      candidates: what is ranked, in the order of the file.
      qrels: rule of relevance -> query id -> candidate id -> grade (> 0 is relevant). Most sets have one rule,
        named 'test'; ReQA has two, and questions that are judged by their answers alone have none.
      answers: query id -> its answers, where they are known.
      left_out: what of the files is not in the set, with counts.
      notes: sentences for the report: what the candidates are, where their number does not say it.
    """

    name: str
    queries: dict[str, str]
    candidates: list[Candidate] | Stream
    qrels: dict[str, dict[str, dict[str, int]]]
    answers: dict[str, Answers] = dataclasses.field(default_factory=dict)
    left_out: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Judged:
    """What evaluation needs of a set: everything but the texts of the candidates.

    Attributes:
      candidates: their ids, in the order of the file.
      own: query id -> row of the candidate that is the query itself, of the same id and text.
      articles: of each candidate, '' where it is not known; empty where none is.
    """

    name: str
    queries: dict[str, str]
    candidates: list[str]
    own: dict[str, int]
    qrels: dict[str, dict[str, dict[str, int]]]
    answers: dict[str, Answers] = dataclasses.field(default_factory=dict)
    articles: list[str] = dataclasses.field(default_factory=list)


def read_folder(folder: Path, unknown: str = relevance.REFUSE, rules: Collection[str] = ()) -> RetrievalSet:
    """Reads a BEIR folder; its name is the folder's own.

    As in BEIR, queries that no rule judges are left out. Without a rule, those without an answer are. A judgement may
    be zero or negative (not relevant).

    Args:
      unknown: what is done with judgements of candidates that the set lacks: `relevance.REFUSE`, or `relevance.DROP`.
      rules: those that are read, () for all; where answers judge alone there are none.

    Raises:
      UserError: a file is missing or broken, an id is missing, repeated or has a tab or a line break, a judgement or an
        answer names an unknown query or candidate, or there is none of either; with the file and the line.
    """
    path, dropped = _either(folder, "corpus.jsonl"), Counter[str]()
    ids = {candidate.id for candidate in read_candidates(path)}
    queries, qrels, answers = _read_judgements(folder, ids, dropped if unknown == relevance.DROP else None, rules)
    candidates = Stream(lambda: read_candidates(path), len(ids))
    return RetrievalSet(folder.resolve().name, queries, candidates, qrels, answers, dropped)


def check_beginning(folder: Path) -> dict[str, Path]:
    """Reads the first records of a BEIR folder's files; returns the files of its judgements by their rule."""
    for name in ("corpus.jsonl", "queries.jsonl"):
        next(read_candidates(_either(folder, name)), None)
    paths, _ = _judging_files(folder)
    for path in paths.values():
        next(relevance.judgements(path), None)
    return paths


def read_judged(folder: Path) -> Judged:
    """`read_folder` for a collection whose texts may be larger than the memory: they are read and forgotten."""
    texts = read_queries(_either(folder, "queries.jsonl"))
    ids, own, articles = [], {}, []
    for row, candidate in enumerate(read_candidates(_either(folder, "corpus.jsonl"))):
        ids.append(candidate.id)
        articles.append(sys.intern(candidate.article))
        if texts.get(candidate.id) == candidate.text:
            own[candidate.id] = row
    queries, qrels, answers = _read_judgements(folder, set(ids))
    own = {id: row for id, row in own.items() if id in queries}
    return Judged(folder.resolve().name, queries, ids, own, qrels, answers, articles if any(articles) else [])


def own_rows(queries: Mapping[str, str], candidates: Iterable[Candidate]) -> dict[str, int]:
    """Query id -> row of the candidate that is the query itself, of the same id and text."""
    return {each.id: row for row, each in enumerate(candidates) if queries.get(each.id) == each.text}


def write_folder(folder: Path, value: RetrievalSet) -> None:
    """Writes a BEIR folder, whole or not at all; one that is there is replaced."""
    with files.atomic(folder) as temporary:
        (temporary / "qrels").mkdir(parents=True)
        write_candidates(temporary / "corpus.jsonl", value.candidates)
        _write_records(temporary / "queries.jsonl", ({"_id": id, "text": text} for id, text in value.queries.items()))
        for rule, qrels in value.qrels.items():
            rows = [f"{query}\t{id}\t{grade}" for query, grades in qrels.items() for id, grade in grades.items()]
            text = "\n".join(["\t".join(relevance.HEADER), *rows]) + "\n"
            (temporary / "qrels" / f"{rule}.tsv").write_text(text, encoding="utf-8")
        if value.answers:
            answers = (
                {"_id": id, "patterns" if own.are_patterns else "answers": list(own.values)}
                for id, own in value.answers.items()
            )
            _write_records(temporary / ANSWERS, answers)


def read_candidates(path: Path) -> Iterator[Candidate]:
    """The candidates of a corpus.jsonl or corpus.jsonl.gz, one after the other."""
    return (_candidate(id, record, at) for at, id, record in _records(path))


def parse_candidate(line: bytes, at: str) -> Candidate:
    """One line of a corpus.jsonl, which was read at `at`."""
    return _candidate(*_record(text_files.decoded(line, at), at), at)


Value = TypeVar("Value")


def distinct(path: Path, records: Iterable[tuple[str, str, Hashable, Value]]) -> Iterator[tuple[str, str, Value]]:
    """Place, id and value of each record of a file, without those that say again what an earlier one says of its id.

    Args:
      records: place, id, what it says, and its value; of what was said a hash is held.

    Raises:
      UserError: two records say different things of one id.
    """
    said: dict[str, int] = {}
    again = 0
    for at, id, says, value in records:
        if id not in said:
            said[id] = hash(says)
            yield at, id, value
        elif said[id] == hash(says):
            again += 1
        else:
            raise UserError(f"{at}: the id '{id}' is there twice, with something else before; ids must be distinct")
    relevance.log_again(path, "lines", again)


def read_queries(path: Path) -> dict[str, str]:
    """Every query, judged or not, of a queries.jsonl or queries.jsonl.gz.

    Raises:
      UserError: as `read_folder`, or a query is empty.
    """
    return {
        id: text_files.required(text_files.string(record, "text", at), f"query '{id}'", at)
        for at, id, record in _records(path)
    }


def read_answers(path: Path) -> dict[str, Answers]:
    """The answers of an answers.jsonl by query id.

    Raises:
      UserError: as `read_folder`, a pattern is no regular expression, or some lines have patterns and others answers.
    """
    answers: dict[str, Answers] = {}
    for at, id, record in _records(path):
        if are_patterns := "patterns" in record:
            answers[id] = answer.of_patterns(text_files.strings(record, "patterns", at), at)
        else:
            answers[id] = answer.of_texts(text_files.strings(record, "answers", at))
        if are_patterns != next(iter(answers.values())).are_patterns:
            raise UserError(f"{at}: patterns and answers in one file; make two sets of it: each has its own metric")
    return answers


def write_candidates(path: Path, candidates: Iterable[Candidate]) -> None:
    """Writes a corpus.jsonl, whole or not at all."""
    with files.atomic(path) as temporary:
        _write_records(temporary, map(_candidate_record, candidates))


def without_empty(
    name: str,
    candidates: Callable[[], Iterator[Candidate]],
    queries: Mapping[str, str],
    judged: Mapping[str, tuple[Path, list[relevance.Row]]],
    among: str,
    of_empty: str,
    drops: bool = False,
) -> RetrievalSet:
    """A set without its empty documents and queries, and without their judgements; what is left out is counted.

    Args:
      judged: rule of relevance -> file and judgements.
      among: what has the candidates, for errors.
      of_empty: what judgements are counted as.
      drops: whether judgements of unknown candidates are counted, too; otherwise they are an error.

    Raises:
      UserError: a judgement is of an unknown query or candidate, or nothing is left.
    """

    def has_text(candidate: Candidate) -> bool:
        return bool(candidate.title.strip() or candidate.text.strip())

    documents, empty = set[str](), set[str]()
    for candidate in candidates():
        (documents if has_text(candidate) else empty).add(candidate.id)
    full = {id: text for id, text in queries.items() if text.strip()}
    counts = Counter({"empty documents, left out": len(empty), "empty queries, left out": len(queries) - len(full)})
    qrels = {}
    for rule, (path, rows) in judged.items():
        known = [row for row in rows if row[2] not in empty and (row[1] in full or row[1] not in queries)]
        counts[of_empty] += len(rows) - len(known)
        qrels[rule] = relevance.read(path, known, full, documents, among, counts if drops else None)
    with_judgement = set().union(*qrels.values())
    if lone := len(full) - len(with_judgement):
        _log.warning("set %s: %d queries without a judgement, left out", name, lone)
    full = {id: text for id, text in full.items() if id in with_judgement}
    texts = Stream(lambda: filter(has_text, candidates()), len(documents))
    return RetrievalSet(name, full, texts, qrels, left_out=dict(+counts))


def check_id(id: str, name: str, at: str) -> str:
    """An id, called `name` where it was read, if a run file can hold it.

    Raises:
      UserError: it is empty, or has white space or NUL.
    """
    if id.split() != [id] or "\0" in id:
        raise UserError(f"{at}: the {name} {id!r} is empty or has white space or NUL, which run files cannot hold")
    return id


def _read_judgements(
    folder: Path, candidates: Collection[str], dropped: Counter[str] | None = None, rules: Collection[str] = ()
) -> tuple[dict[str, str], dict, dict[str, Answers]]:
    """The queries that a rule judges, or that have answers where there is no rule; judgements by rule; answers.

    Args:
      dropped: counts judgements of unknown candidates, which are an error without it.
      rules: as `read_folder`.
    """
    queries = read_queries(_either(folder, "queries.jsonl"))
    paths, of_answers = _judging_files(folder)
    answers = read_answers(of_answers) if of_answers else {}
    if (unknown := next((id for id in answers if id not in queries), None)) is not None:
        raise UserError(f"{of_answers}: the query '{unknown}' is not in queries.jsonl; add it there, or drop it")
    qrels = {
        rule: relevance.read(path, relevance.judgements(path), queries, candidates, "corpus.jsonl", dropped)
        for rule, path in paths.items()
        if not rules or rule in rules
    }
    known = {id: own for id, own in answers.items() if own.values}
    kept = set().union(*qrels.values()) if qrels else known.keys()
    if without := len(queries) - len(kept):
        _log.warning("set %s: %d queries without a judgement or an answer, left out", folder.resolve().name, without)
    queries = {id: text for id, text in queries.items() if id in kept}
    return queries, qrels, {id: known[id] for id in queries if id in known}


def _judging_files(folder: Path) -> tuple[dict[str, Path], Path | None]:
    """Rule -> the file of its judgements, of a BEIR folder; and its file of answers. One of both is there."""
    paths = [*folder.glob("qrels/*.tsv.gz"), *folder.glob("qrels/*.tsv")]
    # Beside a file, a Mac leaves one with what it knows of it: '._test.tsv'.
    rules = {path.name.partition(".tsv")[0]: path for path in paths if not path.name.startswith(".")}
    if not (rules or answers_file(folder)):
        raise UserError(f"{folder / 'qrels'}: no .tsv file with relevance judgements, and no {ANSWERS} beside it")
    return dict(sorted(rules.items())), answers_file(folder)


def answers_file(folder: Path) -> Path | None:
    """The file of answers of a BEIR folder, where there is one."""
    return next((path for path in (folder / ANSWERS, folder / f"{ANSWERS}.gz") if path.is_file()), None)


def _either(folder: Path, name: str) -> Path:
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    raise UserError(f"{folder}: neither {name} nor {name}.gz is there; a BEIR folder has one of them")


def _records(path: Path) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Place, id and JSON object of each line, without those that say again what another one has said."""
    read = ((at, line, *_record(line, at)) for at, line in text_files.lines(path))
    return distinct(path, ((at, id, line, record) for at, line, id, record in read))


def _record(line: str, at: str) -> tuple[str, dict[str, Any]]:
    """The id of a record and the record under our names, where it has those of `_OTHER_NAMES`."""
    record = foreign_json.parse(line, at)
    if isinstance(record, dict) and "_id" not in record:
        for id, text in (names for names in _OTHER_NAMES if record.keys() >= set(names)):
            return _id(renamed := record | {"_id": record[id], "text": record[text]}, at), renamed
    return _id(record, at), record


def _candidate(id: str, record: Any, at: str) -> Candidate:
    names = "title", "section", "article"
    title, section, article = (text_files.string(record, name, at, default="") for name in names)
    return Candidate(id, title, text_files.string(record, "text", at), section, article, addresses.of_record(record))


def _id(record: Any, at: str) -> str:
    if not isinstance(record, dict) or "_id" not in record:
        needed = '{"_id": "d1", "title": "T", "text": "words"}'
        raise UserError(f"{at}: the field '_id' is missing; rename the fields to those of {needed}")
    id = scalars.of_value(record["_id"], "_id", at)
    if not id.strip() or not _ON_ONE_LINE.fullmatch(id):
        raise UserError(f"{at}: the _id {id!r} is empty, or has a tab, a line break or NUL; rename it")
    return id


def _candidate_record(candidate: Candidate) -> dict[str, Any]:
    names = {"section": candidate.section, "article": candidate.article, "url": candidate.url}
    known = {field: name for field, name in names.items() if name}
    return {"_id": candidate.id, "title": candidate.title, **known, "text": candidate.text}


def _write_records(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Writes JSON lines, and refuses what could not be read back."""
    with open(path, "w", encoding="utf-8") as file:
        for number, record in enumerate(records, 1):
            _id(record, f"{path.name}, line {number}")
            file.write(json.dumps(record, ensure_ascii=False) + "\n")

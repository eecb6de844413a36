"""Test collections of TREC and MS MARCO: three files, of candidates, of queries and of judgements, plain or .gz.

candidates    lines of id and text with a tab between them, or BEIR's corpus.jsonl
queries       lines of id and text with a tab between them, or TREC topics: <top> <num> Number: 301 <title> ..., or as
              XML: <topic number="1"> <query> ...
judgements    lines of query id, iteration (not read), candidate id and grade, with tabs or blanks between them
"""

import collections
import logging
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from retrieval import text_files
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, msmarco, relevance, topics
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import Given, SetFormat, register
from retrieval.errors import UserError

_log = logging.getLogger(__name__)


def read_set(
    name: str, candidates: Path, queries: Path, judgements: Path, unknown: str = relevance.REFUSE
) -> RetrievalSet:
    """A test collection with one rule of relevance, 'test'; a grade above 0 is relevant.

    The candidates are not held in memory. They are read once to be checked, and again when they are asked for.
    Judgements of a query that is not in `queries` are left out and counted. Qrels often have more queries than are
    asked. Candidates without a text are counted and stay.

    Args:
      unknown: what is done with judgements of candidates that the set lacks: `relevance.REFUSE`, or `relevance.DROP`.

    Raises:
      UserError: one of the files is not what it should be, a judgement is of an unknown candidate, or no query is left
        that is judged; with the file and the line.
    """
    asked, qrels = read_queries(queries), read_qrels(judgements)
    known = {query: grades for query, (_, grades) in qrels.items() if query in asked}
    if not known:
        raise UserError(
            f"{judgements}: none of its {len(qrels)} queries is in {queries}, so no query is left to evaluate; are the "
            "ids written alike?"
        )
    relevance.check_relevant(known.values(), judgements)
    left_out = collections.Counter({"judged queries that are not asked": len(qrels) - len(known)})
    left_out["queries without a judgement"] = len(asked) - len(known)
    wanted = {id: at for query in known for id, at in qrels[query][0].items()}
    count = 0
    for candidate in read_candidates(candidates):
        count += 1
        wanted.pop(candidate.id, None)
        left_out["candidates without a text, which stay"] += not candidate.text.strip()
    dropped = collections.Counter[str]()
    if wanted:
        id, at = next(iter(wanted.items()))
        if unknown != relevance.DROP:
            raise UserError(
                f"{at}: the candidate '{id}' is not in {candidates}; are the judgements of another collection? "
                f"{relevance.DROP_ALL} leaves such judgements out"
            )
        known = {query: _inside(grades, wanted, dropped) for query, grades in known.items()}
        inside = {query: grades for query, grades in known.items() if grades}
        if len(inside) < len(known):
            dropped[relevance.LOST] += len(known) - len(inside)
        if not (known := inside):
            raise UserError(
                f"{judgements}: no judgement is of a candidate in {candidates}; are they of one collection?"
            )
        relevance.check_relevant(known.values(), judgements)
    for what, number in left_out.items():
        if number:
            _log.warning("set %s: %d %s", name, number, what)
    asked = {id: text for id, text in asked.items() if id in known}
    found = Stream(lambda: read_candidates(candidates), count)
    return RetrievalSet(name, asked, found, {"test": known}, left_out=dropped)


def _inside(grades: Mapping[str, int], outside: Collection[str], dropped: collections.Counter[str]) -> dict[str, int]:
    """The grades of candidates that the set has; the others are counted."""
    lost = [grade for id, grade in grades.items() if id in outside]
    dropped[relevance.OUTSIDE] += len(lost)
    dropped[relevance.RELEVANT_OUTSIDE] += sum(grade > 0 for grade in lost)
    return {id: grade for id, grade in grades.items() if id not in outside}


def read_candidates(path: Path) -> Iterator[Candidate]:
    """The candidates of a collection.tsv or a corpus.jsonl, which is told by its first character.

    Raises:
      UserError: as `msmarco.read_collection` or `beir.read_candidates`.
    """
    return beir.read_candidates(path) if text_files.first_character(path) == "{" else msmarco.read_collection(path)


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> text, of lines with a tab, or of TREC topics, which are told by their first character.

    Raises:
      UserError: as `msmarco.read_queries` or `topics.read`.
    """
    return topics.read(path) if text_files.first_character(path) == "<" else msmarco.read_queries(path)


def read_qrels(path: Path) -> dict[str, tuple[dict[str, str], dict[str, int]]]:
    """Query id -> candidate id -> the place of the judgement, and query id -> candidate id -> its grade.

    Lines that say the same again are counted in the log.

    Raises:
      UserError: a line has not four fields or a grade that is no integer, two say different things, or there is none.
    """
    qrels: dict[str, tuple[dict[str, str], dict[str, int]]] = {}
    again = 0
    for at, line in text_files.lines(path):
        fields = line.split()
        if len(fields) != 4:
            raise UserError(f"{at}: {len(fields)} fields, expected 4: query id, 0, candidate id, grade")
        query, _, id, text = fields
        places, grades = qrels.setdefault(query, ({}, {}))
        again += id in grades
        places.setdefault(id, at)
        if (grade := relevance.grade(text, at)) != grades.setdefault(id, grade):
            raise UserError(f"{at}: query '{query}' and candidate '{id}' are judged twice, and differently; drop one")
    relevance.log_again(path, "judgements", again)
    if not qrels:
        raise UserError(f"{path}: no judgement in it, so no query is left to evaluate")
    return qrels


@register
class TrecFiles(SetFormat):
    """The format 'trec': three files."""

    name = "trec"
    what = "TREC: passages or documents (TSV as MS MARCO's, or BEIR's corpus.jsonl), topics (SGML, XML or TSV), qrels"
    setting = "--config.sets.trec=corpus.jsonl,topics.txt,qrels.txt"
    example = "<top> <num> Number: 301 <title> organized crime <desc> … </top>"
    parts = ("passages", "queries", "qrels")
    options = (relevance.UNKNOWN,)

    def read(self, value: str, given: Given) -> Iterator[RetrievalSet]:
        candidates, queries, judgements = map(Path, split(value))
        yield read_set(self.name, candidates, queries, judgements, given.options[relevance.UNKNOWN])

    def preview(self, value: str) -> None:
        candidates, queries, judgements = map(Path, split(value))
        next(read_candidates(candidates), None)
        read_queries(queries)
        read_qrels(judgements)


@register
class MsMarcoFiles(TrecFiles):
    """The format 'msmarco': the same readers, so that both sets can be evaluated by one run."""

    name = "msmarco"
    what = "MS MARCO: passages or documents, queries and qrels, as TSV"
    setting = "--config.sets.msmarco=collection.tsv,queries.tsv,qrels.tsv"
    example = "1185869⇥0⇥0⇥1"

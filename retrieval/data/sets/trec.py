"""Test collections of TREC and MS MARCO: three files, of candidates, of queries and of judgements, plain or .gz.

candidates    lines of id and text with a tab between them, or BEIR's corpus.jsonl
queries       lines of id and text with a tab between them, or TREC topics: <top> <num> Number: 301 <title> ..., or as
              XML: <topic number="1"> <query> ...
judgements    lines of query id, iteration (not read), candidate id and grade, with tabs or blanks between them
"""

import collections
import logging
from collections.abc import Iterator
from pathlib import Path

from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, msmarco, relevance, topics
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import Given, SetFormat, register
from retrieval.errors import UserError
from retrieval.parsing import text_files

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
    asked, judged = read_judged(name, queries, judgements)
    wanted = {id for grades in judged.values() for id in grades}
    there, count, without_text = set[str](), 0, 0
    for candidate in read_candidates(candidates):
        count += 1
        if candidate.id in wanted:
            there.add(candidate.id)
        without_text += not candidate.text.strip()
    if without_text:
        _log.warning("set %s: %d candidates without a text, which stay", name, without_text)
    dropped = collections.Counter[str]()
    qrels = relevance.within(judgements, judged, there, str(candidates), dropped if unknown == relevance.DROP else None)
    asked = {id: text for id, text in asked.items() if id in qrels}
    found = Stream(lambda: read_candidates(candidates), count)
    return RetrievalSet(name, asked, found, {"test": qrels}, left_out=dropped)


def read_judged(name: str, queries: Path, judgements: Path) -> tuple[dict[str, str], relevance.Placed]:
    """The queries of a file that are judged, and their judgements; what has not both is counted in the log.

    Raises:
      UserError: a file is not what it should be, or no query is left.
    """
    asked, judged = read_queries(queries), relevance.read(judgements, relevance.trec_judgements(judgements))
    known = {query: grades for query, grades in judged.items() if query in asked}
    if not known:
        raise UserError(
            f"{judgements}: none of its {len(judged)} queries is in {queries}, so none is left to evaluate; are the "
            "ids written alike?"
        )
    for what, of in (("judged queries that are not asked", judged), ("queries without a judgement", asked)):
        if len(of) > len(known):
            _log.warning("set %s: %d %s", name, len(of) - len(known), what)
    return {id: text for id, text in asked.items() if id in known}, known


def read_candidates(path: Path) -> Iterator[Candidate]:
    """The candidates of a collection.tsv or a corpus.jsonl, which is told by its first character."""
    return beir.read_candidates(path) if text_files.first_character(path) == "{" else msmarco.read_collection(path)


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> text, of lines with a tab, or of TREC topics, which are told by their first character."""
    return topics.read(path) if text_files.first_character(path) == "<" else msmarco.read_queries(path)


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
        relevance.read(judgements, relevance.trec_judgements(judgements))


@register
class Judgements(SetFormat):
    """The format 'judgements': queries and judgements for run files of other systems, whose texts nobody has at hand.

    The candidates are those that are judged, without texts. No index can be built of them.
    """

    name = "judgements"
    what = "queries and judgements without texts, for run files"
    setting = "--config.sets.judgements=QUERIES.tsv,QRELS"
    example = "1048585 0 7187158 1"
    parts = ("queries", "judgements")

    def read(self, value: str, given: Given) -> Iterator[RetrievalSet]:
        queries, judgements = map(Path, split(value))
        asked, judged = read_judged(self.name, queries, judgements)
        ids = dict.fromkeys(id for query in asked for id in judged[query])
        qrels = relevance.within(judgements, judged, ids, "", None)
        yield RetrievalSet(self.name, asked, [Candidate(id, "", "") for id in ids], {"test": qrels})


@register
class MsMarcoFiles(TrecFiles):
    """The format 'msmarco': the same readers, so that both sets can be evaluated by one run."""

    name = "msmarco"
    what = "MS MARCO: passages or documents, queries and qrels, as TSV"
    setting = "--config.sets.msmarco=collection.tsv,queries.tsv,qrels.tsv"
    example = "1185869⇥0⇥0⇥1"

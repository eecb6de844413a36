"""Test collections of TREC and MS MARCO: three files, of candidates, of queries and of judgements, plain or .gz.

candidates    lines of id and text with a tab between them, or BEIR's corpus.jsonl
queries       lines of id and text with a tab between them, or TREC topics: <top> <num> Number: 301 <title> ..., or as
              XML: <topic number="1"> <query> ...
judgements    lines of query id, iteration (not read), candidate id and grade, with tabs or blanks between them

    <top> <num> Number: 301 <title> organized crime <desc> ... </top>
    <topic number="1"><query>coronavirus origin</query></topic>
    <topic><number>101</number><query>does tape help</query></topic>
    <topic number="2">A text alone.</topic>

Topics, in the SGML of old tracks whose tags are not closed, or in XML, are read by their tags: each holds what follows
it up to the next one. XML needs no root.
"""

import collections
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_text, text_files
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, msmarco, relevance
from retrieval.data.sets.beir import Candidate, RetrievalSet, Stream
from retrieval.data.sets.set_format import Context, Options, SetFormat, register

_log = logging.getLogger(__name__)

_LETTERS = re.compile(r"</?(?:b|i|u|em|strong|sub|sup)>", re.IGNORECASE)  # within a text: 'H<sub>2</sub>O'
_ALONE = "text alone"  # no name of an element
# Where a number and a text may be, the first that is there; @ is an attribute of the topic.
_NUMBERS = ("@number", "@num", "num", "number", "@id", "@qid", "qid", "id", "identifier")
_TEXTS = ("title", "query", "question", "desc", "description", "text", "content", _ALONE)

_TOPIC = re.compile(r"<top(?:ic)?(\s[^<>]*)?>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*["']([^"']*)["']""")
_TAG = re.compile(r"</?(\w+)(?:\s[^<>]*)?>")
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_LABEL = re.compile(r"^\s*(number|topic|title|description)\s*:", re.IGNORECASE)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def read_set(
    name: str, candidates: Path, queries: Path, judgements: Path, unknown: str = relevance.REFUSE
) -> RetrievalSet:
    """A test collection with one rule of relevance, 'test'; a grade above 0 is relevant.

    The candidates are not held in memory. They are read once to be checked, and again when they are asked for.
    Judgements of a query that is not in `queries` are left out and counted. Qrels often have more queries than are
    asked.

    Args:
      unknown: what is done with judgements of candidates that the set lacks: `relevance.REFUSE`, or `relevance.DROP`.

    Raises:
      UserError: one of the files is not what it should be, a judgement is of an unknown candidate, or no query is left
        that is judged; with the file and the line.
    """
    texts, rows = read_judged(name, queries, judgements)
    wanted, known, count = {row[2] for row in rows}, set[str](), 0
    for candidate in read_candidates(candidates):
        count += 1
        if candidate.id in wanted:
            known.add(candidate.id)
    dropped = collections.Counter[str]()
    counts = dropped if unknown == relevance.DROP else None
    qrels = relevance.read(judgements, rows, texts, known, str(candidates), counts)
    texts = {id: text for id, text in texts.items() if id in qrels}
    stream = Stream(lambda: read_candidates(candidates), count)
    return RetrievalSet(name, texts, stream, {"test": qrels}, left_out=dropped)


def read_judged(name: str, queries: Path, judgements: Path) -> tuple[dict[str, str], list[relevance.Row]]:
    """The queries of a file that are judged, and their judgements; what has not both is counted in the log.

    Raises:
      UserError: a file is not what it should be, or no query is left.
    """
    texts, rows = read_queries(queries), list(relevance.judgements(judgements, of_trec=True))
    judged = {row[1] for row in rows}
    if not (known := judged & texts.keys()):
        raise UserError(f"{judgements}: none of its {len(judged)} queries is in {queries}; are the ids written alike?")
    for what, of in (("judged queries that are not asked", judged), ("queries without a judgement", texts)):
        if len(of) > len(known):
            _log.warning("set %s: %d %s", name, len(of) - len(known), what)
    return {id: text for id, text in texts.items() if id in known}, [row for row in rows if row[1] in known]


def read_candidates(path: Path) -> Iterator[Candidate]:
    """The candidates of a collection.tsv or a corpus.jsonl, which is told by its first character."""
    return beir.read_candidates(path) if text_files.first_character(path) == "{" else msmarco.read_collection(path)


def read_queries(path: Path) -> dict[str, str]:
    """Query id -> text, of lines with a tab, or of TREC topics, which are told by their first character."""
    return read_topics(path) if text_files.first_character(path) == "<" else msmarco.read_queries(path)


def read_topics(path: Path) -> dict[str, str]:
    """The number and the title of each topic: what TREC calls a short query. In XML it may be the <query>.

    Where a topic has neither, its <question>, its <desc> or its text alone is what is asked. "Number:" or "Topic:" may
    stand before what they name.

    Raises:
      UserError: a topic has no number or no text, or two have the same number.
    """
    topics: dict[str, str] = {}
    _, *parts = _TOPIC.split(_COMMENT.sub("", "\n".join(line for _, line in text_files.lines(path))))
    for number, (attributes, text) in enumerate(zip(parts[::2], parts[1::2]), 1):
        at, fields = f"{path}, topic {number}", _tagged(attributes or "", text)
        id, query = (next(filter(None, map(fields.get, names)), "") for names in (_NUMBERS, _TEXTS))
        if not (id and query):
            raise UserError(f"{at}: no <{'title' if id else 'num'}>, or nothing in it; write one, or drop the topic")
        if beir.check_id(id, "number", at) in topics:
            raise UserError(f"{at}: the number '{id}' is there twice; numbers must be distinct")
        topics[id] = query
    if not topics:
        raise UserError(f"{path}: no topic in it; <top> <num> Number: 1 <title> words </top> is needed")
    return topics


def _tagged(attributes: str, text: str) -> dict[str, str]:
    """The text of a topic's elements and attributes; of equal ones the first counts."""
    fields = {f"@{name.lower()}": " ".join(value.split()) for name, value in _ATTRIBUTE.findall(attributes)}
    alone, *parts = _TAG.split(_LETTERS.sub("", _CDATA.sub(r"\1", text)))
    for tag, value in zip([_ALONE, *parts[::2]], [alone, *parts[1::2]]):
        if value := " ".join(_LABEL.sub("", foreign_text.unescape(value), count=1).split()):
            fields.setdefault(tag.lower(), value)
    return fields


@register
class TrecFiles(SetFormat):
    """The format 'trec': three files."""

    name = "trec"
    what = "TREC: passages or documents (TSV as MS MARCO's, or BEIR's corpus.jsonl), topics (SGML, XML or TSV), qrels"
    setting = "--config.sets.trec=corpus.jsonl,topics.txt,qrels.txt"
    example = "<top> <num> Number: 301 <title> organized crime <desc> … </top>"
    parts = ("passages", "queries", "qrels")
    options = (relevance.UNKNOWN,)

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        candidates, queries, judgements = map(Path, split(value))
        yield read_set(self.name, candidates, queries, judgements, context.options[relevance.UNKNOWN])

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        super().check(value, options, has_corpus)
        candidates, *others = map(Path, split(value))
        next(read_candidates(candidates), None)
        read_judged(self.name, *others)


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

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        queries, judgements = map(Path, split(value))
        texts, rows = read_judged(self.name, queries, judgements)
        qrels = relevance.read(judgements, rows, texts, {row[2] for row in rows}, str(judgements))
        ids = dict.fromkeys(id for query in texts for id in qrels[query])
        yield RetrievalSet(self.name, texts, [Candidate(id, "", "") for id in ids], {"test": qrels})


@register
class MsMarcoFiles(TrecFiles):
    """The format 'msmarco': the same readers, so that both sets can be evaluated by one run."""

    name = "msmarco"
    what = "MS MARCO: passages or documents, queries and qrels, as TSV"
    setting = "--config.sets.msmarco=collection.tsv,queries.tsv,qrels.tsv"
    example = "1185869⇥0⇥0⇥1"

"""The stage `search`: queries of one's own against the corpus, or the passages of labelled examples."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.api import answering
from retrieval.api.answering import Answer
from retrieval.api.document_index import Hit
from retrieval.api.own_search import OwnSearch
from retrieval.common import terminal
from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.pipeline.work_directory import SearchRequest
from retrieval.runs.ranking.collection import of_pairs
from retrieval.runs.weights.initial_parameters import TEXT_FIELDS
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.runs.weights.trained_run import check_towers
from retrieval.search import hit_texts

_WIDTH, _HITS = 160, 5  # of what is shown
_AT_ONCE = 32  # queries of a file
_STANDARD_INPUT = "-"

# The fields that answers take from the config of the run that asks.
USES = (
    *("seed", "model", *(f"data.{name}" for name in (*TEXT_FIELDS, "prompts")), "documents.base_url"),
    *("evaluate.depth", "fuse.dense_weight", "answer"),
)
_AROUND = 60  # characters that are shown on either side of an answer


def search(run: Run) -> None:
    """Prints the first hits of the dense index, of those of words and of both merged, each with its id, title and text.
    Where there is a reader, its answer too, and where that stands.

    For one query, or for those of a file; '-' are the lines that are typed.

    Raises:
      UserError: there is no query, or the corpus has not been indexed.
    """
    queries = _queries(run.request)
    searcher, k = OwnSearch(run, run.config.evaluate.depth), min(_HITS, run.config.evaluate.depth)
    reader = answering.open_answerer(run)
    with terminal.while_read():
        for several in queries:
            for query, lists in zip(several, searcher.search(several, max(k, reader.paragraphs if reader else 0))):
                system = answering.system_that_is_read(lists)
                answer = next(iter(reader.answers(query, lists[system])), None) if reader else None
                shown = {system: hits[:k] for system, hits in lists.items()}
                if run.request.as_json:
                    print(as_json(query, shown, answer, system), flush=True)
                else:
                    heading = f"\nquery: {terminal.one_line(query)}\n" if run.request.queries else ""
                    print(heading + listed(shown, searcher.titles) + (said(answer) if answer else ""), flush=True)


def _queries(request: SearchRequest) -> Iterator[Sequence[str]]:
    """The queries, as many at once as are there."""
    if bool(request.query.strip()) == bool(request.queries):
        ways = "--query='how do I read a zip archive', --queries=FILE, or --queries=- for what is typed"
        raise UserError(f"--stage=search takes one of {ways}")
    if request.query.strip():
        return iter([[request.query]])
    if request.queries == _STANDARD_INPUT:
        lines = enumerate(sys.stdin.buffer, 1)
        texts = (text_files.decoded(line, f"standard input, line {number}").strip() for number, line in lines)
        return ([text] for text in texts if text)
    if not (lines := [text.strip() for _, text in text_files.lines(Path(request.queries))]):
        raise UserError(f"--queries={request.queries}: no query in it; write one a line")
    return (lines[start : start + _AT_ONCE] for start in range(0, len(lines), _AT_ONCE))


def listed(lists: Mapping[str, Sequence[Hit]], titles: Mapping[str, str]) -> str:
    """The hits of each system for a terminal: a text once, with the ids of those that are nearly the same below it.

    A system that finds nothing says so.
    """
    lines: list[str] = []
    for system, hits in lists.items():
        lines += ["", titles[system]]
        groups: dict[int, list[int]] = {}
        for place, first in enumerate(hit_texts.first_duplicates([each.text for each in hits])):
            groups.setdefault(first, []).append(place)
        for first, (_, *others) in groups.items():
            lines.append(hit(first + 1, hits[first]))
            if others:
                ids = ", ".join(hits[place].id for place in others)
                lines.append(f"     nearly the same: {terminal.one_line(ids)}")
        if not hits:
            lines.append("  nothing: no passage matches the query")
    return "\n".join(lines)


def hit(rank: int, result: Hit) -> str:
    """Two lines for a terminal, and the address; what the passage holds cannot do anything to it."""
    headings = " / ".join(part for part in (result.title, result.section) if part)
    id, title, text = (terminal.one_line(part) for part in (result.id, headings, result.text))
    text = text if len(text) <= _WIDTH else text[:_WIDTH].rsplit(" ", 1)[0] + " ..."
    url = result.url and f"\n     {terminal.one_line(result.url)}"
    return f"{rank:3}. {result.score:9.4f}  [{id}]{title and '  '}{title}\n     {text}{url}"


def said(answer: Answer) -> str:
    """The answer for a terminal, with the text around its place."""
    start, end, text = answer.start, answer.end, answer.hit.text
    before = ("..." if start > _AROUND else "") + text[max(0, start - _AROUND) : start]
    after = text[end : end + _AROUND] + ("..." if end + _AROUND < len(text) else "")
    id, around = terminal.one_line(answer.hit.id), terminal.one_line(f"{before}>>{answer.text}<<{after}")
    place = f"[{id}], characters {start} to {end}: {around}"
    return f"\n\nanswer\n  {answer.score:12.4f}  {terminal.one_line(answer.text)}\n     {place}"


def as_json(query: str, lists: Mapping[str, Sequence[Hit]], answer: Answer | None = None, system: str = "") -> str:
    """One line of JSON: the query, the hits of each system, and the answer of a reader in those of one."""
    hits = {system: [each.fields() for each in results] for system, results in lists.items()}
    line: dict[str, Any] = {"query": query, "systems": hits}
    if answer:
        place = {"docid": answer.hit.id, "start": answer.start, "end": answer.end, "system": system}
        line["answer"] = {"answer": answer.text, **place, "score": answer.score}
    return json.dumps(line)


def reads(config: ConfigDict) -> list[str | Read]:
    """What is searched: an index, the texts that it was built from, and the model that embedded them."""
    towers = [Read("encode", optional=True, must_match=True), Read("train", optional=True)]
    others = [Read(kind.stage, optional=True) for kind in TRAINED.values() if kind.stage]
    return ["index", Read("prepare", must_match=True), "sets", *towers, *others, *of_pairs(config)]


STAGES.register(
    "search",
    Stage(
        search,
        check=(check_towers, answering.check),
        also_reads=USES,
        reads=reads,
        files=Run.vocabulary_inputs,
        fetch=answering.fetch,
    ),
)

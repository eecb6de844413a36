"""The format of evaluation sets 'ir': data sets of the package ir_datasets, by their names there, such as beir/scifact.

Names of the same documents, such as `ir:beir/scifact/train,ir:beir/scifact/test`, are one set, beir-scifact, with a
rule of relevance for each: `split.set=beir-scifact` and `split.train=train` train on one of them.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.common import libraries
from retrieval.common.errors import UserError, first_line
from retrieval.data.corpora.source_paths import split
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.set_format import Context, Options, SetFormat, register

_PREFIX = "ir:"
_OF_EMPTY = "judgements of no document or query with a text, left out"


@register
class IrDatasets(SetFormat):
    """Each name is of a data set with documents, queries and judgements."""

    name = "ir"
    what = "data sets of ir_datasets by name"
    setting = "--config.sets.ir=ir:NAME,…"
    example = "ir:beir/scifact/test"
    options = (relevance.UNKNOWN,)

    def sources(self, value: str) -> list[str]:
        return []  # of files: the name says all, and the package knows their sums

    def names(self, value: str) -> list[str]:
        return [parent.replace("/", "-") for parent in _by_documents(value)]

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        for source in split(value):
            data = _opened(source)
            for kind in ("docs", "queries", "qrels"):
                if not getattr(data, f"has_{kind}")():
                    raise UserError(f"{source}: no {kind} in ir_datasets; name a part of it that has, such as test")

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        is_dropped = context.options[relevance.UNKNOWN] == relevance.DROP
        for parent, rules in _by_documents(value).items():
            with _named(f"{_PREFIX}{parent}"):
                yield _read(parent, rules, is_dropped)


def _by_documents(value: str) -> dict[str, dict[str, str]]:
    """The name of what has the documents -> rule of relevance -> the source that has its judgements."""
    parents: dict[str, dict[str, str]] = {}
    for source in split(value):
        name = source.removeprefix(_PREFIX)
        with _named(source):
            parent = _package().docs_parent_id(name)
        rule = name.removeprefix(parent).strip("/").replace("/", "-") or "test"
        parents.setdefault(parent, {})[rule] = source
    return parents


def _read(parent: str, rules: dict[str, str], drops: bool) -> RetrievalSet:
    first = next(iter(rules.values()))
    queries, judged = dict[str, str](), {}
    for rule, source in rules.items():
        data = _opened(source)
        rows = [(source, row.query_id, row.doc_id, row.relevance) for row in data.qrels_iter()]
        texts = {query.query_id: _text(query) for query in data.queries_iter()}
        queries |= dict.fromkeys((row[1] for row in rows), "") | queries | texts  # unknown ones count as empty
        judged[rule] = Path(source), rows
    name = parent.replace("/", "-")
    return beir.without_empty(name, lambda: _candidates(first), queries, judged, parent, _OF_EMPTY, drops)


def _candidates(source: str) -> Iterator[Candidate]:
    with _named(source):
        for document in _opened(source).docs_iter():
            title = getattr(document, "title", "") if hasattr(document, "text") else ""
            yield Candidate(document.doc_id, title or "", _text(document))


def _text(record: Any) -> str:
    """Its field `text`; of one with other fields what the package calls its text."""
    return (record.text if hasattr(record, "text") else record.default_text()) or ""


def _opened(source: str) -> Any:
    with _named(source):
        return _package().load(source.removeprefix(_PREFIX))


@contextlib.contextmanager
def _named(source: str) -> Iterator[None]:
    """Makes a `UserError` of what the package raises: it knows no such name, or cannot fetch the files."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of as many types as it has sources
        problem = "knows no such data set" if isinstance(error, KeyError) else f"cannot fetch it ({first_line(error)})"
        remedy = "https://ir-datasets.com has the list; IR_DATASETS_HOME may be a folder that has it"
        raise UserError(f"{source}: ir_datasets {problem}; {remedy}") from error


def _package() -> Any:
    return libraries.package("config.sets.ir", "ir_datasets", "ir")

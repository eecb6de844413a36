"""Labelled queries as JSON lines, with the field names that people use:

    {"query": ..., "positives": [...], "negatives": [...]}                      also "pos", "neg", "hard_negatives"
    {"anchor": ..., "positive": ..., "negative": ..., "negative_2": ...}        sentence-transformers
    {"query": ..., "positive_passages": [...], "negative_passages": [...]}      Tevatron
    {"question": ..., "answers": [...], "ctxs": [...]}                          what DPR's retriever writes
    {"query": ..., "answer": ...}                                               also "document", "passage"

`record_fields` has the others, with scores, classes and ids. A text is a string or {"docid": ..., "title": ...,
"text": ...}; a field has one text or an array of them. Of `ctxs` those with "isgold" are positives; where a line has
none, those with "hasanswer". A passage that holds an answer is no negative of its question. Other fields, such as
"prompt", are not read, and counted. `config.pairs.fields` names fields that are called otherwise.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.data.labelled import record_examples
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import register
from retrieval.data.labelled.record_format import RecordFormat
from retrieval.parsing import json_lines


def read(path: Path, counts: Counts, names: Mapping[str, str] | None = None) -> Iterator[Example]:
    """The examples of a file (.jsonl or .jsonl.gz) whose texts stand in it, one after the other.

    Args:
      names: as `record_fields.named` gives them.

    Raises:
      UserError: a line is not JSON, or as `record_examples.examples`.
    """
    return record_examples.examples(_records(path), counts, names or {})


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    return json_lines.objects(path, '{"query": ..., "positive": ...}')


@register
class JsonLines(RecordFormat):
    """The format 'jsonl'."""

    name = "jsonl"
    what = "JSON lines: lists, sentence-transformers' fields, Tevatron's, BGE's, Nomic's, or DPR's `ctxs`"
    setting = "--config.pairs.files=FILE.jsonl,…"
    example = '{"anchor": "q", "positive": "a", "negative": "b"}'
    first = "{"

    def records(self, path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """As `RecordFormat.records`."""
        return _records(path)

"""Labelled queries as JSON lines, with the field names that people use:

    {"query": ..., "positives": [...], "negatives": [...]}                      also "pos", "neg", "hard_negatives"
    {"anchor": ..., "positive": ..., "negative": ..., "negative_2": ...}        sentence-transformers
    {"query": ..., "positive_passages": [...], "negative_passages": [...]}      Tevatron
    {"question": ..., "answers": [...], "ctxs": [...]}                          what DPR's retriever writes

A text is a string or {"docid": ..., "title": ..., "text": ...}; a field has one text or an array of them. Of `ctxs`
those with "isgold" are positives; where a line has none, those with "hasanswer". A passage that holds an answer is no
negative of its question. Other fields, such as "prompt", are not read, and counted; "pos_scores" of a teacher go into
`config.pairs.teacher`.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.labelled.grouping import HOLDS_ANSWER, Counts, Example, example, holds_answer, text_id
from retrieval.data.labelled.labelled_format import LabelledFormat, Settings, register
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import foreign_json, text_files

_QUERY = ("query", "anchor", "question")
_POSITIVE = ("positive", "positives", "pos", "positive_passages")
_NEGATIVE = re.compile(r"(hard_)?(negatives?|neg)(_passages|_\d+)?")
_ID_FIELDS = ("docid", "_id", "id")
_READ = (*_QUERY, *_POSITIVE, "query_id", "qid", *_ID_FIELDS)  # a query needs no id
LISTED, _GOLD = "ctxs", "isgold"


def read(path: Path, counts: Counts) -> Iterator[Example]:
    """The examples of a file (.jsonl or .jsonl.gz), one after the other.

    Raises:
      UserError: a line is not JSON, its query or its positives are in no field or in two, or a text is of another kind.
    """
    for at, line in text_files.lines(path):
        record = foreign_json.parse(line, at)
        if not isinstance(record, dict):
            raise UserError(f'{at}: not a JSON object; one like {{"query": ..., "positive": ...}} is needed')
        query = text_files.string(record, _one(record, _QUERY, at), at)
        if LISTED in record:
            if labelled := example(query, *listed(record, at, counts), at, counts, _answers(record, at)):
                yield labelled
            continue
        for field in record:
            if not (field in _READ or _NEGATIVE.fullmatch(field)):
                counts.leave_out(f"values of the field '{field}', which is not read", at)
        positives = _texts(record, _one(record, _POSITIVE, at), at)
        fields = [field for field in record if _NEGATIVE.fullmatch(field) and record[field] is not None]
        negatives = [text for field in fields for text in _texts(record, field, at)]
        if labelled := example(query, positives, negatives, at, counts):
            yield labelled


def _one(record: dict[str, Any], names: Sequence[str], at: str) -> str:
    """The field of a record that has one of the names."""
    given = [name for name in names if name in record]
    if len(given) != 1:
        wrong = f"has both '{given[0]}' and '{given[1]}'" if given else "has no field for it"
        raise UserError(f"{at}: one of {', '.join(names)} is needed, and the line {wrong}")
    return given[0]


def listed(record: dict[str, Any], at: str, counts: Counts) -> tuple[list[Candidate], list[Candidate]]:
    """The positives and the negatives of a record with `ctxs`, which was read at `at`.

    Raises:
      UserError: a text is of another kind.
    """
    texts = _texts(record, LISTED, at)
    values = record[LISTED] if isinstance(record[LISTED], list) else [record[LISTED]]
    are_gold = [isinstance(value, dict) and bool(value.get(_GOLD)) for value in values]
    hold_answer = [isinstance(value, dict) and holds_answer(value) for value in values]
    are_positive = are_gold if any(are_gold) else hold_answer
    negatives: list[Candidate] = []
    for text, is_positive, holds in zip(texts, are_positive, hold_answer):
        if holds and not is_positive:
            counts.leave_out(HOLDS_ANSWER, at)
        elif not is_positive:
            negatives.append(text)
    return [text for text, is_positive in zip(texts, are_positive) if is_positive], negatives


def _answers(record: dict[str, Any], at: str) -> Sequence[str]:
    return text_files.strings(record, "answers", at) if record.get("answers") is not None else ()


def _texts(record: dict[str, Any], field: str, at: str) -> list[Candidate]:
    values = record[field]
    values = values if isinstance(values, list) else [values]
    return [_text(value, field, f"{at}, {field} {number}") for number, value in enumerate(values, 1)]


def _text(value: Any, field: str, at: str) -> Candidate:
    if not isinstance(value, dict):
        return Candidate("", "", text_files.string({field: value}, field, at))
    title, text = text_files.string(value, "title", at, default=""), text_files.string(value, "text", at)
    return Candidate(text_id(value, _ID_FIELDS, at), title, text)


@register
class JsonLines(LabelledFormat):
    """The format 'jsonl'."""

    name = "jsonl"
    what = "JSON lines: lists, sentence-transformers' fields, Tevatron's, or DPR's `ctxs`"
    setting = "--config.pairs.files=FILE.jsonl,…"
    example = '{"anchor": "q", "positive": "a", "negative": "b"}'
    first = "{"

    def read(self, path: Path, counts: Counts, settings: Settings, folder: Path, pool: int) -> Iterator[Example]:
        return read(path, counts)

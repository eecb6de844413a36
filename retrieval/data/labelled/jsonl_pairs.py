"""Labelled queries as JSON lines, with the field names that people use:

    {"query": ..., "positives": [...], "negatives": [...]}                      also "pos", "neg", "hard_negatives"
    {"anchor": ..., "positive": ..., "negative": ..., "negative_2": ...}        sentence-transformers
    {"query": ..., "positive_passages": [...], "negative_passages": [...]}      Tevatron
    {"question": ..., "answers": [...], "ctxs": [...]}                          what DPR's retriever writes
    {"query": ..., "answer": ...}                                               also "document", "passage"

A text is a string or {"docid": ..., "title": ..., "text": ...}; a field has one text or an array of them. Of `ctxs`
those with "isgold" are positives; where a line has none, those with "hasanswer". A passage that holds an answer is no
negative of its question. A pair with "label" 0 and no negatives is none, and counted. Other fields, such as "prompt",
are not read, and counted; "pos_scores" of a teacher go into `config.pairs.teacher`. `config.pairs.fields` names fields
that are called otherwise.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval import errors
from retrieval.data.labelled.grouping import HOLDS_ANSWER, Counts, Example, example, holds_answer, text_id
from retrieval.data.labelled.labelled_format import LabelledFormat, Settings, register
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import foreign_json, text_files

_QUERY = ("query", "anchor", "question")
_POSITIVE = ("positive", "positives", "pos", "positive_passages")
_NEGATIVE = re.compile(r"(hard_)?(negatives?|neg)(_passages|_\d+)?")
_PAIRED = ("answer", "document", "passage")  # the positive, where no field of _POSITIVE is there
_LABEL = "label"
_ID_FIELDS = ("docid", "_id", "id")
_READ = (*_QUERY, *_POSITIVE, "query_id", "qid", *_ID_FIELDS)  # a query needs no id
LISTED, _GOLD = "ctxs", "isgold"
NOT_READ = "values of the field '{}', which is not read"
_SHOWN = 40  # characters of a field's name in an error: it may be a text


def read(path: Path, counts: Counts, names: Mapping[str, str] | None = None) -> Iterator[Example]:
    """The examples of a file (.jsonl or .jsonl.gz), one after the other.

    Args:
      names: as `named` gives them.

    Raises:
      UserError: a line is not JSON, or as `examples`.
    """
    yield from examples(_records(path), counts, names or {})


def named(value: str) -> dict[str, str]:
    """What `config.pairs.fields` says, such as 'query=title,positive=body': our name of a field -> the file's.

    Raises:
      UserError: it says something else.
    """
    names: dict[str, str] = {}
    for part in filter(None, value.split(",")):
        ours, _, theirs = part.partition("=")
        if not theirs or ours in names or not (ours in (_QUERY[0], _POSITIVE[0]) or _NEGATIVE.fullmatch(ours)):
            raise UserError(
                f"config.pairs.fields={value}: '{part}' is no query=FIELD, positive=FIELD, negative=FIELD or "
                "negative_2=FIELD, each once; separate them by commas"
            )
        names[ours] = theirs
    return names


def fields_read(there: Sequence[str], names: Mapping[str, str], at: str) -> list[str]:
    """Those of the columns of a file that its examples are made of.

    Raises:
      UserError: the query or the positives are in none or in two, or one that is named is not there; with those there.
    """
    for name in names.values():
        _require(name, there, at)
    found = _renamed(dict(zip(there, there)), names, at)
    _one(found, _QUERY, at)
    more = (LISTED, "answers") if LISTED in found else (_one(found, _positive_names(found), at), _LABEL)
    return [found[field] for field in found if _is_read(field) or field in more]


def examples(
    records: Iterable[tuple[str, dict[str, Any]]], counts: Counts, names: Mapping[str, str]
) -> Iterator[Example]:
    """The examples of records, each after the place where it stands; `names` are as `named` gives them.

    Raises:
      UserError: a query or its positives are in no field or in two, or a text is of another kind.
    """
    for at, record in records:
        record = _renamed(record, names, at)
        query = text_files.string(record, _one(record, _QUERY, at), at)
        if LISTED in record:
            if labelled := example(query, *listed(record, at, counts), at, counts, _answers(record, at)):
                yield labelled
            continue
        positive = _one(record, _positive_names(record), at)
        fields = [field for field in record if _NEGATIVE.fullmatch(field) and record[field] is not None]
        is_judged = not fields and record.get(_LABEL) in (0, 1)  # else it may be a class, or a teacher's margin
        for field in record:
            if not (_is_read(field) or field == positive or (is_judged and field == _LABEL)):
                counts.leave_out(NOT_READ.format(field), at)
        if is_judged and not record[_LABEL]:
            counts.leave_out("pairs with the label 0", at)
            continue
        positives = _texts(record, positive, at)
        negatives = [text for field in fields for text in _texts(record, field, at)]
        if labelled := example(query, positives, negatives, at, counts):
            yield labelled


def _records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for at, line in text_files.lines(path):
        record = foreign_json.parse(line, at)
        if not isinstance(record, dict):
            raise UserError(f'{at}: not a JSON object; one like {{"query": ..., "positive": ...}} is needed')
        yield at, record


def _renamed(record: dict[str, Any], names: Mapping[str, str], at: str) -> dict[str, Any]:
    """A record with our names of the fields that `names` has; others for the same are dropped."""
    if not names:
        return record
    for ours, theirs in names.items():
        if ours in (_QUERY[0], _POSITIVE[0]):  # a line may have no negative
            _require(theirs, list(record), at)
    drops_negatives = any(_NEGATIVE.fullmatch(ours) for ours in names)
    dropped = (*(_QUERY if _QUERY[0] in names else ()), *(_POSITIVE if _POSITIVE[0] in names else ()))
    own = {ours: record[theirs] for ours, theirs in names.items() if theirs in record}
    taken = set(names.values())
    return own | {
        field: value
        for field, value in record.items()
        if not (field in taken or field in dropped or (drops_negatives and _NEGATIVE.fullmatch(field)))
    }


def _require(name: str, there: Sequence[str], at: str) -> None:
    if name not in there:
        raise UserError(f"{at}: no field '{name}', which config.pairs.fields names; there are {_shown(there)}")


def _is_read(field: str) -> bool:
    return field in _READ or bool(_NEGATIVE.fullmatch(field))


def _positive_names(record: Mapping[str, Any]) -> Sequence[str]:
    """The names of the field of positives: those of a pair's second text count where there is none of the others."""
    return _POSITIVE if any(name in record for name in _POSITIVE) else _POSITIVE + _PAIRED


def _one(record: Mapping[str, Any], names: Sequence[str], at: str) -> str:
    """The field of a record that has one of the names."""
    given = [name for name in names if name in record]
    if len(given) > 1:
        raise UserError(f"{at}: one of {', '.join(names)} is needed, and there are both '{given[0]}' and '{given[1]}'")
    if not given:
        raise UserError(
            f"{at}: one of {', '.join(names)} is needed, and there are {_shown(record)}; name it in config.pairs.fields"
        )
    return given[0]


def _shown(names: Iterable[str]) -> str:
    return errors.listed(name[:_SHOWN] for name in names) or "no fields"


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
        return read(path, counts, named(settings.fields))

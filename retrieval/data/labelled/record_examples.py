"""Labelled examples of records with named fields, wherever these are stored; `record_fields` says what fields are."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from retrieval.data.labelled import record_fields, record_values
from retrieval.data.labelled.grouping import HOLDS_ANSWER, Counts, Example, example, holds_answer
from retrieval.data.labelled.record_fields import (
    CLASS,
    CTXS,
    DOCUMENTS,
    LISTED,
    METADATA,
    OBJECTIVE,
    OBJECTIVES,
    TUPLE,
    TWO,
    Layout,
)
from retrieval.data.labelled.record_values import ALIKE, NEITHER
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.parsing import identifiers, text_files
from retrieval.runtime import hashing

_GOLD = "isgold"
_JUDGEMENTS = (0, 1, "0", "1")
_NO_CLASS = "-1"  # as the library `datasets` numbers it
NOT_READ = "values of the field '{}', which is not read"
Record = dict[str, Any]


class Texts(Protocol):
    """What queries and documents of records are."""

    def query(self, value: Any, field: str, at: str) -> str:
        """The query that a field names."""
        ...

    def documents(self, value: Any, field: str, at: str) -> list[Candidate]:
        """The documents that a field names."""
        ...


class Written:
    """Texts that stand in the records themselves."""

    def query(self, value: Any, field: str, at: str) -> str:
        """The text."""
        return text_files.string({field: value}, field, at)

    def documents(self, value: Any, field: str, at: str) -> list[Candidate]:
        """The texts."""
        return record_values.texts(value, field, at)


WRITTEN = Written()


def examples(
    records: Iterable[tuple[str, Record]], counts: Counts, names: Mapping[str, str], texts: Texts = WRITTEN
) -> Iterator[Example]:
    """The examples of records, each after the place where it stands.

    Args:
      names: as `record_fields.named` gives them.
      texts: what the ids of records stand for, where they have ids.

    Raises:
      UserError: a field is missing, or there twice; a value is of another kind; or a record has other fields than the
        first, so that it is another kind of example.
    """
    layouts: dict[tuple, Layout] = {}
    same, classes = _Same(), _Classes(counts)
    for at, record in records:
        record = record_fields.renamed(record, names, at)
        layout = layouts.get(key := (has_objective(record), *record))
        if not layout:
            layout = layouts[key] = layout_of(record, names, at)
        same.check(layout, record, at)
        if layout.kind == CLASS:
            yield from classes.add(record[layout.query], record[layout.labels], at)
        elif layout.kind == OBJECTIVES:
            yield from _objectives(record, counts, at)
        elif layout.kind == CTXS:
            query = text_files.string(record, layout.query, at)
            answers = text_files.strings(record, "answers", at) if record.get("answers") is not None else ()
            if labelled := example(query, *listed(record, at, counts), at, counts, answers):
                yield labelled
        else:
            yield from _example(record, layout, texts, counts, at)
    yield from classes.rest()


def layout_of(record: Record, names: Mapping[str, str], at: str) -> Layout:
    """What the fields of a record are, which have our names; errors are those of `record_fields.layout`."""
    return record_fields.layout(list(record), at, has_objective(record), names)


def _example(record: Record, layout: Layout, texts: Texts, counts: Counts, at: str) -> Iterator[Example]:
    """That of a query and its documents, if it has some."""
    query = (texts if layout.ids[1] else WRITTEN).query(record[layout.query], layout.query, at)
    of_documents = texts if layout.ids[0] else WRITTEN
    documents, negatives = (
        [text for field in fields for text in of_documents.documents(record[field], field, at)]
        for fields in (_given(record, layout.documents) or layout.documents, _given(record, layout.negatives))
    )
    for field in _unread(record, layout, bool(negatives)):
        counts.leave_out(NOT_READ.format(field), at)
    scores: Sequence[float] = ()
    if layout.scores and (negatives or layout.kind != TUPLE):
        values = [(field, record[field]) for field in layout.scores]
        if (every := _with_empty(record, layout, negatives, values, len(documents), at)) is not None:
            negatives = every
        scores = record_values.scores(values, len(documents), len(negatives), at)
    if layout.kind == DOCUMENTS:
        documents, negatives, scores = _of_list(record, layout, documents, scores, at)
    elif layout.labels and not negatives and (verdict := _verdict(record, layout, at)) is not None:
        if verdict == NEITHER:
            counts.leave_out("pairs of a class that says nothing, such as neutral", at)
            return
        documents, negatives = (documents, []) if verdict == ALIKE else ([], documents)
    of_negatives = bool(layout.labels)
    if labelled := example(query, documents, negatives, at, counts, scores=scores, is_of_negatives=of_negatives):
        yield labelled


def _with_empty(
    record: Record, layout: Layout, negatives: list[Candidate], values: list[tuple[str, Any]], positives: int, at: str
) -> list[Candidate] | None:
    """The negatives, and an empty one for each null, which is left out with its score; None where nulls have none.

    Raises:
      UserError: the scores may be those of what is there, or margins of every column.
    """
    columns = layout.negatives
    if len(negatives) != len(_given(record, columns)) or len(negatives) == len(columns):
        return None
    count = sum(len(record_values.items(value)) for _, value in values)
    if count == positives + len(negatives):
        if len(values) == positives == 1 and count == len(columns):
            raise UserError(
                f"{at}: a negative is null, and {values[0][0]} may be {count} scores or {count} margins: give each "
                "document a score, the null too"
            )
        return None
    remaining = iter(negatives)
    every = [Candidate("", "", "") if record[field] is None else next(remaining) for field in columns]
    return every if count - len(columns) in (0, positives) else None


def _given(record: Record, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if record[field] is not None]


def _of_list(
    record: Record, layout: Layout, documents: Sequence[Candidate], scores: Sequence[float], at: str
) -> tuple[list[Candidate], list[Candidate], list[float]]:
    """Positives, negatives and scores of a list of documents. Without judgements the one that scores best is right."""
    if layout.labels:
        are_right = record_values.judgements(record[layout.labels], layout.labels, len(documents), at)
        right, wrong = (
            [text for text, is_right in zip(documents, are_right) if is_right == side] for side in (True, False)
        )
        return right, wrong, []
    if not documents:
        raise UserError(f"{at}: no document in {', '.join(layout.documents)}; give some, or drop the record")
    best = max(range(len(documents)), key=scores.__getitem__)
    order = [best, *(place for place in range(len(documents)) if place != best)]
    return [documents[best]], [documents[place] for place in order[1:]], [scores[place] for place in order]


def _verdict(record: Record, layout: Layout, at: str) -> int | None:
    """What the class of a pair says; None where it says nothing: that of a query with a positive may be anything."""
    value = record[layout.labels]
    if layout.kind == TWO:
        return record_values.verdict(value, layout.labels, layout.query == record_fields.PREMISES[0], at)
    return record_values.verdict(value, layout.labels, False, at) if value in _JUDGEMENTS else None


def _unread(record: Record, layout: Layout, has_negatives: bool) -> list[str]:
    """The fields that are passed over. Of a tuple with negatives its label is one, of one without them its scores."""
    read = set(layout.fields)
    if layout.kind == TUPLE:
        is_judged = not has_negatives and layout.labels and record[layout.labels] in _JUDGEMENTS
        read -= {layout.labels} if not is_judged else set()
        read -= set(layout.scores) if not has_negatives else set()
    return [field for field in record if not (field in read or field in record_fields.NO_MATTER)]


class _Same:
    """Checks that the records of a file are of one sort and, where each negative has its field, of one width."""

    def __init__(self) -> None:
        self._sort, self._fields, self._width, self._at = None, "", 0, ""

    def check(self, layout: Layout, record: Record, at: str) -> None:
        """Checks a record against those before it.

        Raises:
          UserError: it is another sort of example, or has another number of negatives.
        """
        if not self._sort:
            self._sort, self._fields, self._at = layout.sort, ", ".join(layout.fields), at
        if layout.sort != self._sort:
            raise UserError(
                f"{at}: its fields are {', '.join(layout.fields)}, and those of {_place(self._at)} are {self._fields}: "
                "make a file of each sort"
            )
        columns = layout.documents if layout.kind == DOCUMENTS else layout.negatives
        width = sum(not isinstance(record[name], list) for name in columns) if _given(record, columns) else 0
        if not width or (layout.ids[0] and len(columns) == 1):
            return
        self._width = self._width or width
        if width != self._width:
            what = "documents" if layout.kind == DOCUMENTS else "negatives"
            raise UserError(
                f"{at}: {width} {what}, and records before it have {self._width}: give each as many, or a list of them"
            )


def _place(at: str) -> str:
    return at.rpartition(", ")[2]


class _Classes:
    """Pairs of texts of one class: each text asks for the one before it, and the first of a class for its last one."""

    def __init__(self, counts: Counts):
        self._counts = counts
        self._first: dict[str, tuple[str, str]] = {}
        self._last: dict[str, str] = {}
        self._seen: set[bytes] = set()

    def add(self, value: Any, of: Any, at: str) -> Iterator[Example]:
        """The pair of one more text of a class, if there is one before it."""
        text, label = text_files.string({"text": value}, "text", at), identifiers.of_value(of, "label", at)
        if label == _NO_CLASS:
            self._counts.leave_out("texts without a class", at)
            return
        if (sum := hashing.digest(text)) in self._seen:
            self._counts.leave_out("texts that come again", at)
            return
        if not text.strip():
            self._counts.leave_out("empty texts", at)
            return
        self._seen.add(sum)
        if label in self._last:
            yield Example(text, (Candidate("", "", self._last[label]),), label=label)
        else:
            self._first[label] = text, at
        self._last[label] = text

    def rest(self) -> Iterator[Example]:
        """The pairs of the first texts."""
        for label, (text, at) in self._first.items():
            if self._last[label] == text:
                self._counts.leave_out("texts that are alone in their class", at)
            else:
                yield Example(text, (Candidate("", "", self._last[label]),), label=label)


def has_objective(record: Record) -> bool:
    """Whether a record says itself what its fields are, as Nomic's do."""
    metadata = record.get(METADATA)
    return isinstance(metadata, dict) and isinstance(metadata.get(OBJECTIVE), dict)


def _objectives(record: Record, counts: Counts, at: str) -> Iterator[Example]:
    """The examples that a record of Nomic says it has, by names: {"paired": [[query, document]], "triplet": [...]}."""
    objectives = record[METADATA][OBJECTIVE]
    for _ in objectives.get("self") or ():
        counts.leave_out("objectives of a text with itself", at)
    for fields in itertools.chain(objectives.get("paired") or (), objectives.get("triplet") or ()):
        if not isinstance(fields, list) or not 2 <= len(fields) <= 3 or not set(map(str, fields)) <= record.keys():
            there = record_fields.shown(record)
            raise UserError(f"{at}: the objective {fields!r:.80} names no two or three fields of it; there are {there}")
        query = text_files.string(record, fields[0], at)
        positives, negatives = ([*record_values.texts(record[field], field, at)] for field in (fields[1], fields[-1]))
        if labelled := example(query, positives, negatives if len(fields) == 3 else (), at, counts):
            yield labelled


def listed(record: Record, at: str, counts: Counts) -> tuple[list[Candidate], list[Candidate]]:
    """The positives and the negatives of a record with `ctxs`, which was read at `at`.

    Raises:
      UserError: a text is of another kind.
    """
    texts = record_values.texts(record[LISTED], LISTED, at)
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

"""Labelled examples of records with named fields, wherever these are stored; `record_fields` says what fields are."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import scalars, text_files
from retrieval.common.runtime import hashing
from retrieval.data.labelled import record_fields, record_values
from retrieval.data.labelled.grouping import Counts, Example, example
from retrieval.data.labelled.id_texts import TextsOfIds
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings
from retrieval.data.labelled.record_fields import CLASS, DOCUMENTS, TUPLE, TWO, Layout, Shape
from retrieval.data.labelled.record_values import ALIKE, NEITHER
from retrieval.data.sets.beir import Candidate

_JUDGEMENTS = (0, 1, "0", "1")
_NO_CLASS = "-1"  # as the library `datasets` numbers it
NOT_READ = "values of the field '{}', which is not read"
Record = dict[str, Any]


class RecordFormat(LabelledFormat):
    """A format of records with named fields. One overrides `records`."""

    def records(self, path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, Record]]:
        """The records of a file, each after the place where it stands.

        Args:
          counts: values that are not read are counted there.
          names: as `record_fields.named` gives them.

        Raises:
          UserError: the file is none of this format.
        """
        raise NotImplementedError(f"the format '{self.name}' of labelled examples has no records")

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        """As `LabelledFormat.read`."""
        has_ids = any(self._layout(path, reading.settings).ids)
        opened = TextsOfIds(reading.settings, reading.folder) if has_ids else contextlib.nullcontext()
        with opened as texts:
            yield from self._examples(path, reading.settings, reading.counts, texts)

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        """As `LabelledFormat.sample`. Of ids the texts are missing: the ids stand for them."""
        self._layout(path, settings)
        return self._examples(path, settings, Counts(), None)

    def shape(self, path: Path, settings: Settings) -> Shape:
        """As `LabelledFormat.shape`."""
        return record_fields.shape(self._layout(path, settings))

    def needed(self, path: Path, settings: Settings) -> Sequence[str]:
        """As `LabelledFormat.needed`: the first record tells."""
        return list(itertools.compress(("collection", "queries"), self._layout(path, settings).ids))

    def _layout(self, path: Path, settings: Settings) -> Layout:
        """What the fields of a file are: those of its first record."""
        for _, _, layout in self._records(path, settings, Counts()):
            return layout
        raise UserError(f"{path}: no record in it; copy or download it again, or leave it out")

    def _records(self, path: Path, settings: Settings, counts: Counts) -> Iterator[tuple[str, Record, Layout]]:
        """The records with our names of their fields, and what these are."""
        names, layouts = record_fields.named(settings.fields), dict[tuple, Layout]()
        for at, record in self.records(path, counts, names):
            record = record_fields.renamed(record, names, at)
            if (key := tuple(record)) not in layouts:
                layouts[key] = record_fields.layout(key, at, names)
            yield at, record, layouts[key]

    def _examples(self, path: Path, settings: Settings, counts: Counts, texts: TextsOfIds | None) -> Iterator[Example]:
        """The examples of a file.

        Args:
          texts: what ids stand for; without it they stand for themselves.

        Raises:
          UserError: a field is missing, or there twice; a value is of another kind; or a record has other fields than
            the first, so that it is another kind of example.
        """
        same, classes = _Same(), _Classes(counts)
        for at, record, layout in self._records(path, settings, counts):
            same.check(layout, record, at)
            if layout.kind == CLASS:
                yield from classes.add(record[layout.query], record[layout.labels], at)
            else:
                yield from _example(record, layout, texts, counts, at)
        yield from classes.rest()


def _example(record: Record, layout: Layout, texts: TextsOfIds | None, counts: Counts, at: str) -> Iterator[Example]:
    """That of a query and its documents, if it has some."""
    has_ids, is_id = layout.ids
    if is_id:
        query = scalars.of_value(record[layout.query], layout.query, at)
        query = texts.query(query, at) if texts else query
    else:
        query = text_files.string(record, layout.query, at)

    def of_field(field: str) -> list[Candidate]:
        if not has_ids:
            return record_values.texts(record[field], field, at)
        ids = record_values.ids(record[field], field, at)
        return [texts.document(id, at) if texts else Candidate(id, "", id) for id in ids]

    named = (_filled(record, layout.documents) or layout.documents, _filled(record, layout.negatives))
    documents, negatives = ([text for field in fields for text in of_field(field)] for fields in named)
    for field in _unread(record, layout, bool(negatives)):
        counts.leave_out(NOT_READ.format(field), at)
    scores: Sequence[float] = ()
    if layout.scores and (negatives or layout.kind != TUPLE):
        values = [(field, record[field]) for field in layout.scores]
        negatives = _with_nulls(record, layout, negatives, values, len(documents), at)
        scores = record_values.scores(values, len(documents), len(negatives), at)
    if layout.kind == DOCUMENTS:
        documents, negatives, scores = _of_list(record, layout, documents, scores, at)
    elif layout.labels and not negatives and (layout.kind == TWO or record[layout.labels] in _JUDGEMENTS):
        is_of_premises = layout.query == record_fields.PREMISES[0]
        if (verdict := record_values.verdict(record[layout.labels], layout.labels, is_of_premises, at)) == NEITHER:
            counts.leave_out("pairs of a class that says nothing, such as neutral", at)
            return
        documents, negatives = (documents, []) if verdict == ALIKE else ([], documents)
    labelled = example(query, documents, negatives, at, counts, scores=scores, is_of_negatives=bool(layout.labels))
    yield from filter(None, [labelled])


def _with_nulls(
    record: Record, layout: Layout, negatives: list[Candidate], values: list[tuple[str, Any]], positives: int, at: str
) -> list[Candidate]:
    """The negatives; with an empty one for each null that has a score, with which it is left out.

    Raises:
      UserError: the scores may be those of what is there, or margins of every column.
    """
    columns = layout.negatives
    count = sum(len(record_values.items(value)) for _, value in values)
    if len(negatives) != len(_filled(record, columns)) or len(negatives) == len(columns):
        return negatives
    if count == positives + len(negatives):
        if len(values) == positives == 1 and count == len(columns):
            what = f"{values[0][0]} may be {count} scores or {count} margins"
            raise UserError(f"{at}: a negative is null, and {what}: give each document a score, the null too")
        return negatives
    if count not in (len(columns), len(columns) + positives):
        return negatives
    remaining = iter(negatives)
    return [Candidate("", "", "") if record[field] is None else next(remaining) for field in columns]


def _filled(record: Record, fields: Sequence[str]) -> list[str]:
    return [field for field in fields if record[field] is not None]


def _of_list(
    record: Record, layout: Layout, documents: Sequence[Candidate], scores: Sequence[float], at: str
) -> tuple[list[Candidate], list[Candidate], list[float]]:
    """Positives, negatives and scores of a list of documents. Without judgements the one that scores best is right."""
    if layout.labels:
        are_right = record_values.judgements(record[layout.labels], layout.labels, len(documents), at)
        wrong = [text for text, is_right in zip(documents, are_right) if not is_right]
        return list(itertools.compress(documents, are_right)), wrong, []
    if not documents:
        raise UserError(f"{at}: no document in {', '.join(layout.documents)}; give some, or drop the record")
    best = max(range(len(documents)), key=scores.__getitem__)
    order = sorted(range(len(documents)), key=lambda place: place != best)
    right, *wrong = (documents[place] for place in order)
    return [right], wrong, [scores[place] for place in order]


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
        self._first: tuple[tuple, str, str] | None = None
        self._width = 0

    def check(self, layout: Layout, record: Record, at: str) -> None:
        """Checks a record against those before it.

        Raises:
          UserError: it is another sort of example, or has another number of negatives.
        """
        fields, columns = ", ".join(layout.fields), layout.negatives
        sort, of_first, line = self._first = self._first or (layout.sort, fields, at.rpartition(", ")[2])
        if layout.sort != sort:
            raise UserError(f"{at}: its fields are {fields}, and those of {line} are {of_first}: use two files")
        width = sum(not isinstance(record[name], list) for name in columns) if _filled(record, columns) else 0
        if width and not (layout.ids[0] and len(columns) == 1):
            self._width = self._width or width
            if width != self._width:
                raise UserError(f"{at}: {width} negatives, and records before have {self._width}: give each as many")


class _Classes:
    """Pairs of texts of one class: each text asks for the one before it, and the first of a class for its last one."""

    def __init__(self, counts: Counts):
        self._counts = counts
        self._first: dict[str, tuple[str, str]] = {}
        self._last: dict[str, str] = {}
        self._sums: set[bytes] = set()

    def add(self, value: Any, of: Any, at: str) -> Iterator[Example]:
        """The pair of one more text of a class, if there is one before it."""
        text, label = text_files.string({"text": value}, "text", at), scalars.of_value(of, "label", at)
        sum = hashing.digest(text)
        if label == _NO_CLASS:
            self._counts.leave_out("texts without a class", at)
        elif sum in self._sums:
            self._counts.leave_out("texts that come again", at)
        elif not text.strip():
            self._counts.leave_out("empty texts", at)
        else:
            self._sums.add(sum)
            if label in self._last:
                yield self._pair(text, label)
            self._first.setdefault(label, (text, at))
            self._last[label] = text

    def rest(self) -> Iterator[Example]:
        """The pairs of the first texts."""
        for label, (text, at) in self._first.items():
            if self._last[label] == text:
                self._counts.leave_out("texts that are alone in their class", at)
            else:
                yield self._pair(text, label)

    def _pair(self, text: str, label: str) -> Example:
        return Example(text, (Candidate("", "", self._last[label]),), label=label)

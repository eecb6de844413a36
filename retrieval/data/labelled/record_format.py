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
from retrieval.data.labelled.record_values import ALIKE, CLASSES, NEITHER, class_name
from retrieval.data.sets.beir import Candidate

Record = dict[str, Any]
Records = Iterator[tuple[str, Record, Layout]]


class RecordFormat(LabelledFormat):
    """A format of records with named fields. One overrides `records`."""

    def records(self, path: Path, names: Mapping[str, str]) -> Iterator[tuple[str, Record]]:
        """The records of a file, each after the place where it stands.

        Args:
          names: as `record_fields.named` gives them.
        """
        raise NotImplementedError(f"the format '{self.name}' of labelled examples has no records")

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        """As `LabelledFormat.read`."""
        has_ids = any(self._layout(path, reading.settings).ids)
        opened = TextsOfIds(reading.settings, reading.folder) if has_ids else contextlib.nullcontext()
        with opened as texts:
            for _, one in self.placed(path, reading.settings, reading.counts, texts):
                yield one

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        """As `LabelledFormat.sample`. Of ids the texts are missing: the ids stand for them."""
        return (one for _, one in self.placed(path, settings, Counts()))

    def shape(self, path: Path, settings: Settings) -> Shape:
        """As `LabelledFormat.shape`."""
        return record_fields.shape(self._layout(path, settings))

    def needed(self, path: Path, settings: Settings) -> Sequence[str]:
        """As `LabelledFormat.needed`: the first record tells."""
        return list(itertools.compress(("collection", "queries"), self._layout(path, settings).ids))

    def _layout(self, path: Path, settings: Settings) -> Layout:
        """What the fields of a file are: those of its first record."""
        return next(self._records(path, settings))[-1]

    def _records(self, path: Path, settings: Settings) -> Records:
        """The records with our names of their fields, and what these are.

        Raises:
          UserError: there is none, or one is another kind of example than the first.
        """
        names, layouts = record_fields.named(settings.fields), dict[tuple, Layout]()
        for at, record in self.records(path, names):
            record = record_fields.renamed(record, names, at)
            if (key := tuple(record)) not in layouts:
                layouts[key] = record_fields.layout(key, at, names)
                first, own = next(iter(layouts.values())), layouts[key]
                if own.sort != first.sort:
                    fields = f"its fields are {', '.join(own.fields)}, and those of the first {', '.join(first.fields)}"
                    raise UserError(f"{at}: {fields}: use two files")
            yield at, record, layouts[key]
        if not layouts:
            raise UserError(f"{path}: no record in it; copy or download it again, or leave it out")

    def placed(
        self, path: Path, settings: Settings, counts: Counts, texts: TextsOfIds | None = None
    ) -> Iterator[tuple[str, Example]]:
        """As `LabelledFormat.placed`.

        Args:
          texts: what ids stand for; without it they stand for themselves.
        """
        if self._layout(path, settings).kind == CLASS:
            yield from _of_classes(self._records(path, settings), counts)
            return
        for at, record, layout in self._records(path, settings):
            if one := _example(record, layout, texts, counts, at):
                yield at, one


def _example(record: Record, layout: Layout, texts: TextsOfIds | None, counts: Counts, at: str) -> Example | None:
    """That of a query and its documents, if it has some."""
    has_ids, is_id = layout.ids
    read_query = scalars.of_value if is_id else _text
    query = read_query(record[layout.query], layout.query, at)
    query = texts.query(query, at) if is_id and texts else query

    def of_field(field: str) -> list[Candidate]:
        if not has_ids:
            return record_values.texts(record[field], field, at)
        ids = record_values.ids(record[field], field, at)
        return [texts.document(id, at) if texts else Candidate(id, "", id) for id in ids]

    filled = [[field for field in side if record[field] is not None] for side in (layout.documents, layout.negatives)]
    sides = filled[0] or layout.documents, filled[1]
    documents, negatives = ([text for field in side for text in of_field(field)] for side in sides)
    scores: Sequence[float] = ()
    if layout.scores and (negatives or layout.kind != TUPLE):
        if len(filled[1]) < len(layout.negatives):
            raise UserError(f"{at}: a negative is null, so it is not clear whose the scores are; drop the record")
        values = [(field, record[field]) for field in layout.scores]
        scores = record_values.scores(values, len(documents), len(negatives), at)
    if layout.kind == DOCUMENTS:
        documents, negatives, scores = _of_list(record, layout, documents, scores, at)
    elif layout.labels and not negatives and (layout.kind == TWO or class_name(record[layout.labels]) in CLASSES):
        is_of_premises = layout.query == record_fields.PREMISES[0]
        if (verdict := record_values.verdict(record[layout.labels], layout.labels, is_of_premises, at)) == NEITHER:
            counts.leave_out("pairs of a class that says nothing, such as neutral", at)
            return None
        documents, negatives = (documents, []) if verdict == ALIKE else ([], documents)
    return example(query, documents, negatives, at, counts, scores=scores, is_of_negatives=bool(layout.labels))


def _text(value: Any, field: str, at: str) -> str:
    return text_files.string({field: value}, field, at)


def _of_list(
    record: Record, layout: Layout, documents: Sequence[Candidate], scores: Sequence[float], at: str
) -> tuple[list[Candidate], list[Candidate], list[float]]:
    """Positives, negatives and scores of a list of documents. Without judgements the one that scores best is right."""
    if layout.labels:
        are_right = record_values.judgements(record[layout.labels], layout.labels, len(documents), at)
    elif not documents:
        raise UserError(f"{at}: no document in {', '.join(layout.documents)}; give some, or drop the record")
    else:
        are_right = [place == scores.index(max(scores)) for place in range(len(documents))]
    order, count = sorted(range(len(documents)), key=lambda place: not are_right[place]), sum(are_right)
    right, wrong = ([documents[place] for place in side] for side in (order[:count], order[count:]))
    return right, wrong, [scores[place] for place in order if scores]


def _of_classes(records: Records, counts: Counts) -> Iterator[tuple[str, Example]]:
    """Pairs of texts of one class: each text asks for the one before it, and the first of a class for its last one."""
    first, last, sums = dict[str, tuple[str, str]](), dict[str, str](), set[bytes]()
    for at, record, layout in records:
        text, label = _text(record[layout.query], "text", at), scalars.of_value(record[layout.labels], "label", at)
        if label == "-1" or not text.strip() or hashing.digest(text) in sums:
            # -1 is no class to the library `datasets`.
            counts.leave_out("texts without a class, empty, or there again", at)
            continue
        sums.add(hashing.digest(text))
        if label in last:
            yield at, Example(text, (Candidate("", "", last[label]),), label=label)
        first.setdefault(label, (text, at))
        last[label] = text
    for label, (text, at) in first.items():
        if last[label] == text:
            counts.leave_out("texts that are alone in their class", at)
        else:
            yield at, Example(text, (Candidate("", "", last[label]),), label=label)

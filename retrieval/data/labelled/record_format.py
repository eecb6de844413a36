"""What the formats of records with named fields have in common: their shape, and texts that stand elsewhere."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrieval.data.labelled import id_texts, record_examples, record_fields
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings
from retrieval.data.labelled.record_fields import Layout, Shape
from retrieval.errors import UserError


class RecordFormat(LabelledFormat):
    """A format of records with named fields. One overrides `records`, and `layout` where it knows fields beforehand."""

    def records(self, path: Path, counts: Counts, names: Mapping[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """The records of a file, each after the place where it stands.

        Args:
          counts: values that are not given are counted there.
          names: as `record_fields.named` gives them.

        Raises:
          UserError: the file is none of this format.
        """
        raise NotImplementedError(f"the format '{self.name}' of labelled examples has no records")

    def layout(self, path: Path, names: Mapping[str, str]) -> Layout:
        """What the fields of a file are: those of its first record.

        Raises:
          UserError: there is no record, or its fields are not known.
        """
        for at, record in itertools.islice(self.records(path, Counts(), names), 1):
            return record_examples.layout_of(record_fields.renamed(record, names, at), names, at)
        raise UserError(f"{path}: no record in it; copy or download it again, or leave it out")

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        """As `LabelledFormat.read`."""
        names, counts = record_fields.named(reading.settings.fields), reading.counts
        has_ids = any(self.layout(path, names).ids)
        with (
            id_texts.opened(reading.settings, reading.folder)
            if has_ids
            else contextlib.nullcontext(record_examples.WRITTEN)
        ) as texts:
            yield from record_examples.examples(self.records(path, counts, names), counts, names, texts)

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        """As `LabelledFormat.sample`. Of ids the texts are missing: the ids stand for them."""
        names, counts = record_fields.named(settings.fields), Counts()
        self.layout(path, names)
        return record_examples.examples(self.records(path, counts, names), counts, names, id_texts.IDS)

    def shape(self, path: Path, settings: Settings) -> Shape:
        """As `LabelledFormat.shape`."""
        return record_fields.shape(self.layout(path, record_fields.named(settings.fields)))

    def check(self, path: Path, settings: Settings) -> None:
        """As `LabelledFormat.check`: ids need the files that have their texts."""
        ids = self.layout(path, record_fields.named(settings.fields)).ids
        for field, needed in zip(("collection", "queries"), ids):
            if needed and not getattr(settings, field):
                raise UserError(f"{path}: ids, whose texts are elsewhere: set config.pairs.{field}")

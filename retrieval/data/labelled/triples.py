"""MS MARCO's triples as labelled examples: of texts ('triples') and of ids ('id_triples')."""

import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.data.labelled.grouping import Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings, register
from retrieval.data.sets import msmarco
from retrieval.errors import UserError
from retrieval.runtime import hub_datasets

# Of passages they are numbers, of documents a D is before them.
_IDS = re.compile(r"[0-9]+(\tD?[0-9]+){2}")


@register
class Triples(LabelledFormat):
    """Lines of query, positive and negative."""

    name = "triples"
    what = "MS MARCO's triples of texts"
    setting = "--config.pairs.files=triples.train.tsv,…"
    example = "q⇥positive⇥negative"

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        return msmarco.read_triples(path, reading.counts)

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        texts = line.split("\t")
        if len(texts) != 3 or _IDS.fullmatch(line):
            return False
        # MS MARCO v2 has ids such as msmarco_passage_01_552: no model is to be trained on these as if they were texts.
        if settings.text_files and all(len(text.split()) < 2 for text in texts):
            raise UserError(
                f"{path}, line 1: three words between tabs, which may be ids, whose texts config.pairs.queries and "
                "config.pairs.collection have, or texts: set config.pairs.format=id_triples or triples"
            )
        return True


@register
class IdTriples(LabelledFormat):
    """The same as ids, whose texts are in two other files."""

    name = "id_triples"
    what = "MS MARCO's triples of ids"
    setting = (
        "--config.pairs.files=qidpidtriples.tsv,… --config.pairs.queries=queries.tsv "
        "--config.pairs.collection=collection.tsv"
    )
    example = "1000094⇥5399011⇥4239068"

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        queries, collection = Path(reading.settings.queries), Path(reading.settings.collection)
        if reading.in_order:
            return msmarco.read_id_triples_in_order(path, queries, collection, reading.folder, reading.counts)
        return msmarco.read_id_triples(path, queries, collection, reading.folder, reading.pool, reading.counts)

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        return (triple for _, triple in msmarco.read_ids(path))

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        return bool(_IDS.fullmatch(line))

    def check(self, path: Path, settings: Settings) -> None:
        for field in ("queries", "collection"):
            if not getattr(settings, field):
                raise UserError(f"{path}: triples of ids, whose texts are elsewhere: set config.pairs.{field}")
            if Path(value := getattr(settings, field)).is_dir() or hub_datasets.is_name(value):
                raise UserError(f"config.pairs.{field}={value}: triples of ids take a TSV file")

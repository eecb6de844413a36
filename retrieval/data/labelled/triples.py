"""MS MARCO's triples as labelled examples: of texts ('triples') and of ids ('id_triples')."""

import re
from collections.abc import Iterator
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Counts, Example, example
from retrieval.data.labelled.id_texts import TextsOfIds
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings, register
from retrieval.data.sets import msmarco
from retrieval.data.sets.beir import Candidate

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
        """As `LabelledFormat.read`."""
        for at, line in text_files.lines(path):
            query, *texts = msmarco.fields(line.split("\t"), ("query", "positive", "negative"), at)
            positives, negatives = ([Candidate("", "", text)] for text in texts)
            if triple := example(query, positives, negatives, at, reading.counts):
                yield triple

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

    needs = ("queries", "collection")

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        """As `LabelledFormat.read`. Texts are read of the ids that a query keeps: of others there may be many."""
        with TextsOfIds(reading.settings, reading.folder) as texts:
            if reading.in_order:
                yield from filter(None, (texts.example(triple, at, reading.counts) for at, triple in _of_ids(path)))
                return
            of_ids, alone = Counts(), (triple for _, triple in _of_ids(path))
            with grouping.grouped(alone, reading.folder, reading.pool, of_ids, key=lambda text: text.id) as groups:
                for group in groups:
                    if whole := texts.example(group, f"{path}, query '{group.query}'", reading.counts):
                        yield whole
            for what, number in of_ids.left_out.items():
                reading.counts.left_out[f"ids of {what}"] += number

    def sample(self, path: Path, settings: Settings) -> Iterator[Example]:
        return (triple for _, triple in _of_ids(path))

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        return bool(_IDS.fullmatch(line))


def _of_ids(path: Path) -> Iterator[tuple[str, Example]]:
    """The triples without their texts, each after the place where it stands."""
    for at, line in text_files.lines(path):
        query, *ids = msmarco.fields(line.split("\t"), ("query id", "positive id", "negative id"), at)
        positives, negatives = ((Candidate(id, "", ""),) for id in ids)
        yield at, Example(query, positives, negatives)

"""The format of evaluation sets 'labelled': files of labelled examples.

The candidates are the texts of a file. Where its labels are ids of the prepared corpus, they are the corpus's passages.
"""

import dataclasses
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.data.corpora import source_paths
from retrieval.data.corpora.source_paths import split
from retrieval.data.labelled import grouping, labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets import answers, beir, document_labels, relevance
from retrieval.data.sets.set_format import Context, Options, SetFormat, register


@register
class LabelledSets(SetFormat):
    """Each file is a set of its name."""

    name = "labelled"
    what = "labelled examples (below): the texts of a file are its candidates; of ids in the run's corpus, its passages"
    setting = "--config.sets.labelled=FILE,…"
    example = '{"query": "q", "positives": ["a"], "negatives": ["b"]}'
    options = (*labelled_format.OPTIONS, relevance.UNKNOWN)

    def read(self, value: str, context: Context) -> Iterator[beir.RetrievalSet]:
        settings = Settings.of(context.options)
        for path in map(Path, split(value)):
            unknown = context.options[relevance.UNKNOWN]
            if of_ids := document_labels.read(_name(path), path, settings, context.corpus, unknown):
                yield of_ids
                continue
            with labelled_format.grouped([path], settings, context.folder, pool=sys.maxsize) as (groups, counts):
                own = grouping.evaluation_set(_name(path), groups)
            counts.log(str(path))
            way_out = f"make a BEIR folder of it, with 'patterns' in {beir.ANSWERS}"
            answers.warn_of_patterns(path, own.answers, way_out)
            yield dataclasses.replace(own, notes=(f"Judged against the {len(own.candidates):,} answers of the file.",))

    def names(self, value: str) -> list[str]:
        return [_name(Path(path)) for path in split(value)]

    def inputs(self, value: str, options: Options) -> list[Path]:
        return [*map(Path, split(value)), *Settings.of(options).text_files]

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        settings = Settings.of(options)
        if has_corpus and not settings.collection:
            settings = settings._replace(collection="corpus")  # of which nothing is read yet
        for path in source_paths.checked(f"config.sets.{self.name}", self.sources(value)):
            labelled_format.check(path, settings)
            if (shape := labelled_format.shape(path, settings)).is_scored:
                remedy = "name them by config.pairs.fields=query=COLUMN,positive=COLUMN, or leave the file out"
                raise UserError(f"{path}: {shape.what}; a set needs right answers: {remedy}")

    def has_answers(self, name: str, value: str, options: Options) -> bool:
        """As `SetFormat.has_answers`: the first example tells."""
        paths = [path for path in map(Path, split(value)) if _name(path) == name and path.is_file()]
        samples = (labelled_format.sample(path, Settings.of(options)) for path in paths)
        return any(first.answers for sample in samples for first in islice(sample, 1))


def _name(path: Path) -> str:
    return path.name.strip(".").partition(".")[0]

"""The format of evaluation sets 'labelled': files of labelled examples, whose texts are the candidates."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.data.corpora.source_paths import split
from retrieval.data.labelled import grouping, labelled_format
from retrieval.data.labelled.labelled_format import Settings
from retrieval.data.sets import answers, beir
from retrieval.data.sets.set_format import Given, Options, SetFormat, register


@register
class LabelledSets(SetFormat):
    """Each file is a set of its name."""

    name = "labelled"
    what = "labelled examples (below): the texts of a file are its candidates"
    setting = "--config.sets.labelled=FILE,…"
    example = '{"query": "q", "positives": ["a"], "negatives": ["b"]}'
    options = labelled_format.OPTIONS

    def read(self, value: str, context: Given) -> Iterator[beir.RetrievalSet]:
        settings = Settings.of(context.options)
        for path in map(Path, split(value)):
            with labelled_format.grouped([path], settings, context.folder, pool=sys.maxsize) as (groups, counts):
                own = grouping.evaluation_set(_name(path), groups)
            counts.log(str(path))
            way_out = f"make a BEIR folder of it, with 'patterns' in {beir.ANSWERS}"
            answers.warn_of_patterns(path, own.answers, way_out)
            yield own

    def names(self, value: str) -> list[str]:
        return [_name(Path(path)) for path in split(value)]

    def inputs(self, value: str, options: Options) -> list[Path]:
        return [*map(Path, split(value)), *Settings.of(options).text_files]

    def check_path(self, path: Path, options: Options) -> None:
        settings = Settings.of(options)
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
    return path.name.partition(".")[0]

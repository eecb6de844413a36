"""Generated questions with the passages that they were written of, as labelled pairs (Xiong et al. 2020, section 3).

The questions are a file of the stage `generate`. The passages are those of a BEIR corpus.jsonl, or of a folder with a
prepared corpus's passages-*.jsonl. Both have the passages in the same order, so neither is held in memory.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.labelled.labelled_format import LabelledFormat, Settings, register
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.methods.writer import expansions


@register
class GeneratedQuestions(LabelledFormat):
    """What `--stage=generate` wrote."""

    name = "generated"
    what = "questions of the stage generate, with the passages they are of"
    setting = (
        "--config.pairs.files=runs/qg/generated/corpus.jsonl --config.pairs.format=generated "
        "--config.pairs.collection=runs/wikipedia/corpus"
    )
    example = '{"_id": "d7", "text": "a question", "answer": "an answer", "log_probability": -3.2}'
    first = "{"

    def read(self, path: Path, counts: Counts, settings: Settings, folder: Path, pool: int) -> Iterator[Example]:
        passages = _passages(Path(settings.collection))
        for document, written in itertools.groupby(expansions.read(path), key=lambda line: line.document):
            passage = next((passage for passage in passages if passage.id == document), None)
            if passage is None:
                raise UserError(
                    f"{path}: the passage '{document}' is not in {settings.collection}, or stands before another one "
                    "there: name the passages that the questions were written of in config.pairs.collection"
                )
            for line in written:
                if line.answer in passage.text:
                    yield Example(line.text, (passage,))
                else:
                    counts.leave_out("questions whose answer is not in their passage", f"{path}, '{line.text}'")

    def check(self, path: Path, settings: Settings) -> None:
        if not settings.collection:
            raise UserError(
                f"{path}: generated questions, whose passages are elsewhere: set config.pairs.collection to a folder "
                "of passages-*.jsonl, or to a corpus.jsonl"
            )


def _passages(place: Path) -> Iterator[Candidate]:
    paths = sorted(place.glob("passages-*.jsonl")) if place.is_dir() else [place]
    if not paths:
        raise UserError(f"config.pairs.collection={place}: no passages-*.jsonl there; name the folder of a corpus")
    return itertools.chain.from_iterable(map(beir.read_candidates, paths))

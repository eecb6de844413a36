"""Labelled questions in the JSON of DPR (Karpukhin et al. 2020): one array of

    {"question": ..., "answers": [...], "positive_ctxs": [...], "negative_ctxs": [...], "hard_negative_ctxs": [...]}

whose contexts are {"title": ..., "text": ..., "passage_id" or "psg_id": ...}.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.labelled import json_array, record_values
from retrieval.data.labelled.grouping import Counts, Example, example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, register
from retrieval.data.sets.beir import Candidate

_ID_FIELDS = ("passage_id", "psg_id")
_ANSWER_MARKS = ("hasanswer", "has_answer")


def _negatives(record: dict[str, Any], field: str, at: str, counts: Counts) -> list[Candidate]:
    """Those that the file does not say to hold an answer: these are no positives either."""
    texts = _contexts(record, field, at)
    hold = [isinstance(value, dict) and any(map(value.get, _ANSWER_MARKS)) for value in record.get(field) or ()]
    counts.leave_out("negatives that hold an answer", at, sum(hold))
    return [text for text, holds in zip(texts, hold) if not holds]


def _contexts(record: dict[str, Any], field: str, at: str) -> list[Candidate]:
    if not isinstance(values := record.get(field) or [], list):
        raise UserError(f"{at}: the field '{field}' is no array of contexts; is it a file of DPR?")
    return record_values.texts(values, field, at, _ID_FIELDS)


@register
class Dpr(LabelledFormat):
    """The format 'dpr'."""

    name = "dpr"
    what = "DPR's JSON, one array"
    setting = "--config.pairs.files=FILE.json,…"
    example = (
        '[{"question": "q", "answers": ["a"], "positive_ctxs": [{"title": "T", "text": "a", "passage_id": "1"}], '
        '"negative_ctxs": [], "hard_negative_ctxs": [{"title": "T", "text": "b", "passage_id": "2"}]}]'
    )
    first = "["

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        """As `LabelledFormat.read`.

        Negatives are the `hard_negative_ctxs`, where there are none the `negative_ctxs`, as in DPR's own training.
        Questions without a positive, which DPR's files have, are left out and counted; so are negatives that hold an
        answer.
        """
        for at, record in json_array.read(path):
            question = text_files.string(record, "question", at)
            positives = _contexts(record, "positive_ctxs", at)
            hard = _negatives(record, "hard_negative_ctxs", at, reading.counts)
            negatives = hard or _negatives(record, "negative_ctxs", at, reading.counts)
            answers = text_files.strings(record, "answers", at) if record.get("answers") is not None else ()
            if labelled := example(question, positives, negatives, at, reading.counts, answers):
                yield labelled

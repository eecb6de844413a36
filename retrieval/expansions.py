"""Texts that a model wrote of documents, such as queries that a passage may answer (Nogueira et al. 2019).

A file has a line for each text, those of a document one after the other:

    {"_id": "d7", "text": "how tall is mount everest", "log_probability": -3.2041}
    {"_id": "d7", "text": "how tall is mount everest", "answer": "8,849 m", "log_probability": -2.1187}

`_id` is the document's. `answer` is that of a question that was asked for it, and `score` what a reranker gives to text
and document. Files of others may do without these and `log_probability`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import text_files
from retrieval.errors import UserError

_LARGEST = sys.float_info.max  # JSON may hold greater numbers, and NaN
_DIGITS = 4  # of a log-probability: the rest depends on the machine


class Expansion(NamedTuple):
    """A text of a document; what its file does not say is None, and `answer` is ''."""

    document: str
    text: str
    log_probability: float | None
    answer: str = ""
    score: float | None = None


def to_line(expansion: Expansion) -> str:
    """A line of a file, with its end."""
    record: dict[str, Any] = {"_id": expansion.document, "text": expansion.text}
    if expansion.answer:
        record["answer"] = expansion.answer
    if expansion.log_probability is not None:
        record["log_probability"] = round(expansion.log_probability, _DIGITS)
    if expansion.score is not None:
        # Nine digits give back the same float32: scores of a sure reranker differ in their last ones.
        record["score"] = float(f"{expansion.score:.9g}")
    return json.dumps(record, ensure_ascii=False) + "\n"


def read(path: Path) -> Iterator[Expansion]:
    """The texts of a file, in order.

    Raises:
      UserError: there is no such file, or a line is not what it should be.
    """
    for at, line in text_files.lines(path):
        yield _expansion(line, at)


def _expansion(line: str, at: str) -> Expansion:
    try:
        record = json.loads(line)
        document, text, log = record["_id"], record["text"], record.get("log_probability")
        answer, score = record.get("answer", ""), record.get("score")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f'{at}: not a text of a document; a line such as {{"_id": "d7", "text": "a query"}} is needed'
        ) from error
    if not all(isinstance(value, str) for value in (document, text, answer)):
        raise UserError(f"{at}: '_id', 'text' and 'answer' must be texts")
    for name, value in (("_id", document), ("text", text), ("answer", answer)):
        text_files.refuse_surrogates(value, name, at)
    if log is not None and (type(log) not in (int, float) or not -_LARGEST <= log <= 0):
        raise UserError(f"{at}: log_probability is {log!r}; a number of at most 0 is needed")
    if score is not None and (type(score) not in (int, float) or not abs(score) <= _LARGEST):
        raise UserError(f"{at}: score is {score!r}; a number is needed")
    return Expansion(document, text, log, answer, score)

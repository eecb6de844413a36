"""Texts that a model wrote of documents, such as queries that a passage may answer (Nogueira et al. 2019).

A file has a line for each text, those of a document one after the other:

    {"_id": "d7", "text": "how tall is mount everest", "log_probability": -3.2041}
    {"_id": "d7", "text": "how tall is mount everest", "answer": "8,849 m", "log_probability": -2.1187}

`_id` is the document's. `answer` is that of a question that was asked for it, and `score` what a reranker gives to text
and document. Files of others may do without these and `log_probability`. Those of docTTTTTquery have all of a document:

    {"id": "7", "predicted_queries": ["how tall is mount everest", "everest height"]}
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from retrieval import foreign_json, identifiers, numbers, text_files
from retrieval.errors import UserError

_LIST = "predicted_queries"
_NEEDED = 'a line such as {"_id": "d7", "text": "a query"} is needed'
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
        yield from _expansions(line, at)


def _expansions(line: str, at: str) -> Iterator[Expansion]:
    record = foreign_json.parse(line, at, _NEEDED)
    if isinstance(record, dict) and _LIST in record:
        id = identifiers.of_value(record.get("id"), "id", at)
        yield from (Expansion(id, text, None) for text in text_files.strings(record, _LIST, at))
        return
    if not isinstance(record, dict) or not {"_id", "text"} <= record.keys():
        raise UserError(f"{at}: not a text of a document; {_NEEDED}")
    log, score = (
        None if record.get(name) is None else numbers.score(record[name], name, at)
        for name in ("log_probability", "score")
    )
    if log is not None and log > 0:
        raise UserError(f"{at}: log_probability is {log!r}; a number of at most 0 is needed")
    text, answer = text_files.string(record, "text", at), text_files.string(record, "answer", at, default="")
    yield Expansion(identifiers.of_value(record["_id"], "_id", at), text, log, answer, score)

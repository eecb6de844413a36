"""A teacher's scores of labelled pairs, which shards of labelled examples carry for distillation. As JSON lines:

    {"query": "a question", "docid": "d7", "score": 3.25}
    {"query": "a question", "title": "", "text": "a text without an id", "score": -1.5}

A document is named by the id that the labelled example gives it, or by its title and text.
"""

import array
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_json, scalars, text_files
from retrieval.common.runtime import hashing
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate


def write(path: Path, scored: Iterable[tuple[str, Candidate, float]]) -> int:
    """Writes queries, documents and scores, whole or not at all; returns how many there are.

    Nine digits give back the same float32.
    """
    count = 0
    with files.atomic(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for query, text, score in scored:
            named = {"docid": text.id} if text.id else {"title": text.title, "text": text.text}
            line = json.dumps({"query": query, **named, "score": float(f"{score:.9g}")}, ensure_ascii=False)
            file.write(line + "\n")
            count += 1
    return count


def check_beginning(path: Path) -> None:
    """Checks the first line of a file of scores."""
    for at, line in itertools.islice(text_files.lines(path), 1):
        _parse(line, at)


class TeacherScores:
    """The scores of a file: 12 bytes a pair, whatever the texts."""

    def __init__(self, path: Path):
        """Reads the file.

        Raises:
          UserError: it has no line; or one has no query, no document or no finite score, or contradicts another one.
        """
        self._path = path
        keys, scores = array.array("Q"), array.array("f")
        for at, line in text_files.lines(path):
            key, score = _parse(line, at)
            keys.append(key)
            scores.append(score)
        if not keys:
            raise UserError(f'{path}: no score in it; {{"query": ..., "docid": ..., "score": ...}} is a line')
        order = np.argsort(np.asarray(keys), kind="stable")
        self._keys, self._scores = np.asarray(keys)[order], np.asarray(scores)[order]
        again = np.flatnonzero((self._keys[1:] == self._keys[:-1]) & (self._scores[1:] != self._scores[:-1]))
        if len(again):
            at, _ = next(itertools.islice(text_files.lines(path), int(order[again[0] + 1]), None))
            raise UserError(f"{at}: this pair has another score above; keep one")

    def of(self, query: str, texts: Sequence[Candidate]) -> np.ndarray:
        """The scores of a query's documents, float32 [N].

        Raises:
          UserError: one has none.
        """
        scores_N = self._find(query, texts)
        if (lacks_N := np.isnan(scores_N)).any():
            text = texts[int(lacks_N.argmax())]
            name = f"'{text.id}'" if text.id else f"without an id that begins '{(text.title or text.text)[:40]}'"
            problem = f"no score of the query '{query}' with the document {name}, one of {lacks_N.sum()} of the query"
            raise UserError(f"{self._path}: {problem}. Score all, with the stage 'teacher', or leave the examples out")
        return scores_N

    def check(self, groups: Iterable[Example]) -> None:
        """Checks that every pair has a score."""
        for query, positives, negatives, *_ in groups:
            self.of(query, [*positives, *negatives])

    def _find(self, query: str, texts: Sequence[Candidate]) -> np.ndarray:
        """The scores [N], NaN where there is none."""
        by_text = self._of_keys([_key(query, "", text.title, text.text) for text in texts])
        by_id = self._of_keys([_key(query, text.id) for text in texts])
        return np.where(np.isnan(by_id), by_text, by_id)

    def _of_keys(self, keys: Sequence[int]) -> np.ndarray:
        keys_N = np.array(keys, np.uint64)
        places_N = np.minimum(np.searchsorted(self._keys, keys_N), len(self._keys) - 1)
        return np.where(self._keys[places_N] == keys_N, self._scores[places_N], np.nan).astype(np.float32)


def _parse(line: str, at: str) -> tuple[int, float]:
    """The key of a pair and its score."""
    record = foreign_json.parse(line, at)
    # An empty id is none: every text without an id would have its score.
    id = record.get("docid") if isinstance(record, dict) else None
    id = "" if id is None else scalars.of_value(id, "docid", at)
    if not isinstance(record, dict) or not (id or "text" in record):
        raise UserError(f'{at}: {{"query": ..., "docid": ..., "score": ...}} is needed, or "text" in place of an id')
    texts = [] if id else [text_files.string(record, "title", at, default=""), text_files.string(record, "text", at)]
    key = _key(text_files.string(record, "query", at), id, *texts)
    return key, scalars.score(record.get("score"), "score", at)


def _key(query: str, id: str, *texts: str) -> int:
    return hashing.number(query, "text", *texts) if texts else hashing.number(query, "id", id)

"""A teacher's scores of labelled pairs, which shards of labelled examples carry for distillation. As JSON lines:

    {"query": "a question", "docid": "d7", "score": 3.25}
    {"query": "a question", "title": "", "text": "a text without an id", "score": -1.5}

A document is named by the id that the labelled example gives it, or by its title and text. A TREC run of any system
is a file of scores too: `query-id Q0 document-id rank score tag`.
"""

import array
import itertools
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval import files, foreign_json, hashing, identifiers, numbers, text_files
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.identifiers import SEVERAL, in_run_file, numbered

_log = logging.getLogger(__name__)


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
    """Checks the first line of a file of scores.

    Raises:
      UserError: it is none.
    """
    for at, line in itertools.islice(text_files.lines(path), 1):
        _of_json(line, at) if _is_json(line) else _of_run(line, at, {})


class TeacherScores:
    """The scores of a file: 12 bytes a pair, whatever the texts."""

    def __init__(self, path: Path, queries: Mapping[str, str] | None = None):
        """Reads the file.

        Args:
          queries: id -> text, of a TREC run. What that says of other queries is left out, and counted in the log.

        Raises:
          UserError: it has no line; or one has no query, no document or no finite score, or contradicts another one.
        """
        self._path = path
        self._queries = _by_name(queries or {})
        keys, scores, of_others = array.array("Q"), array.array("f"), 0
        for key, score, _ in self._read():
            if key is None:
                of_others += 1
                continue
            keys.append(key)
            scores.append(score)
        if of_others:
            _log.warning("%s: %d lines of queries that are not trained on, left out", path, of_others)
        if not keys and of_others:
            raise UserError(
                f"{path}: a TREC run of other queries: its ids must be those of the set in config.split.set, or of "
                "config.pairs.queries"
            )
        if not keys:
            raise UserError(f'{path}: no score in it; {{"query": ..., "docid": ..., "score": ...}} is a line')
        order = np.argsort(np.asarray(keys), kind="stable")
        self._keys, self._scores = np.asarray(keys)[order], np.asarray(scores)[order]
        again = np.flatnonzero((self._keys[1:] == self._keys[:-1]) & (self._scores[1:] != self._scores[:-1]))
        if len(again):
            raise UserError(f"{self._place_of(int(order[again[0] + 1]))}: this pair has another score above; keep one")

    def of(self, query: str, texts: Sequence[Candidate]) -> np.ndarray:
        """The scores of a query's documents, float32 [N].

        Raises:
          UserError: one has none.
        """
        scores_N = self._find(query, texts)
        for text, score in zip(texts, scores_N):
            if np.isnan(score):
                raise self._missing(query, text, "")
        return scores_N

    def check(self, groups: Iterable[Example]) -> None:
        """Checks that every pair has a score.

        Raises:
          UserError: some have none; the message has the first, and how many they are.
        """
        first, pairs, missing = None, 0, 0
        for query, positives, negatives, _ in groups:
            texts = [*positives, *negatives]
            lacks_N = np.isnan(self._find(query, texts))
            if lacks_N.any():
                first = first or (query, texts[int(lacks_N.argmax())])
            pairs, missing = pairs + len(texts), missing + int(lacks_N.sum())
        if first:
            raise self._missing(*first, f" {missing} of {pairs} pairs have none.")

    def _read(self) -> Iterator[tuple[int | None, float, str]]:
        """The key of each pair, its score, and where it stands. The first line says what all are."""
        is_run = None
        for at, line in text_files.lines(self._path):
            if is_run is None:
                is_run = not _is_json(line)
            key, score = _of_run(line, at, self._queries) if is_run else _of_json(line, at)
            yield key, score, at

    def _place_of(self, number: int) -> str:
        """Where the pair of a number stands."""
        places = (at for key, _, at in self._read() if key is not None)
        return next(itertools.islice(places, number, None))

    def _missing(self, query: str, text: Candidate, counted: str) -> UserError:
        name = f"'{text.id}'" if text.id else f"without an id that begins '{(text.title or text.text)[:40]}'"
        return UserError(
            f"{self._path}: no score of the query '{query}' with the document {name}.{counted} Score all of them, with "
            "the stage 'teacher', or leave the examples out"
        )

    def _find(self, query: str, texts: Sequence[Candidate]) -> np.ndarray:
        """The scores [N], NaN where there is none."""
        by_text = self._of_keys([_key_of_text(query, text.title, text.text) for text in texts])
        ids = {text.id for text in texts}
        if len(set(map(in_run_file, ids))) < len(ids):
            raise UserError(
                f"{self._path}: documents of the query '{query}' differ in a blank and %20 alone: {sorted(ids)}; "
                "rename one"
            )
        by_id = self._of_keys([_key_of_id(query, text.id) for text in texts])
        return np.where(np.isnan(by_id), by_text, by_id)

    def _of_keys(self, keys: Sequence[int]) -> np.ndarray:
        keys_N = np.array(keys, np.uint64)
        places_N = np.minimum(np.searchsorted(self._keys, keys_N), len(self._keys) - 1)
        return np.where(self._keys[places_N] == keys_N, self._scores[places_N], np.nan).astype(np.float32)


def _is_json(line: str) -> bool:
    return line.lstrip().startswith("{")


def _of_json(line: str, at: str) -> tuple[int, float]:
    """The key of a pair and its score."""
    record = foreign_json.parse(line, at)
    # An empty id is none: every text without an id would have its score.
    id = record.get("docid") if isinstance(record, dict) else None
    id = "" if id is None else identifiers.of_value(id, "docid", at)
    if not isinstance(record, dict) or not (id or "text" in record):
        raise UserError(f'{at}: {{"query": ..., "docid": ..., "score": ...}} is needed, or "text" in place of an id')
    query = text_files.string(record, "query", at)
    if id:
        key = _key_of_id(query, id)
    else:
        title = text_files.string(record, "title", at, default="")
        key = _key_of_text(query, title, text_files.string(record, "text", at))
    return key, numbers.score(record.get("score"), "score", at)


def _by_name(queries: Mapping[str, str]) -> dict[str, str | None]:
    """Texts of queries by their ids as run files have them; None where two ids are one there."""
    texts = list(queries.values())
    return {name: None if row == SEVERAL else texts[row] for name, row in numbered(queries).items()}


def _of_run(line: str, at: str, queries: Mapping[str, str | None]) -> tuple[int | None, float]:
    """The same of a line of a TREC run; no key where its query is not one of ours."""
    columns = line.split()
    if len(columns) != 6:
        raise UserError(
            f"{at}: {len(columns)} columns; a teacher's scores are JSON lines, or a TREC run of 6 columns: query id, "
            "Q0, document id, rank, score, tag"
        )
    score = numbers.score(columns[4], "score", at)
    query = queries.get(columns[0], "")
    if query is None:
        raise UserError(
            f"{at}: two ids are the query '{columns[0]}' in a run file, which has %20 for a blank; rename one"
        )
    return None if columns[0] not in queries else _key_of_id(query, columns[2]), score


def _key_of_id(query: str, id: str) -> int:
    return hashing.number(query, "id", in_run_file(id))


def _key_of_text(query: str, title: str, text: str) -> int:
    return hashing.number(query, "text", title, text)

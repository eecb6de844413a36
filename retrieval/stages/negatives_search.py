"""What a file of hard negatives is mined from: the candidates of labelled pairs, and the lists of their queries.

Held in memory are the queries, the rows of their positives, 16 bytes for each candidate, and the embeddings of a block
of them; neither documents nor the lists of more than a part of the queries. What a killed process had embedded or
scored is there for the next one.

Letters of shapes: Q queries, P those of a part, N candidates, K results.
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Groups
from retrieval.data.sets import beir, splits, trec
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.errors import UserError
from retrieval.recipes.text_embedder import DOCUMENTS, QUERIES
from retrieval.recipes.trained_model import PairScorer
from retrieval.runtime import hashing
from retrieval.search import index_shards, mining
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import ExactIndex
from retrieval.search.mining import Drawn, Rule

_PART = 8192  # queries whose lists are held at a time
_BLOCK = 1 << 18  # candidates that are searched at a time: at 1,024 dimensions a gigabyte


class Questions(NamedTuple):
    """The queries of all pairs, in order.

    Attributes:
      positives: rows of each one's documents.
      known: of these, and of those of the queries that are the same but for their spelling.
      own: the row of the candidate that is the query itself, where there is one and it is no positive.
    """

    texts: list[str]
    positives: list[list[int]]
    known: list[list[int]]
    own: list[list[int]]

    @property
    def most_positives(self) -> int:
        """Known positives of a query at most."""
        return max(map(len, self.known))

    @property
    def most_taken_out(self) -> int:
        """Candidates that are no negatives of a query, at most."""
        return max(len(known) + len(own) for known, own in zip(self.known, self.own))


class Part(NamedTuple):
    """Queries from `start` on: what was drawn for them, and the scores of their positives."""

    start: int
    drawn: Drawn
    positive_scores: list[np.ndarray]


def write_candidates(path: Path, collection: Path | None, groups: Groups) -> Counter:
    """Writes each title and text once, as a corpus.jsonl; returns what is left out, with counts.

    Args:
      collection: where there is one, candidates are what it has and the positives; else all documents of the examples.
    """
    keys = np.fromiter((_key(text) for text in _texts(collection, groups)), np.uint64)
    firsts = np.sort(np.unique(keys, return_index=True)[1])
    blank = _key(Candidate("", "", ""))
    chosen = firsts[keys[firsts] != blank]
    beir.write_candidates(path, _numbered(_texts(collection, groups), chosen))
    empty = int((keys == blank).sum())
    return Counter({"documents whose text is there before": len(keys) - len(chosen) - empty, "empty documents": empty})


def _texts(collection: Path | None, groups: Groups) -> Iterator[Candidate]:
    """What may be a candidate: of a collection, what it has and the positives; else all documents of the examples."""
    if collection:
        yield from trec.read_candidates(collection)
    for group in groups:
        yield from group.positives if collection else (*group.positives, *group.negatives)


def _key(text: Candidate) -> int:
    """As `CandidateTexts.keys_N` has it; the same for all texts of white space."""
    blank = not (text.title.strip() or text.text.strip())
    return int.from_bytes(grouping.digest(Candidate("", "", "") if blank else text), "big")


def _numbered(texts: Iterable[Candidate], chosen: np.ndarray) -> Iterator[Candidate]:
    """The texts of some places; one without an id of its own has its number."""
    wanted, row = iter(chosen.tolist()), 0
    place = next(wanted, -1)
    for number, text in enumerate(texts):
        if number == place:
            yield Candidate(text.id or f"text-{row}", text.title, text.text)
            place, row = next(wanted, -1), row + 1


def questions_of(groups: Groups, keys_N: np.ndarray) -> Questions:
    """The queries, with rows of candidates by their keys."""
    order_N = np.argsort(keys_N, kind="stable")
    sorted_N = keys_N[order_N]

    def rows(texts: Sequence[Candidate]) -> list[int]:
        keys = np.array([_key(text) for text in texts], np.uint64)
        places = np.minimum(np.searchsorted(sorted_N, keys), len(sorted_N) - 1)
        return list(dict.fromkeys(order_N[places[sorted_N[places] == keys]].tolist()))

    texts, positives, own, by_wording = [], [], [], {}
    for group in groups:
        texts.append(group.query)
        positives.append(rows(group.positives))
        own.append(rows([Candidate("", "", group.query)]))
        by_wording.setdefault(hashing.number(splits.wording(group.query)), []).append(len(texts) - 1)
    known = list(positives)
    for same in by_wording.values():
        if len(same) > 1:
            union = sorted({row for query in same for row in positives[query]})
            for query in same:
                known[query] = union
    own = [[row for row in rows if row not in of_query] for rows, of_query in zip(own, known)]
    return Questions(texts, positives, known, own)


class Index:
    """Exact search over stored embeddings, a block of candidates after the other."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._block: tuple[int, ExactIndex] | None = None

    @functools.cached_property
    def _queries(self) -> StoredRows:
        return StoredRows(self.folder, QUERIES)

    @functools.cached_property
    def _documents(self) -> StoredRows:
        return StoredRows(self.folder, DOCUMENTS)

    def is_whole(self) -> bool:
        """Whether all embeddings are there."""
        try:
            return bool(len(self._queries) and len(self._documents))
        except UserError:
            return False

    def search(self, queries: slice, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The best `k` candidates [P, K] of some queries, and their scores."""
        rows, queries_PE = self._documents, self._queries[queries]
        lists = index_shards.merge([], len(queries_PE), k)
        for start in range(0, len(rows), _BLOCK):
            if self._block is None or self._block[0] != start:
                self._block = None  # before the next one is made
                self._block = start, ExactIndex(rows[start : start + _BLOCK])
            scores_PK, rows_PK = self._block[1].search(queries_PE, k)
            found = scores_PK, np.where(rows_PK < 0, -1, rows_PK + start)
            lists = index_shards.merge([lists, found], len(queries_PE), k)
        return lists

    def of_pairs(self, queries: Sequence[int], documents: Sequence[int]) -> np.ndarray:
        """The scores of queries with the documents beside them."""
        query_PE, document_PE = self._queries[np.asarray(queries)], self._documents[np.asarray(documents)]
        return np.einsum("pe,pe->p", query_PE, document_PE)


class Judged:
    """A reranker in the place of the embedder's scores, for the candidates that this one has found."""

    def __init__(self, scorer: PairScorer, folder: Path, candidates: CandidateTexts):
        self._scorer, self._folder, self._candidates = scorer, folder, candidates

    def scores(self, start: int, queries: Sequence[str], rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """The scores of each query's candidates; `start` is the number of the first query."""
        pairs = [(place, row) for place, of_query in enumerate(rows) for row in of_query]
        folder = self._folder / f"{start:09d}"
        scores, _ = self._scorer.score_all(folder, queries, lambda: pairs, len(pairs), self._candidates.__getitem__)
        return np.split(scores, np.cumsum(list(map(len, rows)))[:-1])


def parts(
    index: Index,
    judged: Judged | None,
    questions: Questions,
    candidates: CandidateTexts,
    rule: Rule,
    depth: int,
    seed: int,
) -> Iterator[Part]:
    """The negatives of all queries, a part after the other."""
    for start in range(0, len(questions.texts), _PART):
        part = slice(start, start + _PART)
        positives = questions.positives[part]
        scores_PK, rows_PK = index.search(part, depth)
        if judged:
            found = [row[row >= 0] for row in rows_PK]
            both = judged.scores(start, questions.texts[part], [[*row, *golds] for row, golds in zip(found, positives)])
            of_positives = [scores[len(row) :] for scores, row in zip(both, found)]
            scores_PK, rows_PK = _ordered(rows_PK, [scores[: len(row)] for scores, row in zip(both, found)])
        else:
            queries = [start + place for place, golds in enumerate(positives) for _ in golds]
            flat = index.of_pairs(queries, list(itertools.chain.from_iterable(positives)))
            of_positives = np.split(flat, np.cumsum(list(map(len, positives)))[:-1])
        drawn = mining.mine(
            scores_PK,
            rows_PK,
            positives=questions.known[part],
            others=questions.own[part],
            texts_N=candidates.keys_N,
            rule=rule,
            seed=(seed,),
            start=start,
            compared_Q=np.array([scores.min() for scores in of_positives]),
        )
        yield Part(start, drawn, of_positives)


def _ordered(rows_PK: np.ndarray, scores: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Lists in the order of new scores, ties as they were."""
    scores_PK = np.full(rows_PK.shape, -np.inf, np.float32)
    for row_K, values in zip(scores_PK, scores):
        row_K[: len(values)] = values
    order_PK = np.argsort(-scores_PK, axis=1, kind="stable")
    return np.take_along_axis(scores_PK, order_PK, axis=1), np.take_along_axis(rows_PK, order_PK, axis=1)

"""Hard negatives of labelled pairs, by any embedder: what the stage `mine` does where `config.mine.model` names one.

Candidates are the documents of all pairs; with `config.pairs.collection` what that has, and the positives. A folder has
what a process that is killed leaves for the next one:

    candidates.jsonl        every document once
    queries-..., documents-...   embeddings, as `encoding` writes them
    judged/                 scores of a reranker
"""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import grouping
from retrieval.data.sets import beir, trec
from retrieval.data.sets.candidate import Candidate
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.runs.pairs import hard_negatives, labelled_groups, source_pairs
from retrieval.runs.pairs.hard_negatives import Lists, Question, Searched
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights.pair_scorer import PairScorer
from retrieval.runs.weights.text_embedder import DOCUMENTS, EMBEDDERS, QUERIES, Distinct, numbered
from retrieval.runs.weights.trained_model import TRAINED, TrainedKind
from retrieval.search.encoding import StoredRows
from retrieval.search.exact import ExactIndex

# The fields that decide which pairs and embeddings there are.
FIELDS = (
    *("mine.model", "mine.reranker", "mine.format", "rerank.length", "model.dtype"),
    *(f"pairs.{name}" for name in ("files", "sources", "format", "fields", "queries", "collection")),
    *(f"data.{name}_length" for name in ("query", "document")),
)


@contextlib.contextmanager
def opened(run: Run, folder: Path) -> Iterator[tuple[Searched, dict[str, Any]]]:
    """The queries of the pairs, and exact search among their candidates. Margins are to a query's worst positive.

    Raises:
      UserError: no query is left, or a model does not do.
    """
    config = run.config
    folder.mkdir(exist_ok=True)
    with labelled_groups.opened(run, folder, every=True) as (groups, counts):
        documents = Distinct(lambda: _texts(config.pairs.collection, groups), grouping.number)
        counts.log("mine")
        path, named = folder / "candidates.jsonl", enumerate(documents)
        beir.write_candidates(path, (Candidate(text.id or f"text-{row}", text.title, text.text) for row, text in named))
        questions = hard_negatives.with_known([_question(documents, *group) for group in enumerate(groups)])
    if not questions:
        raise UserError(f"config.pairs.files={config.pairs.files}: no query with a positive is left; name other files")
    with CandidateTexts(path) as candidates:
        embedder = EMBEDDERS.open(run, config.mine.model, "config.mine.model")
        texts = {QUERIES: [question.text for question in questions], DOCUMENTS: candidates}
        for side, items in texts.items():
            embedder.write(folder, side, side, numbered(items), len(items))
        queries, rows = StoredRows(folder, QUERIES), StoredRows(folder, DOCUMENTS)
        judge = functools.partial(_by_embeddings, queries, rows)
        if config.mine.reranker:
            scorer = TRAINED["reranker"].open(run, config.mine.reranker, "config.mine.reranker")
            judge = functools.partial(_by_reranker, scorer, folder / "judged", candidates)
        about = {"model": config.mine.model, "reranker": config.mine.reranker}
        yield Searched(questions, candidates, queries, ExactIndex(rows).search, judge), about


def _texts(collection: str, groups: Iterable[grouping.Example]) -> Iterator[Candidate]:
    if collection:
        yield from trec.read_candidates(Path(collection))
    for group in groups:
        yield from group.positives if collection else (*group.positives, *group.negatives)


def _question(documents: Distinct[Candidate], number: int, group: grouping.Example) -> Question:
    itself = Candidate("", "", group.query)
    own = [documents.number(itself)] if itself in documents else []
    return Question(str(number), group.query, list(dict.fromkeys(map(documents.number, group.positives))), own)


def _by_embeddings(
    embedded: StoredRows, documents: StoredRows, start: int, questions: Sequence[Question], lists: Lists
) -> tuple[Lists, np.ndarray]:
    """Leaves lists as they are, and scores positives by their embeddings."""
    places, rows = zip(*_positives(questions))
    query_PE = embedded[start : start + len(questions)][list(places)]
    return lists, _worst(questions, np.einsum("pe,pe->p", query_PE, documents[np.array(rows)]))


def _by_reranker(
    scorer: PairScorer, at: Path, texts: CandidateTexts, start: int, questions: Sequence[Question], lists: Lists
) -> tuple[Lists, np.ndarray]:
    """A reranker's scores of positives, and of what the embedder found, in their order."""
    _, rows_QK = lists
    is_found_QK = rows_QK >= 0
    pairs = [*zip(np.nonzero(is_found_QK)[0].tolist(), rows_QK[is_found_QK].tolist()), *_positives(questions)]
    queries, folder = [question.text for question in questions], at / f"{start:09d}"
    scores_P, _ = scorer.score_all(folder, queries, lambda: pairs, len(pairs), texts.__getitem__)
    scores_QK, count = np.full(rows_QK.shape, -np.inf, np.float32), int(is_found_QK.sum())
    scores_QK[is_found_QK] = scores_P[:count]
    order_QK = np.argsort(-scores_QK, axis=1, kind="stable")
    ranked = np.take_along_axis(scores_QK, order_QK, axis=1), np.take_along_axis(rows_QK, order_QK, axis=1)
    return ranked, _worst(questions, scores_P[count:])


def _positives(questions: Sequence[Question]) -> list[tuple[int, int]]:
    """The place of a question and the row of a positive, of all positives."""
    return [(place, row) for place, question in enumerate(questions) for row in question.positives]


def _worst(questions: Sequence[Question], scores_P: np.ndarray) -> np.ndarray:
    """The lowest score [Q] of each question's positives."""
    return np.minimum.reduceat(scores_P, np.cumsum([0, *(len(question.positives) for question in questions[:-1])]))


def models(config: ConfigDict) -> Iterator[tuple[TrainedKind, str, str]]:
    """The embedder and the reranker that are named: their kinds, values and fields."""
    named = ("model", EMBEDDERS), ("reranker", TRAINED["reranker"])
    return ((kind, config.mine[name], f"config.mine.{name}") for name, kind in named if config.mine[name])


def check(run: Run) -> None:
    """Checks the pairs and the models."""
    config, model = run.config, f"config.mine.model={run.config.mine.model}"
    if not (config.pairs.files or config.pairs.sources):
        raise UserError(f"{model} mines for labelled pairs: set config.pairs.files to files of them")
    if "pairs" in config.stages:
        way = "leave 'pairs' out of config.stages, and name the file in config.pairs.files of another run"
        raise UserError(f"{model} mines for a file, and 'pairs' would train on config.pairs.files as they are: {way}")
    if not hosts.is_alone():
        raise UserError(f"{model}: one host mines for pairs; leave --multihost out")
    source_paths.checked("config.pairs.collection", source_paths.split(config.pairs.collection), False)
    source_pairs.check_inputs(run)
    for kind, value, field in models(config):
        kind.check(run, value, field)


def inputs(run: Run) -> list[Path]:
    """The files of the pairs and of the models."""
    of_models = itertools.chain.from_iterable(kind.inputs(run, *named) for kind, *named in models(run.config))
    return [*labelled_groups.inputs(run.config), *of_models]


def fetch(run: Run) -> None:
    """Copies down the models that are on a store."""
    for kind, *named in models(run.config):
        kind.fetch(run, *named)

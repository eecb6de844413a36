"""Rerankers at work: rows of a query and a document, and their scores, by a model on the devices of this host."""

import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers.template import PairTemplate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.inference import Inference
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.search import encoding, text_batches

_FEW = 32  # pairs that are scored as one batch
_PAIRS = 8192  # of a file of scores at most
_COMPILED = 512  # tokens of the longest rows that are compiled before they come


def pair_of(vocabulary: Vocabulary) -> PairTemplate:
    """What stands around the query and the document of a row."""
    if vocabulary.pair_template is None:
        raise UserError("the tokenizer joins a query and a document in a way that is not known: take another model")
    return vocabulary.pair_template


def pair_scorer(
    config: ConfigDict, model: Any, pair: PairTemplate, mesh: jax.sharding.Mesh, value: str = "scores"
) -> Callable[[Any], encoding.Embed]:
    """From parameters to a function of rows [B, L] to "scores" or "logits" [B, 1]; compiled once per shape."""
    inference = Inference(config, model, pair.change[0], mesh, pair.change[1])
    return inference.compiled(lambda model, pairs: getattr(model, value)(pairs)[:, None])


@dataclasses.dataclass(frozen=True)
class JoinedRows:
    """Pairs as rows `[CLS] query [SEP] document [SEP]` of at most `length` tokens.

    Attributes:
      query: the tokens that a query is cut to, with what stands around it alone, as in training; the document is then
        cut to the rest. 0: the longer of the two is cut first, as transformers does.
    """

    vocabulary: Vocabulary
    length: int
    query: int = 0

    @property
    def pair(self) -> PairTemplate:
        """What stands around the query and the document of a row."""
        return pair_of(self.vocabulary)

    def begin(self, queries: Sequence[str]) -> list[Any]:
        """The tokens of each query."""
        ids, room = self.vocabulary.encode_batch(queries), max(0, self.query - self.vocabulary.template.size())
        return [each[:room] for each in ids] if self.query else ids

    def of(self, beginnings: Iterable[Any], documents: Sequence[Candidate]) -> list[list[int]]:
        """The row of each document, of the tokens of its title and its text, behind its query."""
        titles = self.vocabulary.encode_batch([each.title for each in documents])
        texts = self.vocabulary.encode_batch([each.text for each in documents])
        pair, around, rows = self.pair, self.vocabulary.template, []
        parted = {*around.between, *around.behind}
        for query, title, text in zip(beginnings, titles, texts):
            if not self.query:
                rows.append(pair.row(query, [*title, *text], self.length))
                continue
            # As the recipe 'reranker' makes rows of stored documents, which are cut alone first.
            stored = self.vocabulary.pair(title, text, self.length)[len(around.before) :]
            row = [*pair.before, *query, *pair.between]
            room = max(0, self.length - len(row) - len(pair.behind))
            rows.append([*row, *[id for id in stored if id not in parted][:room], *pair.behind])
        return rows

    def with_room(self, room: int) -> "JoinedRows":
        """The same with so many more tokens of a query, and of a row."""
        return dataclasses.replace(self, length=self.length + room, query=self.query and self.query + room)


class PairScorer:
    """A trained reranker. Threads may ask together."""

    def __init__(self, config: ConfigDict, model: Any, rows: JoinedRows):
        """Args are the run's config, the model, and the rows that it reads, with its vocabulary."""
        self._model, self._rows = model, rows
        mesh, parameters = local_mesh(config), parameters_of(model)
        self._sizes = {"batch_tokens": config.encode.batch_tokens, "longest": rows.length, "multiple": mesh.size}
        self._shard_size = min(config.encode.shard_size, _PAIRS)
        self._score = pair_scorer(config, model, rows.pair, mesh)(parameters)
        self._logit = pair_scorer(config, model, rows.pair, mesh, "logits")(parameters)

    def scores(self, queries: Sequence[str], documents: Sequence[Candidate]) -> np.ndarray:
        """The score of each query with the document beside it, float32 [P]; a higher one is better."""
        rows = self._rows.of(self._rows.begin(queries), documents)
        return encoding.encode_rows(rows, self._score, **self._sizes).reshape(-1)

    def scores_of(self, query: str, documents: Sequence[Candidate]) -> np.ndarray:
        """How well each of a few documents answers a query, float32 [N]."""
        return self.scores_of_logits(self.logits(self.rows_of(query, documents)))

    def rows_of(self, query: str, documents: Sequence[Candidate], room: int = 0) -> list[list[int]]:
        """The token ids of a query with each document, for `logits`.

        Args:
          room: tokens that the query, and a row, may have beyond those that the model takes. A pair is cut where it has
            another row with room.
        """
        rows = self._rows.with_room(room) if room else self._rows
        return rows.of(rows.begin([query]) * len(documents), documents)

    def logits(self, rows: Sequence[Sequence[int]]) -> np.ndarray:
        """The logit of each of a few pairs, float32 [N]: its sigmoid says how likely the document is relevant."""
        longest, multiple = self._rows.length, self._sizes["multiple"]
        parts = (rows[start : start + _FEW] for start in range(0, len(rows), _FEW))
        logits = [encoding.encode_few(part, self._logit, longest, multiple)[:, 0] for part in parts]
        return np.concatenate([np.zeros(0, np.float32), *logits])

    def scores_of_logits(self, logits: np.ndarray) -> np.ndarray:
        """The scores of pairs, in the order of their logits: a probability, its logarithm, or the logit."""
        if not self._model.sigmoid and self._model.classes == 1:
            return logits
        logarithms = -np.logaddexp(0, -logits)
        return np.exp(logarithms) if self._model.sigmoid else logarithms

    def compile(self, count: int) -> Iterator[None]:
        """Compiles what scores so many documents, a length at each turn: otherwise the first of every length wait."""
        for length in text_batches.lengths_up_to(min(self._rows.length, _COMPILED)):
            self.logits([[0] * length] * min(count, _FEW))
            yield

    def score_all(
        self,
        folder: Path,
        queries: Sequence[str],
        pairs: Callable[[], Iterable[tuple[int, Any]]],
        total: int,
        text_of: Callable[[Any], Candidate] = lambda document: document,
    ) -> tuple[np.ndarray, float | None]:
        """The scores [P] of pairs, in their order, by files: a run that was killed goes on after the last one.

        Every host scores files of its own.

        Args:
          folder: where the files lie.
          queries: the texts of all queries.
          pairs: gives the place of a query, and what `text_of` finds a document by, each time that it is called.
          total: how many pairs there are.

        Returns:
          The scores, and the seconds that one takes; None where an earlier process has scored all.
        """
        if not total:
            return np.zeros(0, np.float32), None
        beginnings, scored = self._rows.begin(queries), 0

        def rows(members: Sequence[tuple[int, Any]]) -> list[list[list[int]]]:
            nonlocal scored
            scored += len(members)
            documents = [text_of(document) for _, document in members]
            return [[row] for row in self._rows.of((beginnings[query] for query, _ in members), documents)]

        began = time.perf_counter()
        texts = ((str(query), (query, document)) for query, document in pairs())
        encoding.encode(folder, "pairs", texts, total, rows, self._score, **self._sizes, shard_size=self._shard_size)
        seconds = time.perf_counter() - began
        return encoding.load_of_all_hosts(folder, "pairs")[:, 0], seconds / scored if scored else None

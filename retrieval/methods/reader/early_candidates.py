"""What a reader's question tower is trained with: the first candidates of each question, and their embeddings.

Xiong et al. 2020, equation 3; Lee et al. 2019, section 6. The embeddings are those that the stage `encode` wrote of the
set whose passages are read. Rows that no question has are not copied.
"""

import array
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval import files
from retrieval.data.sets import answers
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.errors import UserError
from retrieval.methods.reader import question_tower
from retrieval.methods.reader.span_shards import Compared
from retrieval.recipes.towers import query_tokens
from retrieval.search import encoding
from retrieval.search.encoding import StoredRows
from retrieval.stage_outputs import Run
from retrieval.stages.collection import Collection

FIELD = "config.spans.early"


class EarlyCandidates:
    """The candidates of questions, each numbered where it comes first."""

    def __init__(self, towers: Run, collection: Collection, texts: CandidateTexts, questions: Sequence[str]):
        """Args:
          towers: the run with the towers that embedded the collection.
          texts: of the collection, open.

        Raises:
          UserError: the embeddings are of other passages, or of several windows of one.
        """
        self._folder = _checked(collection)
        self._tokens = query_tokens(towers.config, towers.load_vocabulary(), questions)
        self._holding = answers.finder(lambda row: texts[row].text)
        self._number_N = np.full(len(texts), -1, np.int32)
        self._rows = array.array("i")

    def of(self, question: int, known: Answers, rows: Sequence[int]) -> Compared:
        """What the tower is trained with of the question of a number, whose candidates are some rows, best first.

        Raises:
          TooSlowError: a regular expression of its answers takes too long.
        """
        holding = set(self._holding(known, rows))
        holds = [place for place, row in enumerate(rows) if row in holding]
        return Compared(self._tokens[question], [self._number(row) for row in rows], holds)

    def _number(self, row: int) -> int:
        if self._number_N[row] < 0:
            self._number_N[row] = len(self._rows)
            self._rows.append(row)
        return int(self._number_N[row])

    def write(self, path: Path) -> int:
        """Writes the embeddings, float32 [M, E], in the order of their numbers; returns M. One shard is in memory."""
        stored, rows_M = StoredRows(self._folder, "candidates"), np.asarray(self._rows, np.int64)
        with files.atomic(path) as temporary:
            written_ME = np.lib.format.open_memmap(temporary, "w+", np.float32, (len(rows_M), stored.shape[1]))
            for first, end in itertools.pairwise(stored.ends):
                is_here_M = (first <= rows_M) & (rows_M < end)
                written_ME[is_here_M] = stored[first:end][rows_M[is_here_M] - first]
            written_ME.flush()
        return len(rows_M)


def _checked(collection: Collection) -> Path:
    """The folder of the embeddings of a collection's candidates, a row for each."""
    folder = collection.embeddings()
    ids = encoding.load_ids(folder, "candidates")
    if len(set(ids)) < len(ids):
        raise UserError(
            f"{FIELD}: {folder} has several windows of a passage, and the question tower is trained with one "
            "embedding of each: encode with config.encode.windows=1"
        )
    for number, (id, candidate) in enumerate(itertools.zip_longest(ids, collection.candidates()), 1):
        if candidate is None or id != candidate.id:
            raise UserError(
                f"{FIELD}: {folder}: embedding {number} is not of passage {number} of {collection.files[0]}: name in "
                "config.base a run that has encoded this set"
            )
    return folder


def check(run: Run, early: int, depth: int) -> None:
    """Checks that a run's towers and embeddings are there, for as many candidates as paragraphs or more.

    Args:
      run: as the stage `spans` sees it.

    Raises:
      UserError: they are not.
    """
    if early < depth:
        raise UserError(
            f"{FIELD}={early}: its candidates begin with the paragraphs that are read, and config.spans.depth={depth} "
            "are: raise the first or lower the second"
        )
    question_tower.check_towers(run.holder("train"), f"{FIELD}={early}")
    if "encode" not in run.holder("encode").config.stages:
        raise UserError(
            f"{FIELD}={early} takes the embeddings that the stage 'encode' writes: add it to the base's stages"
        )

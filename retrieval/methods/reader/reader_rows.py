"""Rows that a reader takes: `[CLS] question [SEP] title [SEP] text [SEP]`, or without the title and its [SEP].

The paragraph of a row is what stands between its last two [SEP]: there alone can an answer be.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import SEPARATOR, Vocabulary

_TITLE = 4  # a title takes at most this part of a row


class RowLengths(NamedTuple):
    """The tokens of a question with its [CLS] and [SEP], and of a row."""

    question: int
    row: int


class Row(NamedTuple):
    """A row of tokens.

    Attributes:
      ids: with the special tokens.
      first: where in the row the text begins.
      places: of each token of the text that is in the row, its first character, and the one behind its last.
      cut: how many tokens of the text are left out.
    """

    ids: list[int]
    first: int
    places: list[tuple[int, int]]
    cut: int

    def tokens_of(self, start: int, end: int) -> tuple[int, int] | None:
        """The first and the last token of a row that characters [start, end) of the text need.

        None where not all of them are in the row, or no token has them.
        """
        inside = [place for place, (first, behind) in enumerate(self.places) if behind > start and first < end]
        if not inside or (self.places[inside[-1]][1] < end and self.cut):
            return None
        return self.first + inside[0], self.first + inside[-1]

    def characters_of(self, first: int, last: int) -> tuple[int, int]:
        """The characters [start, end) of the text that two tokens of the row and those between have."""
        return self.places[first - self.first][0], self.places[last - self.first][1]


def question_tokens(vocabulary: Vocabulary, question: str, lengths: RowLengths) -> list[int]:
    """`[CLS] question [SEP]`, cut to its length."""
    return vocabulary.single(vocabulary.encode(question.replace(SEPARATOR, " ")), lengths.question)


def row_of(vocabulary: Vocabulary, question: Sequence[int], paragraph: Candidate, lengths: RowLengths) -> Row:
    """The row of a question, as `question_tokens` gives it, with a paragraph, which is cut to the rest."""
    title = vocabulary.encode(paragraph.title.replace(SEPARATOR, " "))[: lengths.row // _TITLE]
    beginning = [*question, *([*title, vocabulary.sep_id] if title else [])]
    # A separator would be a [SEP] of its own; a blank has as many characters.
    ids, places = vocabulary.encode_with_places(paragraph.text.replace(SEPARATOR, " "))
    room = max(0, lengths.row - len(beginning) - 1)
    return Row([*beginning, *ids[:room], vocabulary.sep_id], len(beginning), places[:room], max(0, len(ids) - room))


def inside_paragraph(ids_RL: np.ndarray, sep_id: int) -> np.ndarray:
    """1 for the tokens of padded rows that stand between their last two [SEP], int32 [R, L]."""
    is_sep_RL = ids_RL == sep_id
    behind_RL = np.cumsum(is_sep_RL[:, ::-1], axis=1)[:, ::-1]
    before_RL = np.cumsum(is_sep_RL, axis=1)
    return ((behind_RL == 1) & (before_RL >= 1) & ~is_sep_RL & (ids_RL != 0)).astype(np.int32)

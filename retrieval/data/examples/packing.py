"""Several texts in a row: which examples of a lane make its next batch, and where their texts lie.

Examples are placed in the order in which they were drawn, each text in the fullest row that has room for it. An example
that does not fit waits, and is the first to be placed in the next batch: nothing is cut, lost or drawn twice.

How many rows packed texts need is found by packing a sample of them. It is what one lane draws first, so every host and
every resumed run finds the same.

Letters of shapes: N examples, C those of a batch, K texts of an example in a field, T texts of a batch, S tokens
of all of them, W tokens of a text with its padding, L tokens of a row.
"""

import bisect
import collections
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime.filler import FILLER

Arrays = dict[str, np.ndarray]
Packed = tuple[Arrays, np.ndarray]  # a batch, and the numbers of its examples
_Placed = tuple[np.ndarray, list[np.ndarray]]  # the numbers of examples, and where their texts start
_Room = tuple[int, int]  # the places that are left in a row, and its number

PREDICTIONS = ("positions", "labels", "weights")  # the fields of masked tokens

OTHER_ROWS = "by another config.data.pack or on devices whose number does not divide config.data.lanes; go on as begun"
WAITING = ".waiting.npz"  # how the names of files end that have examples without room
# Chance alone makes a batch's worth or two wait. So many are a sign that more tokens are drawn than the rows hold.
_MOST_WAITING = 16


class Rows(NamedTuple):
    """The rows of a lane's batch for the texts of one field.

    Attributes:
      count: how many.
      length: tokens of each.
      setting: the setting that a user raises for more rows.
    """

    count: int
    length: int
    setting: str


def rows_for(texts: int, text_length: int, share: float, row_length: int, setting: str) -> Rows:
    """Rows for `texts` texts with `share` of the tokens that they would take with their padding.

    Args:
      setting: the name of the setting that the share is from; the row length is that of `<setting>_row`.

    Raises:
      UserError: the share is 0, or a row is shorter than a text may be.
    """
    if not share:
        raise UserError(f"{setting}={share}: one side cannot be packed without the other; set it, at most to 1")
    if row_length < text_length:
        raise UserError(f"{setting}_row={row_length} is too short: a text may have {text_length} tokens")
    return Rows(math.ceil(share * texts * text_length / row_length), row_length, setting)


class Packing(NamedTuple):
    """How a lane's examples are packed.

    Attributes:
      examples: C, those of a batch.
      texts: field of token ids, [N, W] or [N, K, W] -> its rows. Where there is a field `<field>_types`, it goes along.
      predictions: of MLM, the places for the masked tokens of a batch, as one row: `positions`, `labels` and `weights`
        lie there one after another.
    """

    examples: int
    texts: Mapping[str, Rows]
    predictions: Rows | None = None

    @property
    def rows(self) -> dict[str, Rows]:
        """All that can run out, by the field that fills it."""
        return {**self.texts} | ({"weights": self.predictions} if self.predictions else {})

    def lengths(self, examples: Arrays) -> dict[str, np.ndarray]:
        """How much each text takes of its rows, by field, [N, K]."""
        empty = {field: FILLER if field in self.texts else 0 for field in self.rows}
        counts = {field: np.count_nonzero(examples[field] != none, axis=-1) for field, none in empty.items()}
        return {field: np.atleast_2d(count.T).T for field, count in counts.items()}

    def pack(self, examples: Arrays) -> Packed | None:
        """A batch of the first examples that fit, and which these are, [C]; None where fewer than C fit.

        Queries [2 7 3], [2 5 6 4 8 3] and [2 9 3] in rows of 8 tokens become

            query [[2 7 3 2 9 3 -1 -1] [2 5 6 4 8 3 -1 -1]]   query_segments [[1 1 1 3 3 3 0 0] [2 2 2 2 2 2 0 0]]
            query_starts [0 8 3]                              query_positions [[0 1 2 0 1 2 0 0] [0 1 2 3 4 5 0 0]]

        with an axis of size 1 before them: the lane. `positions` of MLM, offsets in a text, become offsets in all rows.
        Fields that are not packed stay as they are.
        """
        lengths = self.lengths(examples)
        if not (placed := _place([*self.rows.values()], [*lengths.values()], self.examples)):
            return None
        chosen, places = placed
        batch = {name: values[chosen] for name, values in examples.items()}
        spots = {}
        for (field, rows), starts_T in zip(self.rows.items(), places):
            spots[field] = _Spots(rows, starts_T, lengths[field][chosen].reshape(-1))
        if self.predictions:
            (text,) = self.texts
            batch["positions"] = batch["positions"] + spots[text].starts_T[:, None]
            for name in PREDICTIONS:
                batch[name] = spots["weights"].lay(batch[name])[0]
        for field in self.texts:
            batch |= _packed_texts(batch, field, spots[field])
        return batch, chosen

    def needs(self, tokens: Mapping[str, float]) -> list[tuple[float, str]]:
        """The share of its rows that each field needs for so many tokens an example, and the setting of the rows."""
        return [(self.examples * tokens[name] / _tokens(rows), rows.setting) for name, rows in self.rows.items()]

    def pack_shortest(self, examples: Arrays) -> Packed | None:
        """As `pack`, of the first example and the shortest others, or of the shortest where these do not fit."""
        sizes_N = np.sum([lengths.sum(axis=1) for lengths in self.lengths(examples).values()], axis=0)
        shortest = np.argsort(sizes_N, kind="stable")
        for order in (np.concatenate([[0], shortest[shortest > 0]]), shortest):
            if packed := self.pack({name: values[order] for name, values in examples.items()}):
                return packed[0], order[packed[1]]
        return None

    def shortage(self, tokens: Mapping[str, float], waiting: Arrays) -> str:
        """Which rows are too few, for examples that have so many tokens on average, by field, and those that wait."""
        needs, lengths = self.needs(tokens), self.lengths(waiting)
        needed = " and ".join(f"{100 * need:.0f} % of what {setting} gives" for need, setting in needs)
        short = [rows.setting for name, rows in self.rows.items() if not _place([rows], [lengths[name]], self.examples)]
        return f"a batch needs {needed}, and rows are never quite full: raise {' and '.join(short) or max(needs)[1]}"


class Lane(Protocol):
    """Examples in a fixed order, from a position that can be saved."""

    name: str

    def __next__(self) -> Arrays:
        """The next of them, as arrays [N, ...]."""
        ...

    def save(self, folder: Path) -> None:
        """Writes the position."""

    def restore(self, folder: Path) -> None:
        """Goes back to a position."""


class PackedLane:
    """A lane with its examples packed. Its position is that of the lane, and the examples that are drawn and wait."""

    def __init__(self, lane: Lane, packing: Packing):
        self.name, self._lane, self._packing = lane.name, lane, packing
        self._waiting: Arrays = {}
        self._drawn = collections.Counter()  # tokens by field, and examples as "", since the process began

    def __next__(self) -> Arrays:
        """The next packed batch.

        Raises:
          UserError: the examples have more tokens than the rows hold; the message says which are too few.
        """
        packed = self._packing.pack(self._waiting) if self._waiting else None
        while packed is None:
            self._draw()
            packed = self._past_the_longest() or self._packing.pack(self._waiting)
        self._waiting = _without(self._waiting, packed)
        return packed[0]

    def _draw(self) -> None:
        drawn = next(self._lane)
        self._waiting = _joined(self._waiting, drawn)
        lengths = self._packing.lengths(drawn)
        self._drawn.update({field: int(values.sum()) for field, values in lengths.items()})
        self._drawn[""] += len(next(iter(drawn.values())))

    def _past_the_longest(self) -> Packed | None:
        """A batch without most of the long texts that others wait behind; None while few wait.

        Raises:
          UserError: rows are too few for what is drawn.
        """
        count = len(next(iter(self._waiting.values())))
        if count <= _MOST_WAITING * self._packing.examples:
            return None
        tokens = {field: self._drawn[field] / self._drawn[""] for field in self._packing.rows}
        enough = all(need <= 1 for need, _ in self._packing.needs(tokens))
        packed = self._packing.pack_shortest(self._waiting) if enough else None
        if not packed:
            shortage = self._packing.shortage(tokens, self._waiting)
            raise UserError(f"{self.name}: {count} examples wait for room; {shortage}")
        return packed

    def save(self, folder: Path) -> None:
        """Writes the lane's position and what waits."""
        self._lane.save(folder)
        waiting: dict[str, Any] = self._waiting
        np.savez(self._file(folder), **waiting)

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position.

        Raises:
          UserError: the folder holds no position of this lane, or of one that was not packed.
        """
        self._lane.restore(folder)
        if not self._file(folder).exists():
            raise UserError(f"{self._file(folder)} is missing: the run began without packed rows, {OTHER_ROWS}")
        self._waiting = files.read_arrays(self._file(folder), "delete the checkpoint and train again")

    def _file(self, folder: Path) -> Path:
        return folder / f"{self.name}{WAITING}"


def _place(rows: Sequence[Rows], lengths: Sequence[np.ndarray], examples: int) -> _Placed | None:
    """The first `examples` examples that fit, [C], and for each field where their texts start, [C * K].

    Args:
      lengths: for each field, of all examples, [N, K].
    """
    # Rows by the room that is left, so that the fullest one with enough is found by bisection.
    rooms = [[(field.length, row) for row in range(field.count)] for field in rows]
    chosen: list[int] = []
    starts: list[list[int]] = [[] for _ in rows]
    for number, example in enumerate(zip(*(values.tolist() for values in lengths))):
        if (taken := _take(rooms, example)) is not None:
            chosen.append(number)
            for field, (room, row), _ in taken:
                starts[field].append((row + 1) * rows[field].length - room)
            if len(chosen) == examples:
                return np.array(chosen), [np.array(values, np.int32) for values in starts]
    return None


def _take(rooms: list[list[_Room]], example: Sequence[list[int]]) -> list[tuple[int, _Room, _Room]] | None:
    """Takes room for all texts of an example, or for none: (field, room before, room behind) of each, or None."""
    taken = []
    for field, length in ((field, length) for field, lengths in enumerate(example) for length in lengths):
        at = bisect.bisect_left(rooms[field], (length,))
        if at == len(rooms[field]):
            for field, before, behind in reversed(taken):
                rooms[field].remove(behind)
                bisect.insort(rooms[field], before)
            return None
        before = rooms[field].pop(at)
        taken.append((field, before, (before[0] - length, before[1])))
        bisect.insort(rooms[field], taken[-1][2])
    return taken


class _Spots:
    """Where in the rows of a field the tokens of its texts go."""

    def __init__(self, rows: Rows, starts_T: np.ndarray, lengths_T: np.ndarray):
        self.starts_T, self._rows, self._lengths_T = starts_T, rows, lengths_T
        before_T = np.cumsum(lengths_T) - lengths_T
        # Of all tokens, one text after the other: the number of the text, the place in it, and the place in the rows.
        self.numbers_S = np.repeat(np.arange(1, len(lengths_T) + 1, dtype=np.int32), lengths_T)
        self.positions_S = np.arange(len(self.numbers_S), dtype=np.int32) - np.repeat(before_T, lengths_T)
        self._places_S = self.positions_S + np.repeat(starts_T, lengths_T)

    def lay(self, values: np.ndarray, fill: int = 0) -> np.ndarray:
        """Padded texts [..., W] in rows, [1, rows, L]."""
        values_TW = values.reshape(len(self._lengths_T), -1)
        return self.lay_flat(values_TW[np.arange(values_TW.shape[1]) < self._lengths_T[:, None]], fill)

    def lay_flat(self, values_S: np.ndarray, fill: int = 0) -> np.ndarray:
        """The same of the values of all tokens, one text after the other."""
        laid = np.full((1, self._rows.count, self._rows.length), fill, values_S.dtype)
        laid.reshape(-1)[self._places_S] = values_S
        return laid


def _packed_texts(batch: Arrays, field: str, spots: _Spots) -> Arrays:
    """The fields that stand for a field of texts, with the axis of the lane."""
    types = f"{field}_types"
    laid = {types: spots.lay(batch[types])} if types in batch else {}
    return laid | {
        field: spots.lay(batch[field], FILLER),
        f"{field}_segments": spots.lay_flat(spots.numbers_S),
        f"{field}_positions": spots.lay_flat(spots.positions_S.astype(np.int32)),
        f"{field}_starts": spots.starts_T[None],
    }


WORTH = 0.95  # of the tokens of a text per row: packing that saves less is left out
_SPARE = 16  # one example in so many has room beside those of a batch

# Rows of each field to the places for masked tokens that they have; None where nothing is masked.
Places: TypeAlias = Callable[[Mapping[str, Rows]], Rows | None]


def choose_rows(
    packing: Packing, lengths: Mapping[str, Sequence[int]], sample: Sequence[Arrays], places: Places = lambda _: None
) -> Packing | None:
    """The packing with the fewest tokens in which the sample never falls behind by more than a batch.

    It is packed in batches that are a little larger. Rows that just hold the sample would not hold what comes later:
    other lanes have other texts, and what falls behind slowly is not seen in a few batches.

    Args:
      packing: with one row for every text, as long as a text may be.
      lengths: field -> the lengths that its rows may have; those that are too short for a text are left out.
      sample: the examples of some batches, in the order in which they are drawn.
      places: the recipe's own.

    Returns:
      None where a text per row takes hardly more, `WORTH`.
    """
    keeps_up = functools.partial(_keeps_up, examples=packing.examples, sample=sample, places=places)
    texts = {}
    for field, plain in packing.texts.items():
        longs = [length for length in dict.fromkeys(lengths[field]) if length >= plain.length]
        choices = [_fewest(packing, field, length, keeps_up) for length in longs]
        texts[field] = min([*filter(None, choices), plain], key=_tokens)
    most = WORTH * sum(map(_tokens, packing.texts.values()))
    while sum(map(_tokens, texts.values())) <= most:
        packed = {field: rows for field, rows in texts.items() if rows != packing.texts[field]}
        if keeps_up(packed):
            return packing._replace(texts=texts, predictions=places(texts))
        # An example waits for room on either side. So both together may need a little more than each alone.
        wider = {field: rows._replace(count=rows.count + 1) for field, rows in texts.items()}
        texts = {field: min(rows, packing.texts[field], key=_tokens) for field, rows in wider.items()}
    return None


def _fewest(packing: Packing, field: str, length: int, keeps_up: Callable[[Mapping[str, Rows]], bool]) -> Rows | None:
    """The fewest rows of a length for one field; None where these take more than a text per row."""
    plain = packing.texts[field]
    texts_a_row, texts_of_an_example = length // plain.length, math.ceil(plain.count / packing.examples)
    # So many hold the longest texts of one example, which would wait for ever in fewer.
    least, most = math.ceil(texts_of_an_example / texts_a_row), _tokens(plain) // length

    def fits(count: int) -> bool:
        return keeps_up({field: plain._replace(count=count, length=length)})

    if most < least or not fits(most):
        return None
    count = least + bisect.bisect_left(range(least, most), True, key=fits)
    return plain._replace(count=count, length=length)


def _keeps_up(texts: Mapping[str, Rows], examples: int, sample: Sequence[Arrays], places: Places) -> bool:
    """Whether no more than a batch ever waits, where batches have some more than `examples`."""
    larger = Packing(examples + math.ceil(examples / min(_SPARE, len(sample))), texts, places(texts))
    fields = [*texts, *(PREDICTIONS if larger.predictions else ())]
    waiting: Arrays = {}
    for drawn in sample:
        waiting = _joined(waiting, {field: drawn[field] for field in fields})
        while packed := larger.pack(waiting):
            waiting = _without(waiting, packed)
        if any(len(values) > larger.examples for values in waiting.values()):
            return False
    return True


def _joined(waiting: Arrays, drawn: Arrays) -> Arrays:
    return {name: np.concatenate([waiting.get(name, values[:0]), values]) for name, values in drawn.items()}


def _without(waiting: Arrays, packed: Packed) -> Arrays:
    """The examples that are left behind a batch."""
    return {name: np.delete(values, packed[1], axis=0) for name, values in waiting.items()}


def _tokens(rows: Rows) -> int:
    return rows.count * rows.length

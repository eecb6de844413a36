"""How often passages have their words: what BM25's weights are computed from, whichever passages there are.

NAME.npz          words, counts and ends, as `WordCounts` has them
NAME.words.json   the words, by their numbers

Shape letters: N passages, V words, X pairs of a passage and one of its words.
"""

import array
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from retrieval import files


class WordCounts(NamedTuple):
    """Attributes:
    vocabulary: word -> number, in the order of the numbers; each is in some passage.
    words, counts: [X] the numbers of all passages' words, and how often each is there.
    ends: [N + 1] where the words of each passage end, behind a 0.
    """

    vocabulary: dict[str, int]
    words: np.ndarray
    counts: np.ndarray
    ends: np.ndarray

    @classmethod
    def of(cls, passages: Iterable[Mapping[str, int]]) -> "WordCounts":
        """Those of passages, each a word -> how often it is there."""
        vocabulary: defaultdict[str, int] = defaultdict()
        vocabulary.default_factory = vocabulary.__len__  # a new word gets the next number
        # 8 bytes for every word of a passage, however often it is there. MS MARCO has some 250 million.
        words, counts, ends = array.array("i"), array.array("i"), array.array("q", [0])
        for passage in passages:
            words.extend(map(vocabulary.__getitem__, passage))
            counts.extend(passage.values())
            ends.append(len(words))
        # The arrays are the memory of these, not copies of it.
        return cls(dict(vocabulary), np.asarray(words), np.asarray(counts), np.asarray(ends))

    @property
    def passages(self) -> int:
        """How many there are."""
        return len(self.ends) - 1

    @classmethod
    def joined(cls, parts: Sequence["WordCounts"], places_N: np.ndarray) -> "WordCounts":
        """Some of the passages of several, in an order: `places_N` are those in the list of all passages of all parts.

        The words of a passage keep their order. Words of none of these passages are left out.
        """
        names = dict.fromkeys(itertools.chain.from_iterable(part.vocabulary for part in parts))
        numbers = {name: number for number, name in enumerate(names)}

        def matrix(part: "WordCounts") -> Any:
            number_V = np.fromiter(map(numbers.__getitem__, part.vocabulary), np.int32, len(part.vocabulary))
            shape = part.passages, len(numbers)
            return scipy.sparse.csr_array((part.counts, number_V[part.words], part.ends), shape=shape)

        every: Any = scipy.sparse.vstack([matrix(part) for part in parts], format="csr")
        chosen = every[places_N]
        is_used_V = np.bincount(chosen.indices, minlength=len(numbers)) > 0
        words = (np.cumsum(is_used_V, dtype=np.int32) - 1)[chosen.indices]
        used = itertools.compress(names, is_used_V.tolist())
        return cls({name: number for number, name in enumerate(used)}, words, chosen.data, chosen.indptr)

    def save(self, folder: Path, name: str) -> None:
        """Writes two files into a folder."""
        files.write_text(folder / f"{name}.words.json", json.dumps(list(self.vocabulary)))
        with (folder / f"{name}.npz").open("wb") as file:
            np.savez(file, words=self.words, counts=self.counts, ends=self.ends)

    @classmethod
    def load(cls, folder: Path, name: str, remedy: str) -> "WordCounts":
        """Reads what `save` wrote.

        Args:
          remedy: what to do about an error, the end of its message.

        Raises:
          UserError: a file is missing or damaged.
        """
        arrays = files.read_arrays(folder / f"{name}.npz", remedy)
        words = files.read_json(folder / f"{name}.words.json")
        return cls({word: number for number, word in enumerate(words)}, **arrays)

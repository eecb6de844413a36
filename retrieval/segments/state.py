"""Which documents there are: segments, and those of their documents that have been deleted or replaced since."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.segments import segment
from retrieval.segments.segment import Segment


class State(NamedTuple):
    """Attributes:
    generation: its number; each change makes the next one, and so does each merge.
    dead: of each segment which of its documents [D] are no longer there. A document is alive in one segment at most.
    """

    generation: int
    segments: tuple[Segment, ...]
    dead: tuple[np.ndarray, ...]

    @property
    def alive(self) -> dict[str, tuple[int, int]]:
        """Each document that is there -> its segment, and its place in that."""
        pairs = enumerate(zip(self.segments, self.dead))
        return {
            each.documents[at]: (number, at) for number, (each, dead) in pairs for at in np.flatnonzero(~dead).tolist()
        }

    @property
    def hashes(self) -> dict[str, str]:
        """Each document that is there -> what tells whether it is the same in another state."""
        return {id: self.segments[number].hashes[at] for id, (number, at) in self.alive.items()}


class Changes(NamedTuple):
    """How many documents a change has made new, replaced, deleted, and left as they were.

    Attributes:
      generation: that there is now.
    """

    added: int
    replaced: int
    deleted: int
    unchanged: int
    generation: int

    def __str__(self) -> str:
        return ", ".join(f"{name} {count:,}" for name, count in self._asdict().items())


class Edit(NamedTuple):
    """What a change comes to.

    Attributes:
      new: the documents that are to be a segment, with their passages.
      dead: as that of the state, with what is deleted and replaced.
    """

    new: Mapping[str, Sequence[Candidate]]
    dead: tuple[np.ndarray, ...]
    changes: Changes


def edited(state: State, documents: Mapping[str, Sequence[Candidate]], gone: Collection[str] = ()) -> Edit:
    """What is to be done to a state so that it has some documents, each an id and its passages.

    Args:
      gone: documents of the state that are deleted.
    """
    alive, dead = state.alive, tuple(each.copy() for each in state.dead)
    new: dict[str, Sequence[Candidate]] = {}
    for id, passages in documents.items():
        number, at = alive.get(id, (-1, -1))
        if number < 0 or state.segments[number].hashes[at] != segment.hash_of(passages):
            new[id] = passages
    replaced = new.keys() & alive.keys()
    for id in (*replaced, *gone):
        number, at = alive[id]
        dead[number][at] = True
    counts = len(new) - len(replaced), len(replaced), len(gone), len(documents) - len(new)
    return Edit(new, dead, Changes(*counts, state.generation + 1))


def followed(state: State, edit: Edit, new: Segment | None) -> State:
    """The state after a change: segments without a living document are left out.

    Args:
      new: the segment of its documents; None where there are none.
    """
    kept = [(each, dead) for each, dead in zip(state.segments, edit.dead) if not dead.all()]
    kept += [(new, np.zeros(len(new.documents), bool))] if new else []
    return State(state.generation + 1, tuple(each for each, _ in kept), tuple(dead for _, dead in kept))

"""Changes of documents, and merges of what they leave, wherever the documents are kept."""

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np

from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.segments import merging, segment, state
from retrieval.segments.segment import Recipe, Segment
from retrieval.segments.state import Changes, State


class NoDocumentError(UserError):
    """A document is to be deleted that is not there."""


class Place(Protocol):
    """Where states are kept: `Generations`, or `InMemory`."""

    def read(self) -> State | None:
        """The newest state; None before the first change."""
        ...

    def changing(self) -> AbstractContextManager[None]:
        """Around a change: others wait."""
        ...

    def merging(self) -> AbstractContextManager[bool]:
        """Around a merge, beside which changes go on; gives whether this is the only one."""
        ...

    def keep(self, made: Segment) -> Segment:
        """A segment as it is kept."""
        ...

    def commit(self, state: State) -> None:
        """Makes a state the newest one; to be called while `changing`."""
        ...


class InMemory:
    """A place that ends with the process."""

    def __init__(self) -> None:
        self._state: State | None = None
        self._lock, self._merging = threading.Lock(), threading.Lock()

    def read(self) -> State | None:
        return self._state

    @contextlib.contextmanager
    def changing(self):
        with self._lock:
            yield

    @contextlib.contextmanager
    def merging(self):
        is_alone = self._merging.acquire(blocking=False)
        try:
            yield is_alone
        finally:
            if is_alone:
                self._merging.release()

    def keep(self, made: Segment) -> Segment:
        return made

    def commit(self, state: State) -> None:
        self._state = state


class Documents:
    """Documents that change. Threads may change them together, and processes where the place allows it."""

    def __init__(self, place: Place, recipe: Recipe, first: Callable[[], Segment]):
        """Args:
        first: gives what there is before the first change.
        """
        self._place, self._recipe, self._first = place, recipe, first

    def read(self) -> State | None:
        """The newest state; None before the first change.

        Raises:
          UserError: it is damaged, or of another model.
        """
        return self._place.read()

    def put(self, documents: Mapping[str, Sequence[Candidate]]) -> tuple[State, Changes]:
        """Adds documents, each an id and its passages; one that is there is replaced, unless it is the same."""
        return self._change(documents, lambda state: ())

    def delete(self, ids: Collection[str]) -> tuple[State, Changes]:
        """Deletes documents.

        Raises:
          NoDocumentError: one is not there; then none is deleted.
        """

        def checked(state: State) -> Collection[str]:
            alive = state.alive
            if missing := next((id for id in ids if id not in alive), None):
                raise NoDocumentError(f"there is no document '{missing}' to delete, so none was deleted: leave it out")
            return ids

        return self._change({}, checked)

    def replace_all(self, documents: Mapping[str, Sequence[Candidate]]) -> tuple[State, Changes]:
        """Makes these documents all that there are."""
        return self._change(documents, lambda state: state.alive.keys() - documents.keys())

    def _change(
        self, documents: Mapping[str, Sequence[Candidate]], gone: Callable[[State], Collection[str]]
    ) -> tuple[State, Changes]:
        with self._place.changing():
            before = self._place.read()
            now = before or self._begin()
            edit = state.edited(now, documents, gone(now))
            if before and not (edit.new or edit.changes.deleted):
                return before, edit.changes._replace(generation=before.generation)
            new = self._place.keep(segment.make(edit.new, self._recipe)) if edit.new else None
            now = state.followed(now, edit, new)
            self._place.commit(now)
            return now, edit.changes

    def _begin(self) -> State:
        first = self._place.keep(self._first())
        return State(0, (first,), (np.zeros(len(first.documents), bool),))

    def merge(self) -> bool:
        """Makes one of segments that are many, or have many dead rows; says whether it did.

        Changes that come meanwhile are kept.
        """
        with self._place.merging() as is_alone:
            before = self._place.read() if is_alone else None
            chosen = merging.due(before) if before else []
            if not before or not chosen:
                return False
            made = merging.merged(before, chosen)
            kept = self._place.keep(made) if made else None
            with self._place.changing():
                now = self._place.read()
                assert now, "there was a state before"
                self._place.commit(merging.followed(now, chosen, kept))
            return True

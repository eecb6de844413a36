"""Several segments become one, without the dead rows: nothing is embedded again, and changes go on meanwhile."""

from collections.abc import Sequence

import numpy as np

from retrieval.search.word_counts import WordCounts
from retrieval.segments.live_rows import LiveRows
from retrieval.segments.segment import Segment
from retrieval.segments.state import State

_MOST, _DEAD = 8, 0.2  # segments; share of a segment's passages


def due(state: State) -> list[Segment]:
    """The segments that are to become one: those with many dead rows, and where there are many all but the largest."""
    pairs = list(zip(state.segments, state.dead))
    chosen = [each for each, dead in pairs if dead[each.document_N].mean() > _DEAD]
    if len(pairs) > _MOST:
        largest = max(state.segments, key=lambda each: len(each.ids))
        chosen += [each for each, _ in pairs if each is not largest and each not in chosen]
    return chosen


def merged(state: State, chosen: Sequence[Segment]) -> Segment | None:
    """One segment of what is alive in some segments; None where nothing is."""
    pairs = [(each, dead) for each, dead in zip(state.segments, state.dead) if each in chosen]
    rows = LiveRows(State(0, tuple(each for each, _ in pairs), tuple(dead for _, dead in pairs)))
    if not len(rows):
        return None
    starts = np.cumsum([0, *(len(each.documents) for each, _ in pairs)])
    document_N = np.concatenate([start + each.document_N for start, (each, _) in zip(starts, pairs)])
    # Their numbers among the documents that are left.
    left, document_L = np.unique(document_N[rows.places_L], return_inverse=True)
    ids, hashes, names = (
        [value for each, _ in pairs for value in getattr(each, what)] for what in ("documents", "hashes", "ids")
    )
    kinds = {kind: [each.counts[kind] for each, _ in pairs] for kind in pairs[0][0].counts}
    return Segment(
        [ids[at] for at in left],
        [hashes[at] for at in left],
        [names[at] for at in rows.places_L],
        document_L.astype(np.int32),
        rows,
        rows.vectors if pairs[0][0].vectors is not None else None,
        rows.owner_V,
        {kind: WordCounts.joined(parts, rows.places_L) for kind, parts in kinds.items()},
    )


def followed(state: State, chosen: Sequence[Segment], new: Segment | None) -> State:
    """The state in which one segment stands for some, with what has died in these since it was made."""
    alive = {id for id, (number, _) in state.alive.items() if state.segments[number] in chosen}
    rest = [(each, dead) for each, dead in zip(state.segments, state.dead) if each not in chosen]
    if new and alive:
        rest = [(new, np.array([id not in alive for id in new.documents])), *rest]
    return State(state.generation + 1, tuple(each for each, _ in rest), tuple(dead for _, dead in rest))

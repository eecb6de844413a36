"""What of a corpus is handed over to who has an earlier generation of it: what has changed since, and what has gone."""

import dataclasses
from collections.abc import Iterator

from retrieval.api import changing_documents
from retrieval.api.document_texts import document_of
from retrieval.errors import UserError
from retrieval.handover.vectors import INT8, Block, Vectors
from retrieval.pipeline.run import Run
from retrieval.segments.live_rows import LiveRows
from retrieval.stages.collection import Collection
from retrieval.stages.handover_source import live_ids, row_ids


def changed(run: Run, collection: Collection, whole: Vectors, since: int) -> Vectors:
    """Of the vectors of a corpus those of documents that are new or changed since a generation, and what has gone.

    Raises:
      UserError: its documents have never changed, that generation is not kept, or nothing has changed since.
    """
    field = f"config.handover.since={since}"
    now = changing_documents.state_of(run, whole.generation) if whole.generation else None
    if not now:
        raise UserError(f"{field}: the documents of '{collection.name}' have not changed: leave it out")
    if whole.dtype == INT8:
        raise UserError(f"{field}: the scale of int8 is that of a whole collection: leave it out, or take float32")
    then = changing_documents.state_of(run, since)
    assert then, "one that is not kept is refused"
    rows_then, rows_now = (row_ids(live_ids(LiveRows(state))) for state in (then, now))
    known, there = set(rows_then), set(rows_now)
    unchanged = dict(then.hashes.items() & now.hashes.items())
    wanted = {
        row
        for row, passage in zip(rows_now, live_ids(LiveRows(now)))
        if row not in known or document_of(passage) not in unchanged
    }
    deleted = tuple(row for row in rows_then if row not in there)
    if not (wanted or deleted):
        raise UserError(f"{field}: nothing has changed since, so there is nothing to hand over")

    def blocks() -> Iterator[Block]:
        for block in whole.blocks():
            kept = [row for row, id in enumerate(block.ids) if id in wanted]
            if kept:
                ids, titles, texts = ([of[row] for row in kept] for of in (block.ids, block.titles, block.texts))
                yield Block(ids, block.vectors[kept], titles, texts, [block.metadata[row] for row in kept])

    return dataclasses.replace(whole, rows=len(wanted), blocks=blocks, since=since, deleted=deleted)

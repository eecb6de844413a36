"""Routes that change the documents: they are there where the server may write."""

import asyncio
import functools
import json
from collections.abc import Callable, Sequence
from typing import Any

from starlette.responses import Response

from retrieval.api.changing_documents import ChangingDocuments
from retrieval.segments.changing import NoDocumentError
from retrieval.segments.state import Changes
from retrieval.serving import requests
from retrieval.serving.batching import Batcher
from retrieval.serving.errors import RefusedError
from retrieval.serving.requests import Field, Limits, Operation


class Writer:
    """Changes documents, and has the server answer with them before it says that they are changed."""

    def __init__(self, documents: Callable[[], ChangingDocuments | None], refresh: Callable[[], Any]):
        """Args:
        documents: gives those that are served.
        refresh: has the newest state served.
        """
        self._documents, self._refresh = documents, refresh

    def add(self, documents: Sequence[Any]) -> Changes:
        """Adds or replaces documents, as `ChangingDocuments.add`."""
        return self._changed(self._served.add(documents))

    def delete(self, id: str) -> Changes:
        """Deletes a document, as `ChangingDocuments.delete`."""
        return self._changed(self._served.delete([id]))

    @property
    def _served(self) -> ChangingDocuments:
        documents = self._documents()
        assert documents, "what a run has indexed can change, or says why it cannot"
        return documents

    def _changed(self, changes: Changes) -> Changes:
        self._refresh()
        self._served.merge_behind(self._refresh)
        return changes


def operations(writer: Writer | None, limits: Limits) -> tuple[Operation, ...]:
    """The routes; none without a writer."""
    if not writer:
        return ()
    # One change at a time, in a thread of its own: no search waits for the embedding of documents.
    writes: Batcher[Callable[[], Changes], Changes] = Batcher(
        lambda calls: [call() for call in calls], 1, limits.waiting
    )

    async def changed(call: Callable[[], Changes]) -> Response:
        try:
            changes = await asyncio.wrap_future(writes.submit(call))
        except NoDocumentError as error:
            raise RefusedError(404, str(error)) from error
        return Response(json.dumps(changes._asdict()), media_type="application/json")

    async def add(given: dict[str, Any]) -> Response:
        return await changed(functools.partial(writer.add, given["documents"]))

    async def delete(given: dict[str, Any]) -> Response:
        return await changed(functools.partial(writer.delete, given["id"]))

    documents = requests.several(requests.document(limits.body), limits.texts)
    return (
        Operation(
            "POST",
            "/api/documents",
            "adds documents, or replaces those of their ids",
            add,
            "Changed",
            (
                Field(
                    "documents", documents, "records with an 'id', a 'text', perhaps a 'title', a 'url'", is_needed=True
                ),
            ),
        ),
        Operation("DELETE", "/api/documents/{id:path}", "deletes a document", delete, "Changed"),
    )

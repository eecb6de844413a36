"""The task 'bfs', Body First Selection (Chang et al. 2020, section 3.2)."""

from __future__ import annotations

from retrieval.data.examples.corpus_tasks import BFS, LeadPairs
from retrieval.data.examples.task_kind import register
from retrieval.data.examples.token_rows import Record
from retrieval.libraries import tf


@register
class BodyFirst(LeadPairs):
    """A sentence of an article's lead asks for a passage of the same article."""

    name = "bfs"

    def draws(self, record: Record) -> tf.Tensor:
        """Every passage once that is not part of the lead itself."""
        return record["counts"][BFS]

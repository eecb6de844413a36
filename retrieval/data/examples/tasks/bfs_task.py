"""The task 'bfs', Body First Selection (Chang et al. 2020, section 3.2)."""

import tensorflow as tf

from retrieval.data.examples.corpus_tasks import BFS, LeadPairs
from retrieval.data.examples.task_kind import register
from retrieval.data.examples.token_rows import Record


@register
class BodyFirst(LeadPairs):
    """A sentence of an article's lead asks for a passage of the same article."""

    name = "bfs"
    what = "how often body-first selection is drawn"

    def draws(self, record: Record) -> tf.Tensor:
        """Every passage once that is not part of the lead itself."""
        return record["counts"][BFS]

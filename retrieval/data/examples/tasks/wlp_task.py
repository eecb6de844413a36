"""The task 'wlp', Wiki Link Prediction (Chang et al. 2020, section 3.3)."""

from __future__ import annotations

from retrieval.data.examples.corpus_tasks import LINKS, WLP, LeadPairs
from retrieval.data.examples.task_kind import register
from retrieval.data.examples.token_rows import Record
from retrieval.libraries import tf


@register
class LinkPrediction(LeadPairs):
    """A sentence of an article's lead asks for a passage of another article that links to it."""

    name = "wlp"
    shards = LINKS

    def draws(self, record: Record) -> tf.Tensor:
        """Every passage once for each of its links."""
        return record["counts"][WLP]

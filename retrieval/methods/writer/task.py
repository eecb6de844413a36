"""The task 'doc2query' (Nogueira et al. 2019): of a labelled passage, its query is to be written."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.data.examples.labelled_tasks import LabelledTask, documents
from retrieval.data.examples.task_kind import Given, Maker, register
from retrieval.data.examples.token_rows import Record, single
from retrieval.libraries import tf


@register
class QueryOfPassage(LabelledTask):
    """The source is a positive, `[CLS] title [SEP] text [SEP]`, and the target `[CLS] query [SEP]`."""

    name = "doc2query"
    kind = "generation"

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`; nothing is random."""

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            (source,) = documents(record, tf.constant([0]), lengths["source"], given.specials)
            return {"source": source, "target": single(record["query"], lengths["target"], given.specials)}

        return make

"""The task 'doc2query' (Nogueira et al. 2019): of a labelled passage, its query is to be written."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.data.examples.example_kind import ExampleKind, Field, types
from retrieval.data.examples.labelled_tasks import LabelledTask, documents
from retrieval.data.examples.task_kind import Given, Maker, register
from retrieval.data.examples.token_rows import Record, single
from retrieval.libraries import tf

GENERATION = ExampleKind(
    "generation",
    "sources and what is written of each",
    {"source": Field(), "target": Field()},
    {"source_types": Field(shape=("source",))},
    lambda row, sep_id: {"source_types": types(row["source"], sep_id)},
)


@register
class QueryOfPassage(LabelledTask):
    """The source is a positive, `[CLS] title [SEP] text [SEP]`, and the target `[CLS] query [SEP]`."""

    name = "doc2query"
    kind = GENERATION

    def maker(self, given: Given) -> Maker:
        """As `TaskKind.maker`; nothing is random."""

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            (source,) = documents(record, tf.constant([0]), lengths["source"], given.specials)
            return {"source": source, "target": single(record["query"], lengths["target"], given.specials)}

        return make

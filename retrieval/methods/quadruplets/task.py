"""The task 'quadruplets': a query, its positive, a simple and a hard negative (Liu et al. 2021, section 2.3)."""

from __future__ import annotations

from collections.abc import Mapping

from retrieval.common.libraries import tf
from retrieval.data.examples.task_kind import Maker, TaskData, TaskInputs, register
from retrieval.data.examples.tasks.labelled_tasks import LabelledTask, known_ids, of_chosen
from retrieval.data.examples.token_rows import Record


@register
class Quadruplets(LabelledTask):
    """A labelled query with a positive, one of its simple negatives, and one of its hard ones.

    A query without a hard negative has its positive in that place, which counts in no loss.
    """

    name = "quadruplets"

    def epoch(self, stored: TaskData, negatives: int) -> int:
        """As `TaskKind.epoch`: one negative is enough for an example."""
        return super().epoch(stored, 1)

    def maker(self, inputs: TaskInputs) -> Maker:
        """As `TaskKind.maker`. Of `lengths["document_id"]` texts the second is simple, and the third hard."""
        weight, known = inputs.weights[self.name], known_ids(inputs.labelled)

        def make(record: Record, seed: tf.Tensor, lengths: Mapping[str, int]) -> Record:
            negatives = tf.size(record["document_id"]) - 1
            # Of records that do not tell, all negatives are simple.
            simple = tf.concat([record["simple"], [negatives]], 0)[0]
            hard = negatives - simple
            at_random = tf.random.stateless_uniform([2], seed)
            first = 1 + _draw(at_random[0], simple)
            second = tf.where(hard > 0, 1 + simple + _draw(at_random[1], hard), 0)
            # Without a simple negative the hard one serves as both.
            first = tf.where(simple > 0, first, second)
            count = lengths["document_id"]
            chosen = tf.ensure_shape(tf.stack([0, first, second])[:count], [count])
            return of_chosen(record, chosen, lengths, inputs.specials, weight, known)

        return make


def _draw(at_random: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """A whole number below `count`, or 0."""
    return tf.minimum(tf.cast(at_random * tf.cast(count, tf.float32), tf.int32), tf.maximum(count - 1, 0))

"""The in-batch softmax of arrays, where it has a field of a batch for each."""

import jax

from retrieval.training.objectives.in_batch_softmax import InBatchSoftmax


def in_batch_softmax(
    query, document, ids, log_q=None, *, known=None, guide=None, block=512, temperature=1.0, **options
):
    """Losses [B] and metrics; an array as temperature is a learned one."""
    optional = {"log_q": log_q, "positive_ids": known, "guide": guide}
    if isinstance(temperature, jax.Array):
        optional, temperature = optional | {"scale": 1 / temperature}, 1.0
    options |= {"log_q": log_q is not None, "guide": "a model" if guide is not None else "", "temperature": temperature}
    loss = type("Blocks", (InBatchSoftmax,), {"block": block})(**options)
    fields = {name: values for name, values in optional.items() if values is not None}
    return loss(query, document, {"document_id": ids, **fields})

"""The loss that a config names, for a batch of embedded queries and documents."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from ml_collections import ConfigDict

from retrieval.config.fields import POSITIVE, SWITCH, Field, declare, one_of
from retrieval.errors import UserError
from retrieval.training import losses

IN_BATCH = "in_batch_softmax"
LOSSES = (IN_BATCH, *losses.OWN_NEGATIVES)

# A query's other positives in the batch: as a loss that knows of them takes them, or negatives like all others.
PUSHED = "negatives"
OTHER_POSITIVES = (*losses.OTHER_POSITIVES, PUSHED)

declare(
    "train",
    loss=Field(IN_BATCH, one_of("loss", LOSSES), "what is minimised; all but in_batch_softmax need data.negatives"),
    temperature=Field(1.0, POSITIVE, "scores are divided by it"),
    margin=Field(1.0, POSITIVE, "margin of the loss triplet"),
    symmetric=Field(False, SWITCH, "in_batch_softmax: whether documents choose among queries too"),
    other_positives=Field(
        "mask",
        one_of("use of other positives", OTHER_POSITIVES),
        "in_batch_softmax, a query's other positives: mask (no negatives), mean (of their losses) or negatives",
    ),
    log_q=Field(True, SWITCH, "in_batch_softmax: whether scores are corrected for how often a document is drawn"),
)


def check(config: ConfigDict) -> None:
    """Checks what the config says about the loss.

    Raises:
      UserError: the loss needs hard negatives and there are none, or another one than it was given a setting for.
    """
    train = config.train
    if train.loss == IN_BATCH:
        return
    if not config.data.negatives:
        raise UserError(
            f"config.train.loss={train.loss} compares a positive with hard negatives, and config.data.negatives=0 has "
            f"none: set config.data.negatives=1 or more (of labelled examples), or config.train.loss={IN_BATCH}"
        )
    if train.symmetric:
        raise UserError(
            f"config.train.symmetric=True is a part of config.train.loss={IN_BATCH}, and the loss is {train.loss}: set "
            "config.train.symmetric=False"
        )
    if train.other_positives == "mean":
        raise UserError(
            f"config.train.other_positives=mean is a part of config.train.loss={IN_BATCH}, and the loss is "
            f"{train.loss}: set config.train.other_positives=mask"
        )


def loss(config: ConfigDict) -> Callable[[jax.Array, jax.Array, Mapping[str, jax.Array]], Any]:
    """The config's loss, as a function of queries, documents and the batch that they are from."""
    train = config.train
    if train.loss == IN_BATCH:
        return lambda query_BE, document_BKE, batch: losses.in_batch_softmax(
            query_BE,
            document_BKE,
            batch["document_id"],
            batch["log_q"] if train.log_q else None,
            temperature=train.temperature,
            symmetric=train.symmetric,
            positive_ids_BP=batch.get("positive_ids"),
            **({} if train.other_positives == PUSHED else {"other_positives": train.other_positives}),
        )
    options = {"margin": train.margin} if train.loss == "triplet" else {}
    own_loss = functools.partial(losses.OWN_NEGATIVES[train.loss], temperature=train.temperature, **options)
    return lambda query_BE, document_BKE, batch: own_loss(query_BE, document_BKE, batch["document_id"])

"""What a config trains a model for: from parameters and a batch to the loss of each example."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from retrieval.arrays import reshape_rows
from retrieval.config.fields import POSITIVE, SWITCH, Field, declare, one_of
from retrieval.errors import UserError
from retrieval.models.autoencoder import following, unmasked
from retrieval.models.text import Text
from retrieval.recipes import towers as models
from retrieval.training import losses
from retrieval.training.chunks import in_chunks
from retrieval.training.loop import Objective

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


def make(config: ConfigDict, model: nnx.Module) -> Objective:
    """What the config trains the model for."""
    bound = models.bind(model)
    if models.is_autoencoder(config):
        return _autoencoder(bound, config)
    return _mlm(bound) if models.is_mlm(config) else _towers(bound, config)


def check(config: ConfigDict) -> None:
    """Checks what the config says about the loss.

    Raises:
      UserError: the loss needs hard negatives and there are none, or another one than it was given a setting for.
    """
    train = config.train
    if models.is_mlm(config) or train.loss == IN_BATCH:
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


def _towers(bound: Callable, config: ConfigDict) -> Objective:
    loss = _loss(config)

    def objective(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        model = bound(models.gather(params))
        B, K = batch["document_id"].shape
        query_BE = embed(model.encode_queries, batch, "query", key, config.train.chunk_size)
        document_RE = embed(model.encode_documents, batch, "document", key, config.train.chunk_size)
        loss_B, metrics = loss(query_BE, reshape_rows(document_RE, B, K, -1), batch)
        return loss_B, metrics | {"tokens": _tokens(batch["query"], B) + _tokens(batch["document"], B)}

    return objective


def _loss(config: ConfigDict) -> Callable[[jax.Array, jax.Array, Mapping[str, jax.Array]], Any]:
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
    loss = functools.partial(losses.OWN_NEGATIVES[train.loss], temperature=train.temperature, **options)
    return lambda query_BE, document_BKE, batch: loss(query_BE, document_BKE, batch["document_id"])


def embed(encode: Callable, batch: Mapping[str, jax.Array], side: str, key: jax.Array, chunk_size: int) -> jax.Array:
    """Embeddings of all texts of one side of a batch, [B * K, E], in chunks of whole groups.

    A group is what a lane packs; texts that are not packed are a group for every example. `examples.check_chunks` says
    which chunks are whole groups.
    """
    parts = ("", "_types", "_segments", "_positions", "_starts")
    fields = {side + part: batch[side + part] for part in parts if side + part in batch}
    group_size = len(batch["document_id"]) // len(batch[side])

    def embed_groups(fields: Mapping[str, jax.Array], key: jax.Array | None) -> jax.Array:
        embedding_BE = encode(_text(fields, side), key)
        return reshape_rows(embedding_BE, len(fields[side]), -1, embedding_BE.shape[-1])

    embedding_GCE = in_chunks(embed_groups, fields, key, chunk_size // group_size)
    return reshape_rows(embedding_GCE, -1, embedding_GCE.shape[-1])


def _text(fields: Mapping[str, jax.Array], name: str) -> Text:
    """The texts of a field, packed or one per row."""
    ids = fields[name]
    types = fields.get(f"{name}_types", jnp.zeros_like(ids))
    if f"{name}_starts" not in fields:
        return Text.from_ids(*(reshape_rows(x, -1, x.shape[-1]) for x in (ids, types)))
    return Text.from_groups(ids, types, *(fields[f"{name}_{part}"] for part in ("segments", "positions", "starts")))


def _mlm(bound: Callable) -> Objective:
    def objective(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        logits_GPV = bound(models.gather(params))(_text(batch, "text"), batch["positions"], key)
        loss_G, metrics = losses.token_cross_entropy(logits_GPV, batch["labels"], batch["weights"])
        return _for_every_text((loss_G, metrics | {"tokens": _tokens(batch["text"], _texts(batch))}), batch)

    return objective


def _autoencoder(bound: Callable, config: ConfigDict) -> Objective:
    """MLM and reconstruction, added up (Lu et al. 2021, equation 10), and the divergence of a latent variable."""

    def objective(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
        text, masked = _text(batch, "text"), (batch["positions"], batch["labels"], batch["weights"])
        original_RL = unmasked(text.ids_RL, *masked)
        logits = bound(models.gather(params))(text, masked[0], original_RL, key)
        mlm_G, metrics = losses.token_cross_entropy(logits.masked_GPV, *masked[1:])
        labels_RL, weights_RL = following(original_RL, text.segments_RL)
        next_R, _ = losses.token_cross_entropy(logits.next_RLV, labels_RL, weights_RL)
        G, B = len(mlm_G), _texts(batch)
        next_G = reshape_rows(next_R, G, -1).mean(axis=1)
        loss_G = mlm_G + next_G
        metrics |= {"mlm": mlm_G, "reconstruction": next_G, "tokens": _tokens(batch["text"], B)}
        if logits.divergence_BZ is not None:
            kl_B = losses.free_bits(logits.divergence_BZ, config.train.free_bits)
            kl_G = reshape_rows(kl_B, G, -1).mean(axis=1)
            # The evidence bound is of a whole text, reconstruction here the mean over its tokens.
            loss_G += config.train.kl_weight * B / weights_RL.sum() * kl_G
            metrics |= {"kl": kl_G}
        return _for_every_text((loss_G, metrics), batch)

    return objective


def _texts(batch: Mapping[str, jax.Array]) -> int:
    """The texts of a batch, packed or not."""
    return batch["text_starts"].size if "text_starts" in batch else len(batch["text"])


def _for_every_text(values: Any, batch: Mapping[str, jax.Array]) -> Any:
    """What a group of packed texts has on average, for each of its texts: the mean over the batch stays the same."""
    C = _texts(batch) // len(batch["text"])
    return jax.tree.map(lambda x_G: reshape_rows(x_G[:, None] + jnp.zeros(C), -1), values)


def _tokens(ids: jax.Array, examples: int) -> jax.Array:
    """The tokens of an example without padding, for every group of packed ones their mean, [G]."""
    return (ids != 0).sum(axis=range(1, ids.ndim)) * (len(ids) / examples)

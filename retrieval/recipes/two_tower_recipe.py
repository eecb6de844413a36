"""The recipe 'two_tower': a tower for queries and one for documents, trained on pairs (Chang et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.config.fields import values_of
from retrieval.models import two_tower
from retrieval.models.two_tower import TwoTower
from retrieval.recipes import towers
from retrieval.recipes.batch_texts import embed, token_count
from retrieval.recipes.encoder_sizes import architecture_of
from retrieval.recipes.parameters import gather
from retrieval.recipes.recipe import (
    POOL_METRICS,
    RECIPES,
    PairRecipe,
    Recipe,
    check_sees_all,
    copy_parameters,
    encoder_of,
)
from retrieval.training import matryoshka
from retrieval.training.candidates import of_embeddings
from retrieval.training.loop import Objective
from retrieval.training.loss_kind import EMBEDDINGS, SCORES


class TwoTowerRecipe(PairRecipe):
    """Queries and documents are embedded; `train.loss` compares them, or their inner products."""

    label = "a model of two towers"
    has_towers = has_prefixes = True
    gives = (EMBEDDINGS, SCORES)
    metrics = POOL_METRICS
    validator = "pool"
    options = (*PairRecipe.options, matryoshka.SIZES)
    head = ("model.embed_dim", "model.embed_norm", "model.head", "model.tied")

    def build(self, vocab_size: int) -> TwoTower:
        """Two towers, which may share their parameters."""
        return towers.build_towers(self.config, vocab_size)

    def check(self) -> None:
        """As `Recipe.check`; also the sizes of embeddings and of batches."""
        super().check()
        _check_embeddings(self.config.model)
        _check_pooled(self.config)
        if self.config.train.batch_size == 1 and not self.config.data.negatives:
            raise UserError("config.train.batch_size=1 has no negatives, which are other examples: take at least 2")
        of_cosines = "train.loss" if self.named_loss.of_cosines else matryoshka.SIZES
        value = values_of(self.config, [of_cosines])[of_cosines]
        if value and not self.config.model.normalize:
            raise UserError(f"config.{of_cosines}={value} compares cosines: set config.model.normalize=True")
        matryoshka.check_sizes(tuple(self.config.train.matryoshka), towers.embedding_size(self.config.model))
        if getattr(self.named_loss, "log_q", False) and (rate := self.config.data.rates.quadruplets):
            why = f"nobody counts how often config.data.rates.quadruplets={rate:g} draws a negative"
            raise UserError(f"config.train.log_q=True: {why}: set one of the two back")

    def takes_encoder(self, other: Recipe) -> bool:
        """From other towers, a plugin's too, it takes everything."""
        return not other.has_towers

    def start_from(self, model: Any, trained: nnx.Module) -> None:
        """All of other towers; both towers start from the encoder of another model."""
        if isinstance(trained, TwoTower):
            copy_parameters(trained, model)
        else:
            two_tower.init_encoders(model, encoder_of(trained))

    def objective(self, bound: Callable[[Any], Any]) -> Objective:
        """The loss that the config names, of the embeddings of a batch."""
        loss, chunk_size = self.embedding_loss(), self.config.train.chunk_size
        of_cosines = self.named_loss.of_cosines

        def of_batch(params: Any, batch: Mapping[str, jax.Array], key: jax.Array) -> Any:
            model = bound(gather(params))
            B, K = batch["document_id"].shape
            if of_cosines and model.is_one and _alike(batch):
                query_BE, document_BKE = _embed_together(model, batch, key, chunk_size)
            else:
                query_BE = embed(model.encode_queries, batch, "query", key, chunk_size)
                document_RE = embed(model.encode_documents, batch, "document", key, chunk_size)
                document_BKE = reshape_rows(document_RE, B, K, -1)
            loss_B, metrics = loss(query_BE, document_BKE, batch)
            return loss_B, metrics | {"tokens": token_count(batch["query"], B) + token_count(batch["document"], B)}

        return of_batch

    def embedding_loss(self) -> Callable:
        """The loss as a function of queries, documents and the batch that they are from."""
        loss, train = of_embeddings(self.named_loss), self.config.train
        if train.matryoshka and matryoshka.SIZES not in self.named_loss.options():
            return matryoshka.of_sizes(loss, tuple(train.matryoshka))
        return loss


def _alike(batch: Mapping[str, jax.Array]) -> bool:
    """Whether queries and documents are rows of the same length, one text in each."""
    is_packed = "query_starts" in batch
    return not is_packed and batch["document"].ndim == 3 and batch["query"].shape[-1] == batch["document"].shape[-1]


def _embed_together(
    model: TwoTower, batch: Mapping[str, jax.Array], key: jax.Array, chunk_size: int
) -> tuple[jax.Array, jax.Array]:
    """Queries [B, E] and their documents [B, K, E] of a model with one tower, in one call of it."""
    parts = [part for part in ("", "_types") if f"query{part}" in batch]
    sides = {part: (batch[f"query{part}"][:, None], batch[f"document{part}"]) for part in parts}
    fields = {f"text{part}": jnp.concatenate(both, axis=1) for part, both in sides.items()}
    B, K = batch["document_id"].shape
    text_RE = embed(model.encode_queries, {**fields, "document_id": batch["document_id"]}, "text", key, chunk_size)
    text_BTE = reshape_rows(text_RE, B, 1 + K, -1)
    return text_BTE[:, 0], text_BTE[:, 1:]


def _check_pooled(config: ConfigDict) -> None:
    lengths, starts = (config.data.query_length, config.data.document_length), tuple(config.model.pool_from)
    if len(starts) != 2 or any(start > length - 2 for start, length in zip(starts, lengths)):
        raise UserError(f"config.model.pool_from={starts}: two places inside texts of {lengths} tokens are needed")


def _check_embeddings(model: Any) -> None:
    if model.pooling == "cls":
        check_sees_all(model, "config.model.pooling=cls takes the first of them: set config.model.pooling=last")
    has_types = model.encoder == "transformer" and architecture_of(model).token_types
    if model.token_types == "sides" and (not has_types or model.type_vocab_size < 2):
        raise UserError("config.model.token_types=sides takes two token types: this encoder has not two: set 'texts'")
    if model.head and (model.embed_dim or model.embed_norm):
        what = "is all that follows the pooling: set config.model.embed_dim=0 and config.model.embed_norm=False"
        raise UserError(f"config.model.head={tuple(model.head)} {what}")
    towers.check_truncated(model)
    if model.encoder == "bow_mlp" and not model.embed_dim:
        raise UserError("config.model.embed_dim=0: a bow_mlp has no hidden state: set a size, such as 512")


RECIPES.register("two_tower", TwoTowerRecipe)

"""The recipe 'two_tower': a tower for queries and one for documents, trained on pairs (Chang et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime.arrays import reshape_rows
from retrieval.config.fields import values_of
from retrieval.models import two_tower
from retrieval.models.two_tower import TwoTower
from retrieval.models.warm_start import copy_parameters, encoder_of
from retrieval.recipes import towers
from retrieval.recipes.batch_texts import embed, token_count
from retrieval.recipes.encoder_sizes import architecture_of, check_sees_all
from retrieval.recipes.recipe import POOL_METRICS, RECIPES, LossAndMetrics, PairRecipe, Recipe
from retrieval.training import matryoshka
from retrieval.training.candidates import of_embeddings
from retrieval.training.loss_kind import EMBEDDINGS, SCORES


class TwoTowerRecipe(PairRecipe):
    """Queries and documents are embedded; `train.loss` compares them, or their inner products."""

    label = "a model of two towers"
    has_towers = has_prefixes = True
    outputs = (EMBEDDINGS, SCORES)
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

    def loss_of(self, model: TwoTower, batch: Mapping[str, jax.Array], key: jax.Array) -> LossAndMetrics:
        """The loss that the config names, of the embeddings of a batch."""
        (B, K), chunk_size = batch["document_id"].shape, self.config.train.chunk_size
        query_BE = embed(model.encode_query, batch, "query", key, chunk_size)
        document_RE = embed(model.encode_document, batch, "document", key, chunk_size)
        loss_B, metrics = self.embedding_loss()(query_BE, reshape_rows(document_RE, B, K, -1), batch)
        return loss_B, metrics | {"tokens": token_count(batch["query"], B) + token_count(batch["document"], B)}

    def embedding_loss(self) -> Callable:
        """The loss as a function of queries, documents and the batch that they are from."""
        loss, train = of_embeddings(self.named_loss), self.config.train
        if train.matryoshka and matryoshka.SIZES not in self.named_loss.options():
            return matryoshka.of_sizes(loss, tuple(train.matryoshka))
        return loss


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

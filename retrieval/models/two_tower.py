"""The two-tower retrieval model (Chang et al. 2020, section 2): a query and a document are encoded apart."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from retrieval.common.errors import UserError
from retrieval.models import tower_head
from retrieval.models.pooling import POOLINGS, mean
from retrieval.models.rngs import Rngs
from retrieval.models.text import Text, token_vectors
from retrieval.models.tower_head import DENSE, LAYER_NORM, NORMALIZE, Layer
from retrieval.models.transformer import Transformer
from retrieval.models.transformer_config import TransformerConfig
from retrieval.models.warm_start import copy_encoder


@dataclasses.dataclass(frozen=True)
class TowerConfig:
    """Both towers of a model.

    Attributes:
      encoder: a name in `ENCODERS`.
      sizes: the fields of the encoder's config (TransformerConfig, BowConfig).
      embed_dim: dimension of the embeddings; 0 for no projection: they are a Transformer's pooled hidden states.
      embed_norm: whether a LayerNorm follows a Transformer's projection (Lee et al. 2019; Xiong et al. 2021).
      head: what follows a Transformer's pooling in the place of these two, as `tower_head` has it.
      pooling: in `POOLINGS`, what a Transformer makes of its hidden states; BoW-MLP always takes the mean.
      normalize: whether embeddings have length 1, so that inner products are cosines.
      tied: whether queries and documents share one tower.
      token_types: what BERT's tell apart: 'texts', the title (0) from the text (1) of a document, or 'sides', queries
        (0) from documents (1).
      pool_from: the first token of a query, and of a document, that the pooling takes.
      truncate_dim: how many dimensions of an embedding are kept, the first ones; 0 for all.
    """

    encoder: str
    sizes: Mapping[str, Any]
    embed_dim: int
    embed_norm: bool = False
    head: Sequence[str] = ()
    pooling: str = "cls"
    normalize: bool = False
    tied: bool = False
    token_types: str = "texts"
    pool_from: Sequence[int] = (0, 0)
    truncate_dim: int = 0


class Tower(nnx.Module):
    """A Transformer, its pooled hidden state, and the layers of a head: by default a linear one and a LayerNorm.

    The parameters of its layers are attributes with the names of `tower_head.names`, such as `projection`.
    """

    def __init__(
        self,
        encoder: Transformer,
        embed_dim: int,
        pooling: str,
        embed_norm: bool = False,
        head: Sequence[str] = (),
        *,
        rngs: nnx.Rngs,
    ):
        self.pooling, self.encoder = pooling, encoder
        self.head = tuple(map(str, head_of(embed_dim, embed_norm, head)))
        size = encoder.config.hidden_size
        for layer, name in self.layers():
            if name:
                setattr(self, name, tower_head.make(layer, size, rngs))
            size = layer.size or size

    def layers(self) -> list[tuple[Layer, str]]:
        """The layers behind the pooling, each with the attribute that has its parameters, '' where there are none."""
        layers = list(map(tower_head.layer_of, self.head))
        return list(zip(layers, tower_head.names(layers)))

    def __call__(self, text: Text, *, dropout_key: jax.Array | None, pool_from: int = 0) -> jax.Array:
        """Embeddings, float32 [B, E].

        Args:
          pool_from: the first token of a text that the pooling takes.
        """
        return self.pooled(self.encoder(text, dropout_key=dropout_key), text, pool_from)

    def pooled(self, hidden_RLH: jax.Array, text: Text, pool_from: int = 0) -> jax.Array:
        """Embeddings, float32 [B, E], of the encoder's hidden states."""
        embedding_BE = POOLINGS[self.pooling](hidden_RLH, text, pool_from).astype(jnp.float32)
        for layer, name in self.layers():
            embedding_BE = tower_head.apply(layer, getattr(self, name) if name else None, embedding_BE)
        return embedding_BE


@dataclasses.dataclass(frozen=True)
class BowConfig:
    """Sizes of a BoW-MLP: of its unigram embeddings (`hidden_size`) and of the tanh layer (`mlp_size`).

    The paper gives only the total, 128M parameters with 512-dimensional embeddings: (30522, 4096, 640) has 127.98M.
    """

    vocab_size: int
    hidden_size: int
    mlp_size: int


class BowMlp(nnx.Module):
    """The shallow encoder that the Transformer is compared with (Chang et al. 2020, section 4.2).

    The mean of unigram embeddings, a tanh layer, and a linear one.

    The mean is over every token that is not padding. [CLS] and [SEP] are in it: each text has them, so they are a bias.
    The paper's "two-layer MLP with tanh activation" is read as tanh between the layers, none on the embedding itself.
    """

    def __init__(self, config: BowConfig, embed_dim: int, *, rngs: nnx.Rngs):
        # BERT's 0.02 starts slowly here: the mean of many words' vectors is small, and so are all scores.
        init = nnx.initializers.normal(0.1)
        self.token_embedding = nnx.Embed(config.vocab_size, config.hidden_size, embedding_init=init, rngs=rngs)
        self.hidden = nnx.Linear(config.hidden_size, config.mlp_size, rngs=rngs)
        self.output = nnx.Linear(config.mlp_size, embed_dim, rngs=rngs)

    def __call__(self, text: Text, *, dropout_key: jax.Array | None, pool_from: int = 0) -> jax.Array:
        """Embeddings, float32 [B, E], of all tokens. There is no dropout."""
        mean_BH = mean(token_vectors(self.token_embedding.embedding[...], text.ids_RL), text)
        return self.output(jax.nn.tanh(self.hidden(mean_BH)))


class TwoTower(nnx.Module):
    """Queries and documents to embeddings, by two towers or, where `document_tower` is None, by one.

    A tied model has no attribute `document_tower`: one module under two names would be two in a tree.
    """

    def __init__(self, config: TowerConfig, query_tower: Tower | BowMlp, document_tower: Tower | BowMlp | None = None):
        self.normalize, self.token_types = config.normalize, config.token_types
        self.pool_from, self.truncate_dim = tuple(config.pool_from), config.truncate_dim
        self.query_tower = query_tower
        if document_tower is not None:
            self.document_tower = document_tower

    @property
    def is_one(self) -> bool:
        """Whether queries and documents are embedded alike, by one tower."""
        is_tied = not hasattr(self, "document_tower")
        return is_tied and self.token_types == "texts" and len(set(self.pool_from)) == 1

    def encode_query(self, text: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Embeddings, float32 [B, E]."""
        return self._encode(self.query_tower, text, _fold_in(dropout_key, 0), self.pool_from[0])

    def encode_document(self, text: Text, dropout_key: jax.Array | None) -> jax.Array:
        """Embeddings, float32 [B, E]; the masks differ from those of `encode_query` with the same key."""
        if self.token_types == "sides":
            text = dataclasses.replace(text, types_RL=jnp.ones_like(text.types_RL))
        tower = getattr(self, "document_tower", self.query_tower)
        return self._encode(tower, text, _fold_in(dropout_key, 1), self.pool_from[1])

    def _encode(self, tower: Tower | BowMlp, text: Text, dropout_key: jax.Array | None, pool_from: int) -> jax.Array:
        return self.finished(tower(text, dropout_key=dropout_key, pool_from=pool_from))

    def finished(self, embedding_BE: jax.Array) -> jax.Array:
        """What a tower gives, with the dimensions and the length that embeddings have."""
        if self.truncate_dim:  # before the normalisation: of a vector of length 1 the beginning is shorter
            embedding_BE = embedding_BE[:, : self.truncate_dim]
        return tower_head.apply(Layer(NORMALIZE), None, embedding_BE) if self.normalize else embedding_BE


def create(config: TowerConfig, seed: int) -> TwoTower:
    """A new model; the same config and seed give the same parameters."""
    rngs = Rngs(seed)
    return TwoTower(config, *(ENCODERS[config.encoder](config, rngs) for _ in range(1 if config.tied else 2)))


def head_of(embed_dim: int, embed_norm: bool, head: Sequence[str]) -> list[Layer]:
    """The layers between the pooling of a Transformer and `normalize`, as the fields of a config have them."""
    projection = [Layer(DENSE, embed_dim)] if embed_dim else []
    return list(map(tower_head.layer_of, head)) or projection + ([Layer(LAYER_NORM)] if embed_norm else [])


def full_size(embed_dim: int, head: Sequence[str], hidden_size: int) -> int:
    """The size of embeddings before they are truncated: that of the last dense layer, or a hidden state's."""
    dense = [layer.size for layer in head_of(embed_dim, False, head) if layer.size]
    return (dense or [hidden_size])[-1]


def init_encoders(two_tower: TwoTower, encoder: Transformer) -> None:
    """Gives every tower a copy of a pre-trained encoder's parameters; the projections stay as they are.

    Raises:
      UserError: a tower is no Transformer, or as `copy_encoder`.
    """
    for name in filter(functools.partial(hasattr, two_tower), ("query_tower", "document_tower")):
        tower = getattr(two_tower, name)
        if isinstance(tower, BowMlp):
            raise UserError(f"{name}: a BoW-MLP cannot start from a pre-trained Transformer")
        copy_encoder(encoder, tower.encoder, name)


def _transformer(config: TowerConfig, rngs: nnx.Rngs) -> Tower:
    encoder = Transformer(TransformerConfig(**config.sizes), rngs=rngs)
    return Tower(encoder, config.embed_dim, config.pooling, config.embed_norm, config.head, rngs=rngs)


ENCODERS = {
    "transformer": _transformer,
    "bow_mlp": lambda config, rngs: BowMlp(BowConfig(**config.sizes), config.embed_dim, rngs=rngs),
}


def _fold_in(key: jax.Array | None, number: int) -> jax.Array | None:
    return None if key is None else jax.random.fold_in(key, number)

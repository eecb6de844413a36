"""Two towers of a config: how they are built, and how they embed texts."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime.model_folder import QUERY
from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers.prefixes import Prefixes, type_change
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models import two_tower
from retrieval.models.text import Text
from retrieval.models.two_tower import TowerConfig, TwoTower
from retrieval.recipes.encoder_sizes import encoder_sizes, longest_text
from retrieval.recipes.inference import Inference
from retrieval.recipes.recipe import recipe_of
from retrieval.search.encoding import encode_rows
from retrieval.search.vector_codes import Form


def build_towers(config: ConfigDict, vocab_size: int) -> TwoTower:
    """Two untrained towers."""
    model = config.model
    sizes = encoder_sizes(config, vocab_size)
    if model.encoder == "bow_mlp":
        sizes = {name: sizes[name] for name in ("vocab_size", "hidden_size", "mlp_size")}
    names = [field.name for field in dataclasses.fields(TowerConfig) if field.name not in ("encoder", "sizes")]
    of_towers = {name: model[name] for name in names}
    return two_tower.create(TowerConfig(model.encoder, sizes, **of_towers), config.seed)


def embedding_size(model: ConfigDict) -> int:
    """The dimensions of an embedding, cut or whole."""
    return model.truncate_dim or two_tower.full_size(model.embed_dim, model.head, model.hidden_size)


def check_truncated(model: ConfigDict) -> None:
    """Checks that embeddings have the dimensions that are to be kept."""
    size = two_tower.full_size(model.embed_dim, model.head, model.hidden_size)
    if not 0 <= model.truncate_dim <= size:
        raise UserError(f"config.model.truncate_dim={model.truncate_dim}: embeddings have {size} dimensions: take less")


def truncated(config: ConfigDict, size: int, field: str = "config.encode.truncate") -> ConfigDict:
    """A config whose towers keep the first `size` dimensions of an embedding, all that they have where that is 0.

    `field` says so, for the error about too many.
    """
    if not size:
        return config
    if not 0 < size <= (full := embedding_size(config.model)):
        raise UserError(f"{field}={size}: embeddings have {full} dimensions: take less")
    config = config.copy_and_resolve_references()
    config.model.truncate_dim = size
    return config


def form_of(config: ConfigDict, precision: str | None = None) -> Form:
    """What the embeddings of a config's towers are, and how the stage `encode` stores those of candidates.

    Args:
      precision: of others.
    """
    model, size = config.model, embedding_size(config.model)
    full = two_tower.full_size(model.embed_dim, model.head, model.hidden_size)
    return Form(precision or config.encode.precision, size, full if size < full else None, model.normalize)


def towers_of(config: ConfigDict, vocab_size: int) -> Any:
    """Untrained towers as the config's recipe has them; where it trains another model, those that take its encoder."""
    recipe = recipe_of(config)
    return recipe.build(vocab_size) if recipe.has_towers else build_towers(config, vocab_size)


class Embedder:
    """Padded token ids to embeddings, by towers of one config with any parameters; compiled once per shape."""

    def __init__(
        self,
        config: ConfigDict,
        vocabulary: Vocabulary,
        mesh: jax.sharding.Mesh,
        build: Callable[[ConfigDict, int], Any] = towers_of,
    ):
        """`build` makes the untrained model of a config and the size of a vocabulary: towers, or what encodes as they
        do."""
        # In a loop, which compiles once for all layers: without a backward pass nothing is gained by unrolling it.
        looped = config.copy_and_resolve_references()
        looped.model.unroll = 1
        model = nnx.eval_shape(lambda: build(looped, len(vocabulary)))
        inference = Inference(config, model, type_change(config.data, vocabulary.sep_id), mesh)
        # From parameters to a function of ids [B, L] to embeddings [B, E], with the rows spread over the mesh.
        self.queries, self.documents = map(inference.compiled, (_encode_query, _encode_document))
        self._config, self._mesh = config, mesh

    def embed_rows(self, tower: Callable[[np.ndarray], np.ndarray], tokens: Sequence[Sequence[int]]) -> np.ndarray:
        """Token ids of N texts to embeddings [N, E], in memory; `tower` is what `queries` or `documents` gave."""
        longest = longest_text(self._config)
        return encode_rows(tokens, tower, self._config.encode.batch_tokens, longest, self._mesh.size)


def _encode_query(towers: Any, text: Text) -> jax.Array:
    return towers.encode_query(text, None)


def _encode_document(towers: Any, text: Text) -> jax.Array:
    return towers.encode_document(text, None)


def rows_of(
    config: ConfigDict, vocabulary: Vocabulary, side: str, items: Sequence[Any], room: int = 0
) -> list[list[int]]:
    """Queries, or the beginnings of candidates, as the tower of their side takes them.

    Args:
      side: QUERY or DOCUMENT.
      room: tokens that a row may have beyond those that the tower takes.
    """
    if room:
        config = config.copy_and_resolve_references()
        for name in ("query_length", "document_length"):
            config.data[name] += room
    if side == QUERY:
        return query_tokens(config, vocabulary, items)
    return [windows[0] for windows in candidate_windows(config, vocabulary, items)]


def query_tokens(config: ConfigDict, vocabulary: Vocabulary, texts: Sequence[str]) -> list[list[int]]:
    """Queries as the query tower takes them."""
    prefixes, length = Prefixes.of(config.data, vocabulary), config.data.query_length
    return [prefixes.query_row(vocabulary, ids, length) for ids in prefixes.encode_query(vocabulary, texts)]


def candidate_windows(config: ConfigDict, vocabulary: Vocabulary, items: Sequence[Candidate]) -> list[list[list[int]]]:
    """Candidates as the document tower takes them: title and text (of ReQA: sentence and passage).

    Of each, at most config.encode.windows windows of the text, with the title in every one (ANCE's MaxP); the first is
    what training sees of it (FirstP).
    """
    prefixes, length, most = Prefixes.of(config.data, vocabulary), config.data.document_length, config.encode.windows
    tokens = prefixes.encode_document(vocabulary, [item.title for item in items], [item.text for item in items])
    return [prefixes.document_rows(vocabulary, title, text, length, most) for title, text in tokens]

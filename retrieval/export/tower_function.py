"""Towers as functions of plain arrays: token ids to embeddings, with pooling, layers and length inside.

Letters of shapes: B texts, L tokens of a text, E embedding size, H hidden size.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AbstractDevice, AbstractMesh

from retrieval.data.tokenizers.prefixes import type_change
from retrieval.export.tower_folders import TrainedTowers
from retrieval.models.export_files import DOCUMENT, QUERY
from retrieval.models.text import Text
from retrieval.models.two_tower import TwoTower
from retrieval.recipes.placement import bind, parameters_of
from retrieval.recipes.towers import build_towers
from retrieval.runtime.filler import FILLER

INPUTS = ("input_ids", "attention_mask", "position_ids")
OUTPUTS = ("sentence_embedding", "last_hidden_state")
# What every platform computes, to within float32.
_PLAIN = {"dtype": "float32", "products": "dtype", "attention": "plain", "remat": "none"}

Embed = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


class Side(NamedTuple):
    """How texts of a side are made: what stands before them, and the tokens that they are cut to."""

    prefix: str
    length: int


@dataclasses.dataclass(frozen=True)
class TowerFunction:
    """A tower.

    Attributes:
      name: 'model', or 'query' or 'document' where these are not embedded alike.
      sides: which texts it takes.
      longest: the tokens that it has positions for.
      embed: `INPUTS`, each a whole number [B, L], to `OUTPUTS`, float32 [B, E] and [B, L, H]. A text begins in the
        first column; the mask is 1 where a token is, else 0; positions are 0, 1, ..., L - 1.
    """

    name: str
    sides: Mapping[str, Side]
    longest: int
    embed: Embed


def of(trained: TrainedTowers) -> list[TowerFunction]:
    """One function where queries and documents are embedded alike, else one for each."""
    config = trained.config.copy_and_resolve_references()
    config.model.update(_PLAIN)
    like = nnx.eval_shape(lambda: build_towers(config, len(trained.vocabulary)))
    params = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), parameters_of(trained.towers))
    towers: Any = bind(like)(params)
    data = config.data
    sides = {
        QUERY: Side(data.query_prefix, data.query_length),
        DOCUMENT: Side(data.document_prefix, data.document_length),
    }
    sep_id, longest = type_change(data, trained.vocabulary.sep_id), towers.query_tower.encoder.config.max_length
    embed = {name: functools.partial(_embed, towers, name, sep_id) for name in sides}
    if towers.is_one:
        return [TowerFunction("model", sides, longest, embed[DOCUMENT])]
    return [TowerFunction(name, {name: side}, longest, embed[name]) for name, side in sides.items()]


def traced_for(platform: str) -> contextlib.AbstractContextManager:
    """Within it programs are traced in the form that a platform computes fastest, 'cpu' or another."""
    device = AbstractDevice(platform, None, platform)
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def arrays(rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The token ids of texts as `INPUTS`, int32 [B, L]."""
    ids_BL = np.zeros((len(rows), max(map(len, rows))), np.int32)
    mask_BL = np.zeros_like(ids_BL)
    for place, row in enumerate(rows):
        ids_BL[place, : len(row)], mask_BL[place, : len(row)] = row, 1
    return [ids_BL, mask_BL, np.arange(ids_BL.shape[1], dtype=np.int32) + np.zeros_like(ids_BL)]


def example(trained: TrainedTowers, length: int, texts: int = 8) -> list[np.ndarray]:
    """`INPUTS` of texts of drawn tokens, from the shortest to the longest of a side."""
    rng, vocabulary = np.random.default_rng(0), trained.vocabulary
    sizes = np.linspace(1, length, texts).astype(int)
    return arrays([vocabulary.single(rng.integers(0, len(vocabulary), size).tolist(), length) for size in sizes])


def _embed(
    towers: TwoTower, name: str, sep_id: int, ids_BL: jax.Array, mask_BL: jax.Array, positions_BL: jax.Array
) -> tuple[jax.Array, jax.Array]:
    tower: Any = getattr(towers, "document_tower", towers.query_tower) if name == DOCUMENT else towers.query_tower
    ids_BL = jnp.where(mask_BL > 0, ids_BL, FILLER).astype(jnp.int32)
    text = Text(ids_BL, _types(ids_BL, sep_id), mask_BL.astype(jnp.int32), positions_BL.astype(jnp.int32))
    hidden_BLH = tower.encoder(text, dropout_key=None)
    return towers.finished(tower.pooled(hidden_BLH, text, towers.pool_from[name == DOCUMENT])), hidden_BLH


def _types(ids_BL: jax.Array, sep_id: int) -> jax.Array:
    """As `on_mesh.token_types`: 1 behind the first [SEP], where a document's text follows its title."""
    is_sep_BL = (ids_BL == sep_id).astype(jnp.int32)
    return jnp.where(ids_BL == FILLER, 0, jnp.minimum(jnp.cumsum(is_sep_BL, axis=1) - is_sep_BL, 1))

"""Texts on their way to a tower, and what those who send them have to know of it."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict


class TextRows(NamedTuple):
    """Texts as one of a model's towers takes them.

    Attributes:
      ids: the token ids of each, special tokens included.
      tower: embeds such rows; those of one tower may be embedded together.
    """

    ids: Sequence[Sequence[int]]
    tower: Callable[[np.ndarray], np.ndarray]


class Card(NamedTuple):
    """Attributes:
    sizes: the dimensions that embeddings may be cut to, and last those that they have.
    lengths: tokens of a query and of a document; texts are cut there.
    default_prompt: the name of the prompt of a text of which nobody says what it is.
    """

    sizes: tuple[int, ...]
    lengths: Mapping[str, int]
    pooling: str
    dtype: str
    default_prompt: str


def with_room(config: ConfigDict, room: int) -> ConfigDict:
    """The config with lengths that are so many tokens longer."""
    if room:
        config = config.copy_and_resolve_references()
        config.data.update(
            query_length=config.data.query_length + room, document_length=config.data.document_length + room
        )
    return config

"""Pairs of a prepared corpus in a file, so that systems which share no process train on the same ones."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.examples.packing import Packing

if TYPE_CHECKING:  # peers read pairs too, in an environment that lacks what it imports
    from ml_collections import ConfigDict

    from retrieval.methods.late_interaction.token_masks import Rules

Rows = Mapping[str, np.ndarray]


def batches(path: Path, size: int, count: int) -> Iterator[Rows]:
    """The first batches of a file: arrays of `size` rows, under the names that a train step takes.

    Raises:
      ValueError: the file has fewer rows.
    """
    with np.load(path, allow_pickle=False) as columns:
        rows = {name: columns[name] for name in columns.files}
    if len(rows["query"]) < size * count:
        raise ValueError(f"{path}: {len(rows['query'])} rows are fewer than {count} batches of {size}")
    for start in range(0, size * count, size):
        yield {name: values[start : start + size] for name, values in rows.items()}


def packed(rows: Rows, packing: Packing) -> Rows:
    """The same pairs, several texts in a row, lane after lane.

    Raises:
      UserError: the pairs of a lane do not fit.
    """
    lanes = [packing.pack(lane) for lane in _lanes(rows, packing)]
    if None in lanes:
        raise UserError("the pairs of a lane do not fit into the rows of config.data.pack: raise its shares")
    return {name: np.concatenate([lane[name] for lane, _ in lanes]) for name in lanes[0][0]}


def marked(path: Path, rules: "Rules") -> Path:
    """The pairs of a file for late interaction, beside it: queries are filled up, and masks say what is scored."""
    made = path.with_suffix(".marked.npz")
    with np.load(path, allow_pickle=False) as columns, files.atomic(made) as temporary:
        query_RL, query_mask_RL = rules.of_queries(columns["query"])
        document_mask_R1L = rules.of_documents(columns["document"])
        own = dict(query=query_RL, query_mask=query_mask_RL, document_mask=document_mask_R1L)
        np.savez(temporary, **{name: columns[name] for name in columns.files} | own)
    return made


def smallest_share(config: "ConfigDict", batches: Sequence[Rows], side: str, least: float) -> float | None:
    """The smallest share of a side's rows, from `least` on by 0.02, into which the pairs of every lane fit."""
    from retrieval.recipes.recipe import recipe_of

    changed = config.copy_and_resolve_references()
    for share in (round(least + 0.02 * i, 2) for i in range(int((1 - least) / 0.02) + 1)):
        changed.data.pack.update(query=share, document=share)
        packing = recipe_of(changed).packing()
        alone = packing._replace(texts={side: packing.texts[side]})
        if all(alone.pack(lane) for rows in batches for lane in _lanes(rows, alone)):
            return share
    return None


def tokens(rows: Rows) -> int:
    """How many tokens of a batch are none of padding."""
    return sum(int((rows[name] >= 0).sum()) for name in ("query", "document"))


def _lanes(rows: Rows, packing: Packing) -> Iterator[Rows]:
    for start in range(0, len(rows["query"]), packing.examples):
        yield {name: values[start : start + packing.examples] for name, values in rows.items()}

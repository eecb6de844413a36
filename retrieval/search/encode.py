"""A collection of texts to sharded embedding files: resumable to the shard, and short texts pay for no padding.

NAME-00003-of-00012.npy        float32 [rows, E]
NAME-00003-of-00012.ids.json   the ids of the rows, in order
"""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tqdm

from retrieval import files
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

Embed = Callable[[np.ndarray], np.ndarray]
"""Padded token ids [B, L] to embeddings [B, E]; called with few different shapes."""


def encode(
    folder: Path,
    name: str,
    ids: Sequence[str],
    tokens: Callable[[int, int], Sequence[Sequence[int]]],
    embed: Embed,
    *,
    shard_size: int,
    batch_tokens: int,
    longest: int,
    multiple: int = 1,
) -> None:
    """Writes the embeddings of `ids` below `folder`; shards that are there already are kept.

    Args:
      ids: one id per text.
      tokens: the token ids of texts [start, end), special tokens included; called once a shard.
      batch_tokens: padded tokens of a batch; fixes the memory.
      longest: no text has more tokens, and none is padded to more.
      multiple: the number of rows of a batch is a multiple of it (the number of devices).
    """
    files.remove_temporaries(folder)
    count = max(1, -(-len(ids) // shard_size))
    for shard in tqdm.trange(count, desc=f"encode {folder.parent.name}/{folder.name}/{name}", mininterval=2):
        start, end = shard * shard_size, min(len(ids), (shard + 1) * shard_size)
        path = _shard(folder, name, shard, count)
        if path.exists():
            continue
        embeddings = encode_rows(tokens(start, end), embed, batch_tokens, longest, multiple)
        files.write_text(path.with_suffix(".ids.json"), json.dumps(list(ids[start:end]), ensure_ascii=False))
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            np.save(file, embeddings, allow_pickle=False)


def load(folder: Path, name: str) -> tuple[np.ndarray, list[str]]:
    """All embeddings [N, E] of a name, and their ids.

    Raises:
      UserError: a shard is missing or damaged.
    """
    paths = sorted(folder.glob(f"{name}-*-of-*.npy"))
    if not paths or len(paths) != int(paths[0].stem.rpartition("-")[2]):
        raise UserError(f"{folder}: {len(paths)} shards of '{name}', not all that there should be; encode again")
    embeddings, ids = [], []
    for path in paths:
        try:
            embeddings.append(np.load(path, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise UserError(f"{path}: damaged ({error}); delete it and encode again") from error
        ids += files.read_json(path.with_suffix(".ids.json"))
    if sum(map(len, embeddings)) != len(ids):
        raise UserError(
            f"{folder}: {sum(map(len, embeddings))} embeddings of '{name}' for {len(ids)} ids; encode again"
        )
    return np.concatenate(embeddings), ids


def _shard(folder: Path, name: str, shard: int, count: int) -> Path:
    return folder / f"{name}-{shard:05d}-of-{count:05d}.npy"


def encode_rows(
    tokens: Sequence[Sequence[int]], embed: Embed, batch_tokens: int, longest: int, multiple: int
) -> np.ndarray:
    """Embeds rows in batches of like length, and puts them back in order."""
    rows = []
    for order, batch in _batches(tokens, batch_tokens, longest, multiple):
        values = np.asarray(embed(batch), np.float32)[: len(order)]
        if not np.isfinite(values).all():
            raise UserError(
                "an embedding is not finite: the parameters of the model are damaged, or its dtype overflows"
            )
        rows.append((order, values))
    if not rows:
        return np.zeros((0, 0), np.float32)
    result = np.empty((len(tokens), rows[0][1].shape[1]), np.float32)
    for order, values in rows:
        result[order] = values
    return result


def _batches(
    tokens: Sequence[Sequence[int]], batch_tokens: int, longest: int, multiple: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers and padded ids [B, L]. L is one of few lengths and B depends on L alone, so few shapes compile."""
    lengths = np.array([len(row) for row in tokens], np.int64)
    padded = np.minimum(_round_up(lengths), longest)
    for length in np.unique(padded):
        members = np.flatnonzero(padded == length)
        size = max(multiple, batch_tokens // int(length) // multiple * multiple)
        for start in range(0, len(members), size):
            order = members[start : start + size]
            batch = np.zeros((size, length), np.int32)
            for i, row in enumerate(order):
                batch[i, : lengths[row]] = tokens[row]
            yield order, batch


def _round_up(lengths: np.ndarray) -> np.ndarray:
    """To a multiple of 16 up to 64, and of 32 beyond: at most ten shapes for documents of 256 tokens."""
    step = np.where(lengths <= 64, 16, 32)
    return -(-np.maximum(lengths, 1) // step) * step

"""A file of lines about the passages of a collection, made shard by shard, so that what was cut off goes on."""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.data.sets.candidate import Candidate
from retrieval.runs.ranking.collection import Collection, repeated
from retrieval.search import sharded_map

_log = logging.getLogger(__name__)

_AGAIN = "run the stage again"
_PASSAGES = 4096  # of a shard at most
LONG = "passages longer than the model reads"


class Lines(NamedTuple):
    """The lines of some passages, each with its end, and what was counted."""

    lines: list[str]
    counts: Counter


def write_all(
    folder: Path, items: Sequence[Collection], shard_size: int, make: Callable[[Sequence[Candidate]], Lines]
) -> dict[str, dict[str, Any]]:
    """Writes `NAME.jsonl` of every collection; returns the counts by name. The arguments are those of `write`.

    The file of a collection that has the passages of an earlier one is a copy.
    """
    counts, same = {}, repeated(items)
    for item in items:
        path = folder / f"{item.name}.jsonl"
        if first := same.get(item.name):
            counts[item.name] = counts[first.name]
            hosts.on_first(functools.partial(files.copy, folder / f"{first.name}.jsonl", path))
        else:
            counts[item.name] = write(path, item, shard_size, make)
        _log.info("%s: %s", item.name, ", ".join(f"{what} {count:,}" for what, count in counts[item.name].items()))
    return counts


def write(
    path: Path, collection: Collection, shard_size: int, make: Callable[[Sequence[Candidate]], Lines]
) -> dict[str, Any]:
    """Writes the shards of this host, and when all are there the file, whole or not at all; returns the counts.

    A file that is there is not made again: a run that was cut off goes on with the next collection.

    Args:
      path: the file; its shards lie in a folder of the same name until then.
      make: the lines of the passages of a shard.

    Raises:
      UserError: there is no passage, or one has no text.
    """
    total, folder, counted = check(collection), path.with_suffix(""), path.with_suffix(".counts.json")
    if not hosts.on_first(path.exists):
        shards = sharded_map.Shards(folder, "lines", ".json", total, min(shard_size, _PASSAGES))
        shards.write(collection.candidates(), make, lambda shard, made: files.write_json(shard, made._asdict()))
        hosts.on_first(lambda: _join(shards.paths, path, counted, total))
    hosts.on_first(lambda: files.remove(folder))
    return hosts.on_first(lambda: files.read_json(counted))


def check(collection: Collection) -> int:
    """How many passages there are, before any of them is read by a model.

    Raises:
      UserError: one has no text, or there is none.
    """
    count, where = 0, ", ".join(map(str, collection.files))
    for count, passage in enumerate(collection.candidates(), 1):
        if not (passage.title.strip() or passage.text.strip()):
            what = f"passage '{passage.id}', number {count}, has neither title nor text"
            raise UserError(f"{where}: {what}, and nothing can be said about it: leave it out of the set")
    if not count:
        raise UserError(f"{where}: it has no passage")
    return count


def _join(shards: Sequence[Path], path: Path, counted: Path, passages: int) -> None:
    counts = Counter({"passages": passages})
    with files.atomic(path) as temporary:
        with temporary.open("w", encoding="utf-8") as file:
            for shard in (files.read_json(sharded_map.verify(shard, _AGAIN)) for shard in shards):
                file.writelines(shard["lines"])
                counts.update(shard["counts"])
        files.write_json(counted, counts)  # before the file: where that is, its counts are known

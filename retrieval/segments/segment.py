"""A segment: documents that came together, cut into passages, with all that is made of these. It never changes.

0003/passages.jsonl               the passages, as BEIR's corpus.jsonl
0003/rows.json                    the documents, a hash of each; the passages' ids, and of which of them each is
0003/vectors.npy, owners.npy      embeddings [W, E], float32, and the passage of each [W]
0003/KIND.npz, KIND.words.json    how often the passages have their words, for an index of words
0003/dense/                       an index of the embeddings, where there are many
0003/manifest.json                the sums of all of these

Shape letters: D documents, N passages, W embeddings (a long passage has several), E dimensions.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval import files
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.runtime import hashing
from retrieval.search import index_shards
from retrieval.search.bm25_kind import Bm25Kind
from retrieval.search.exact import Rows
from retrieval.search.index_kind import IndexKind, Options
from retrieval.search.index_shards import IndexShards
from retrieval.search.word_counts import WordCounts
from retrieval.search.words import Words

LEAST_INDEXED = 50_000  # embeddings of a segment that has an index of its own; fewer are searched one by one
REMEDY = "put the folder back from a copy, or delete the folder 'segments' to search what the run has indexed"
_PASSAGES, _ROWS, _VECTORS, _OWNERS, _DENSE = "passages.jsonl", "rows.json", "vectors.npy", "owners.npy", "dense"

Embed = Callable[[Sequence[Candidate]], tuple[np.ndarray, np.ndarray]]
"""Passages to embeddings [W, E] and the passage of each [W]."""


class Recipe(NamedTuple):
    """What is made of passages.

    Attributes:
      words: the kinds of indexes of words.
      of: what is a word to them.
      embed: None where there are no embeddings.
      dense: the kind of index of many embeddings, with its options; None where these are always searched one by one.
    """

    words: Sequence[Bm25Kind]
    of: Words
    embed: Embed | None
    dense: tuple[IndexKind, Options] | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Attributes:
    documents, hashes: [D] ids, and what tells whether a document is another.
    ids: [N] of the passages.
    document_N: the document of each passage.
    vectors: [W, E]; None where there are no embeddings.
    owner_W: the passage of each, ascending.
    counts: by kind of index of words.
    dense: an index of the embeddings; None where there is none of their own.
    name, seal: of its folder, and the sum of its manifest; '' in memory.
    """

    documents: Sequence[str]
    hashes: Sequence[str]
    ids: Sequence[str]
    document_N: np.ndarray
    passages: Sequence[Candidate]
    vectors: Rows | None
    owner_W: np.ndarray
    counts: Mapping[str, WordCounts]
    dense: IndexShards | None = None
    name: str = ""
    seal: str = ""


def hash_of(passages: Sequence[Candidate]) -> str:
    """What is equal for documents that have the same passages, in whatever order."""
    parts = sorted((each.id, each.title, each.section, each.text, each.url) for each in passages)
    return hashing.digest(*itertools.chain.from_iterable(parts)).hex()


def make(documents: Mapping[str, Sequence[Candidate]], recipe: Recipe) -> Segment:
    """The segment of some documents, in memory; each is an id and its passages."""
    passages = list(itertools.chain.from_iterable(documents.values()))
    document_N = np.repeat(np.arange(len(documents), dtype=np.int32), list(map(len, documents.values())))
    vectors, owner_W = recipe.embed(passages) if recipe.embed else (None, np.arange(len(passages), dtype=np.int32))
    return of_passages(list(documents), document_N, passages, vectors, owner_W, recipe)


def of_passages(
    documents: Sequence[str],
    document_N: np.ndarray,
    passages: Sequence[Candidate],
    vectors: Rows | None,
    owner_W: np.ndarray,
    recipe: Recipe,
) -> Segment:
    """The segment of passages that have been embedded; the arguments are its attributes."""
    order_N = np.argsort(document_N, kind="stable")
    ends_D = np.cumsum(np.bincount(document_N, minlength=len(documents)))
    hashes = [hash_of([passages[row] for row in rows.tolist()]) for rows in np.split(order_N, ends_D[:-1])]
    counts = {kind.name: kind.counts(passages, recipe.of) for kind in recipe.words}
    return Segment(documents, hashes, [each.id for each in passages], document_N, passages, vectors, owner_W, counts)


def save(segment: Segment, folder: Path, recipe: Recipe) -> Segment:
    """Writes a segment that is in memory into an empty folder, the manifest last; returns it as it is on the disk."""
    beir.write_candidates(folder / _PASSAGES, segment.passages)
    rows = {name: list(getattr(segment, name)) for name in ("documents", "hashes", "ids")}
    files.write_text(folder / _ROWS, json.dumps(rows | {"document": segment.document_N.tolist()}))
    np.save(folder / _OWNERS, segment.owner_W, allow_pickle=False)
    for name, counts in segment.counts.items():
        counts.save(folder, name)
    if segment.vectors is not None:
        written: Any = np.lib.format.open_memmap(folder / _VECTORS, "w+", np.float32, tuple(segment.vectors.shape))
        for start in range(0, len(written), 65_536):
            written[start : start + 65_536] = segment.vectors[start : start + 65_536]
        written.flush()
        if recipe.dense and len(written) >= LEAST_INDEXED:
            kind, options = recipe.dense
            shards = index_shards.number(len(written), 1)
            for shard in range(shards):
                part = written[index_shards.rows_of(shard, shards, len(written))]
                kind.build(part, options).save(index_shards.shard_path(folder / _DENSE, shard, shards))
            index_shards.write_list(folder / _DENSE, shards, len(written))
    files.write_manifest(folder)
    files.sync(folder)
    return load(folder, recipe)


def load(folder: Path, recipe: Recipe) -> Segment:
    """Reads what `save` wrote.

    Raises:
      UserError: a file is missing or damaged.
    """
    files.verify_manifest(folder, REMEDY)
    rows = files.read_json(folder / _ROWS)
    has_vectors, has_index = ((folder / name).exists() for name in (_VECTORS, _DENSE))
    return Segment(
        rows["documents"],
        rows["hashes"],
        rows["ids"],
        np.asarray(rows["document"], np.int32),
        RowTexts([folder / _PASSAGES]),
        files.read_array(folder / _VECTORS, REMEDY, mapped=True) if has_vectors else None,
        files.read_array(folder / _OWNERS, REMEDY),
        {kind.name: WordCounts.load(folder, kind.name, REMEDY) for kind in recipe.words},
        IndexShards.load(folder / _DENSE, recipe.dense[0].load) if has_index and recipe.dense else None,
        folder.name,
        seal_of(folder),
    )


def seal_of(folder: Path) -> str:
    """The sum of the manifest of a segment's folder: it stands for all that is in it."""
    (seal,) = files.checksums(folder, [folder / files.MANIFEST]).values()
    return seal

"""What a run has to hand over: the embeddings of a collection, with the ids, the texts and the metadata of its rows."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.api.document_texts import own_passages
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.errors import UserError
from retrieval.handover.vectors import BLOCK, Block, Vectors
from retrieval.pipeline.records import record_of
from retrieval.pipeline.run import Run
from retrieval.recipes import prompted
from retrieval.recipes.initial_parameters import of_towers
from retrieval.search import encoding, windows
from retrieval.search.encoding import StoredRows
from retrieval.stages.collection import CORPUS, Collection, collections
from retrieval.stages.handover_codes import Codes, measured
from retrieval.stages.handover_metadata import Metadata

Record = tuple[str, str, str, dict[str, Any]]
"""Id, title, text and metadata of a row."""


def chosen(run: Run, name: str) -> Collection:
    """The collection of a name; without one the corpus, or the only set.

    Raises:
      UserError: there are none or several, or it has no embeddings.
    """
    there = {item.name: item for item in collections(run) if item.has_embeddings()}
    name = name or (CORPUS if CORPUS in there else next(iter(there)) if len(there) == 1 else "")
    if name not in there:
        known = ", ".join(there) or "none"
        raise UserError(
            f"config.handover.collection='{name}': name one that {run.place} has embeddings of, which are: {known}"
            + ("" if there else "; --stage=encode makes them, of the corpus with config.encode.corpus=True")
        )
    return there[name]


def documents(run: Run, collection: Collection, dtype: str, metadata: Metadata, columns: tuple[str, ...]) -> Vectors:
    """The vectors of a collection. Of passages that were cut into windows each window has a row: ID#0, ID#1, ...

    Raises:
      UserError: there are none, two passages have one id, or a value or the dimensions do not fit the dtype; while they
        are read: embeddings are not of the passages that are there now.
    """
    folder, of_corpus = collection.embeddings(), collection.name == CORPUS
    ids, rows, texts = _stored(run, collection)
    in_order = [id for id, _ in itertools.groupby(ids)]
    if (again := next((id for id, count in Counter(in_order).items() if count > 1), None)) is not None:
        raise UserError(f"{folder}: two passages have the id '{again}', and other systems would keep one: rename it")
    is_cut = len(in_order) < len(ids)

    def records() -> Iterator[Record]:
        for number, (id, passage) in enumerate(itertools.zip_longest(_runs(ids), texts()), 1):
            if id is None or passage is None or id[0] != passage.id:
                raise UserError(
                    f"{folder}: passage {number} is '{passage and passage.id}', and its embedding that of "
                    f"'{id and id[0]}': they are older than the texts; --stage=encode makes them again"
                )
            document = passage.id.rpartition(":")[0] if of_corpus and run.prepares else ""
            said = metadata.of(passage, document, passage.id if is_cut else "")
            for window in range(id[1]):
                yield f"{passage.id}#{window}" if is_cut else passage.id, passage.title, passage.text, said

    prompt = _prompts(run, collection).document_prefix
    return _vectors(run, "document", rows, records, dtype, prompt, metadata.kinds, columns)


def queries(run: Run, collection: Collection, dtype: str) -> Vectors | None:
    """The vectors of an evaluation set's queries; None of the corpus, which has none.

    Raises:
      UserError: as `documents`.
    """
    if collection.name == CORPUS:
        return None
    texts, folder = beir.read_queries(run.sets / collection.name / "queries.jsonl"), collection.embeddings()
    if list(texts) != encoding.load_ids(folder, "queries"):
        raise UserError(f"{folder}: embeddings of other queries than the set has now; --stage=encode makes them again")
    rows, prompt = StoredRows(folder, "queries"), _prompts(run, collection).query_prefix
    return _vectors(run, "query", rows, lambda: ((id, "", text, {}) for id, text in texts.items()), dtype, prompt)


def asked(run: Run, collection: Collection, count: int) -> tuple[list[str], np.ndarray]:
    """The first queries of a set, or of the corpus as many passages, evenly spread: texts, and vectors [Q, E].

    Raises:
      UserError: another number of passages was embedded than there are.
    """
    folder = collection.embeddings()
    if collection.name != CORPUS:
        texts = beir.read_queries(run.sets / collection.name / "queries.jsonl")
        return list(texts.values())[:count], StoredRows(folder, "queries")[:count]
    ids, rows, texts = _stored(run, collection)
    owners_W, passages = windows.owners(ids), texts()
    if len(passages) != (embedded := int(owners_W[-1]) + 1):
        raise UserError(
            f"{folder}: {embedded:,} passages are embedded, and there are {len(passages):,} now; --stage=encode makes "
            "them again"
        )
    rows_Q = np.unique(np.linspace(0, len(owners_W) - 1, count).astype(np.int64))
    return [passages[int(owner)].text for owner in owners_W[rows_Q]], rows.take(rows_Q)


def _stored(run: Run, collection: Collection) -> tuple[list[str], StoredRows, Callable[[], Sequence[Candidate]]]:
    """The ids of the rows, the rows, and the texts."""
    folder = collection.embeddings()
    rows, ids = StoredRows(folder, "candidates"), encoding.load_ids(folder, "candidates")
    return ids, rows, lambda: own_passages(run, collection) if collection.name == CORPUS else RowTexts(collection.files)


def _runs(ids: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Each id, and how many rows it has."""
    return ((id, sum(1 for _ in rows)) for id, rows in itertools.groupby(ids))


def _prompts(run: Run, collection: Collection) -> ConfigDict:
    config = of_towers(run)
    if collection.name != CORPUS:
        config = prompted.of_set(config, run.load_vocabulary(), collection.name)
    return config.data


def _vectors(
    run: Run,
    side: str,
    rows: StoredRows,
    records: Callable[[], Iterator[Record]],
    dtype: str,
    prompt: str,
    kinds: Mapping[str, str] = MappingProxyType({}),
    columns: tuple[str, ...] = (),
) -> Vectors:
    if not len(rows):
        raise UserError(f"{run.place}: there is no embedding of a {side} to hand over")
    found = measured(rows)
    codes = Codes(dtype, rows.shape[1], found.largest)

    def blocks() -> Iterator[Block]:
        remaining = records()
        for start in range(0, len(rows), BLOCK):
            vectors_NS = codes.encode(rows[start : start + BLOCK])
            ids, titles, texts, metadata = map(list, zip(*itertools.islice(remaining, len(vectors_NS)), strict=True))
            yield Block(ids, vectors_NS, titles, texts, metadata)
        next(remaining, None)  # says that there are more

    model = f"sha256:{files.fingerprint(record_of(run, 'train')['outputs'])}"
    stored = {"dtype": dtype, "normalised": found.normalised, "scale": codes.scale, "prompt": prompt, "rows": len(rows)}
    return Vectors(side, model, rows.shape[1], **stored, kinds=kinds, columns=columns, blocks=blocks)

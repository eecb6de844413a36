"""The stage `handover`: a collection's vectors, texts and metadata, in the files that other systems load.

handover/TARGET/    as `retrieval.export.vectors.targets` says, with README.md, check.jsonl and manifest.json
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.api.document_texts import own_passages
from retrieval.common import files
from retrieval.common.errors import UserError, no_path
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.candidate import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.export.vectors import folder
from retrieval.export.vectors.metadata import Metadata
from retrieval.export.vectors.targets import TARGETS, Target
from retrieval.export.vectors.vectors import BLOCK, Block, Vectors, are_normalised, check_lines
from retrieval.runs.pipeline.records import record_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking.collection import CORPUS, Collection, collections, of_pairs
from retrieval.runs.weights import prompted
from retrieval.runs.weights.initial_parameters import TEXT_FIELDS
from retrieval.runs.weights.trained_run import check_towers, of_towers
from retrieval.search import encoding, windows
from retrieval.search.encoding import StoredRows

_log = logging.getLogger(__name__)

FOLDER = "handover"
_CHECKED = 50  # queries of `check.jsonl`

Record = tuple[str, str, str, dict[str, Any]]
"""Id, title, text and metadata of a row."""


def hand_over(run: Run) -> dict[str, Any]:
    """Writes vectors, texts and metadata of a collection as other systems load them; returns what is in each folder."""
    fields, targets = run.config.handover, _targets(run.config.handover.to)
    collection = _chosen(run, fields.collection)
    metadata, columns = Metadata(Path(fields.metadata) if fields.metadata else None), _names(fields.columns)
    metadata.check_columns(columns)
    documents = _documents(run, collection, metadata, columns)
    for target in targets:
        target.check(documents)
    queries = _queries(run, collection)
    check = list(check_lines(*_check_queries(run, collection, _CHECKED), documents))
    metadata.log_unused()
    out, counts = fields.out or str(run.folder / FOLDER), {}
    for target in targets:
        counts[target.name] = size = folder.write(out, target, documents, queries, check, run.folder)
        what = ", ".join(f"{count:,} {name}" for name, count in size.items())
        _log.info("handover: %s, for %s, in %s/%s: %s", collection.name, target.title, out, target.name, what)
    return {"collection": collection.name} | counts


def check(handover: ConfigDict) -> None:
    """Checks the targets, and that the file of metadata is there.

    Raises:
      UserError: a target is none, or is named twice.
    """
    _targets(handover.to)
    if handover.metadata and not Path(handover.metadata).is_file():
        raise no_path(Path(handover.metadata), "config.handover.metadata")


def _names(value: str) -> tuple[str, ...]:
    return tuple(name for name in map(str.strip, value.split(",")) if name)


def _targets(value: str) -> list[Target]:
    names = _names(value)
    if not names or len(set(names)) < len(names):
        raise UserError(f"config.handover.to={value}: name one or more of {', '.join(TARGETS)}, each once")
    return [TARGETS.find(name, "config.handover.to") for name in names]


def _files(run: Run) -> list[Path]:
    named = run.config.handover.metadata
    return [*([Path(named)] if named else []), *run.vocabulary_inputs()]


def _chosen(run: Run, name: str) -> Collection:
    """The collection of a name; without one the corpus, or the only set."""
    there = {item.name: item for item in collections(run) if item.has_embeddings()}
    name = name or (CORPUS if CORPUS in there else next(iter(there)) if len(there) == 1 else "")
    if name not in there:
        known = ", ".join(there) or "none"
        raise UserError(
            f"config.handover.collection='{name}': name one that {run.display_path} has embeddings of: {known}"
            + ("" if there else "; --stage=encode makes them, of the corpus with config.encode.corpus=True")
        )
    return there[name]


def _documents(run: Run, collection: Collection, metadata: Metadata, columns: tuple[str, ...]) -> Vectors:
    """The vectors of a collection. Of passages that were cut into windows each window has a row: ID#0, ID#1, ..."""
    folder, of_corpus = collection.embeddings(), collection.name == CORPUS
    ids, rows, texts = _stored(run, collection)
    counts = [(id, sum(1 for _ in rows)) for id, rows in itertools.groupby(ids)]
    if (again := next((id for id, count in Counter(id for id, _ in counts).items() if count > 1), None)) is not None:
        raise UserError(f"{folder}: two passages have the id '{again}', and other systems would keep one: rename it")
    is_cut = len(counts) < len(ids)

    def records() -> Iterator[Record]:
        for number, (id, passage) in enumerate(itertools.zip_longest(counts, texts()), 1):
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
    return _vectors(run, "document", rows, records, prompt, metadata.kinds, columns)


def _queries(run: Run, collection: Collection) -> Vectors | None:
    """The vectors of an evaluation set's queries; None of the corpus, which has none."""
    if collection.name == CORPUS:
        return None
    texts, folder = beir.read_queries(run.sets / collection.name / "queries.jsonl"), collection.embeddings()
    if list(texts) != encoding.load_ids(folder, "queries"):
        raise UserError(f"{folder}: embeddings of other queries than the set has now; --stage=encode makes them again")
    rows, prompt = StoredRows(folder, "queries"), _prompts(run, collection).query_prefix
    return _vectors(run, "query", rows, lambda: ((id, "", text, {}) for id, text in texts.items()), prompt)


def _check_queries(run: Run, collection: Collection, count: int) -> tuple[list[str], np.ndarray]:
    """The first queries of a set, or of the corpus as many passages, evenly spread: texts, and vectors [Q, E]."""
    folder = collection.embeddings()
    if collection.name != CORPUS:
        texts = beir.read_queries(run.sets / collection.name / "queries.jsonl")
        return list(texts.values())[:count], StoredRows(folder, "queries")[:count]
    ids, rows, texts = _stored(run, collection)
    owners_W, passages = windows.owners(ids), texts()
    if len(passages) != (embedded := int(owners_W[-1]) + 1):
        counts = f"{embedded:,} passages are embedded, and there are {len(passages):,} now"
        raise UserError(f"{folder}: {counts}; --stage=encode makes them again")
    rows_Q = np.unique(np.linspace(0, len(owners_W) - 1, count).astype(np.int64))
    return [passages[int(owner)].text for owner in owners_W[rows_Q]], rows[rows_Q]


def _stored(run: Run, collection: Collection) -> tuple[list[str], StoredRows, Callable[[], Sequence[Candidate]]]:
    """The ids of the rows, the rows, and the texts."""
    folder = collection.embeddings()
    rows, ids = StoredRows(folder, "candidates"), encoding.load_ids(folder, "candidates")
    return ids, rows, lambda: own_passages(run, collection) if collection.name == CORPUS else RowTexts(collection.files)


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
    prompt: str,
    kinds: Mapping[str, str] = MappingProxyType({}),
    columns: tuple[str, ...] = (),
) -> Vectors:
    if not len(rows):
        raise UserError(f"{run.display_path}: there is no embedding of a {side} to hand over")

    def blocks() -> Iterator[Block]:
        remaining = records()
        for start in range(0, len(rows), BLOCK):
            vectors_NE = rows[start : start + BLOCK]
            ids, titles, texts, metadata = map(list, zip(*itertools.islice(remaining, len(vectors_NE)), strict=True))
            yield Block(ids, vectors_NE, titles, texts, metadata)
        next(remaining, None)  # says that there are more

    model = f"sha256:{files.fingerprint(record_of(run, 'train')['outputs'])}"
    return Vectors(side, model, rows.shape[1], are_normalised(rows), prompt, len(rows), kinds, columns, blocks)


STAGES.register(
    "handover",
    Stage(
        hand_over,
        check_config=(of_fields(check, "handover"),),
        check=(check_towers, Run.check_vocabulary),
        fields=("handover", "data.prompts", "documents.base_url"),
        also_reads=("model", *(f"data.{name}" for name in TEXT_FIELDS)),
        reads=lambda config: (
            *(
                Read("encode", required=True, must_match=True),
                Read("train", optional=True),
                Read("prepare", must_match=True),
            ),
            *("sets", *of_pairs(config)),
        ),
        files=_files,
        side_outputs=(FOLDER,),
    ),
)

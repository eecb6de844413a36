"""The stage `handover`: a collection's vectors, texts and metadata, in the files that other systems load.

handover/TARGET/    as `retrieval.export.vectors.targets` says, with README.md, check.jsonl and manifest.json
"""

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.api.document_texts import own_passages
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.candidate import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.export.vectors import folder
from retrieval.export.vectors.targets import TARGETS, Target
from retrieval.export.vectors.vectors import BLOCK, METADATA, Block, Vectors, are_normalised, check_lines
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
_Record = tuple[str, str, str, dict[str, str]]  # the id, the title, the text and the metadata of a row


def hand_over(run: Run) -> dict[str, Any]:
    """Writes vectors, texts and metadata of a collection as other systems load them; returns what is in each folder."""
    fields, targets = run.config.handover, _targets(run.config.handover.to)
    source = _Source(run, _chosen(run, fields.collection))
    documents, queries = source.documents(), source.queries()
    for target in targets:
        target.check(documents)
    check = list(check_lines(*source.check_queries(_CHECKED), documents))
    out, counts = fields.out or str(run.folder / FOLDER), {}
    for target in targets:
        counts[target.name] = size = folder.write(out, target, documents, queries, check, run.folder)
        what = ", ".join(f"{count:,} {name}" for name, count in size.items())
        _log.info("handover: %s, for %s, in %s/%s: %s", source.name, target.title, out, target.name, what)
    return {"collection": source.name} | counts


def check(handover: ConfigDict) -> None:
    """Checks that each target is one, and is named once."""
    _targets(handover.to)


def _targets(value: str) -> list[Target]:
    names = [name for name in map(str.strip, value.split(",")) if name]
    if not names or len(set(names)) < len(names):
        raise UserError(f"config.handover.to={value}: name one or more of {', '.join(TARGETS)}, each once")
    return [TARGETS.find(name, "config.handover.to") for name in names]


def _chosen(run: Run, name: str) -> Collection:
    """The collection of a name; without one the corpus, or the only set."""
    there = {item.name: item for item in collections(run) if item.has_embeddings()}
    name = name or (CORPUS if CORPUS in there else next(iter(there)) if len(there) == 1 else "")
    if name not in there:
        known = ", ".join(there) or "none; --stage=encode makes them, of the corpus with config.encode.corpus=True"
        what = f"config.handover.collection='{name}'"
        raise UserError(f"{what}: name one that {run.display_path} has embeddings of: {known}")
    return there[name]


class _Source:
    """A collection's texts and the vectors of their rows: a passage, or a window of one."""

    def __init__(self, run: Run, collection: Collection):
        config, self.name, self._folder = of_towers(run), collection.name, collection.embeddings()
        self._rows, self._ids = StoredRows(self._folder, "candidates"), encoding.load_ids(self._folder, "candidates")
        self._windows = [(id, sum(1 for _ in rows)) for id, rows in itertools.groupby(self._ids)]
        self._queries = None  # the corpus has none
        if collection.name == CORPUS:
            self._texts: Sequence[Candidate] = own_passages(run, collection)
        else:
            self._texts = RowTexts(collection.files)
            self._queries = beir.read_queries(run.sets / collection.name / "queries.jsonl")
            config = prompted.of_set(config, run.load_vocabulary(), collection.name)
        self._prompts, self._are_cut = config.data, collection.name == CORPUS and run.prepares
        self._model = f"sha256:{files.fingerprint(record_of(run, 'train')['outputs'])}"

    def documents(self) -> Vectors:
        """All rows. Of passages that were cut into windows each window has a row: ID#0, ID#1, ..."""
        again = next((id for id, count in Counter(id for id, _ in self._windows).items() if count > 1), None)
        if again is not None:
            raise UserError(f"{self._folder}: two passages have the id '{again}': rename one, other systems keep one")
        if len(self._windows) != len(self._texts):
            counts = f"{len(self._windows):,} passages are embedded, and there are {len(self._texts):,} now"
            raise UserError(f"{self._folder}: {counts}; --stage=encode makes them again")
        is_cut = len(self._windows) < len(self._ids)

        def records() -> Iterator[_Record]:
            for number, ((id, count), passage) in enumerate(zip(self._windows, self._texts), 1):
                if id != passage.id:
                    other = f"passage {number} is '{passage.id}', and its embedding that of '{id}'"
                    raise UserError(f"{self._folder}: {other}: they are older; --stage=encode makes them again")
                document = id.rpartition(":")[0] if self._are_cut else ""
                own = (document, id if is_cut else "", passage.section, passage.article, passage.url)
                said = {name: value for name, value in zip(METADATA, own) if value}
                for window in range(count):
                    yield f"{id}#{window}" if is_cut else id, passage.title, passage.text, said

        return self._vectors("document", self._rows, records)

    def queries(self) -> Vectors | None:
        """Those of an evaluation set."""
        if (texts := self._queries) is None:
            return None
        if list(texts) != encoding.load_ids(self._folder, "queries"):
            raise UserError(f"{self._folder}: embeddings of other queries than the set has; --stage=encode makes them")
        rows = StoredRows(self._folder, "queries")
        return self._vectors("query", rows, lambda: ((id, "", text, {}) for id, text in texts.items()))

    def check_queries(self, count: int) -> tuple[list[str], np.ndarray]:
        """The first queries, or of the corpus as many passages, evenly spread: texts, and vectors [Q, E]."""
        if self._queries is not None:
            return list(self._queries.values())[:count], StoredRows(self._folder, "queries")[:count]
        rows_Q = np.unique(np.linspace(0, len(self._ids) - 1, count).astype(np.int64))
        return [self._texts[int(row)].text for row in windows.owners(self._ids)[rows_Q]], self._rows[rows_Q]

    def _vectors(self, side: str, rows: StoredRows, records: Callable[[], Iterator[_Record]]) -> Vectors:
        if not len(rows):
            raise UserError(f"{self._folder}: there is no embedding of a {side} to hand over")

        def blocks() -> Iterator[Block]:
            remaining = records()
            for start in range(0, len(rows), BLOCK):
                vectors_NE = rows[start : start + BLOCK]
                texts = zip(*itertools.islice(remaining, len(vectors_NE)), strict=True)
                ids, titles, texts, metadata = map(list, texts)
                yield Block(ids, vectors_NE, titles, texts, metadata)

        prompt, dim = self._prompts.query_prefix if side == "query" else self._prompts.document_prefix, rows.shape[1]
        return Vectors(side, self._model, dim, are_normalised(rows), prompt, len(rows), blocks)


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
        files=Run.vocabulary_inputs,
        side_outputs=(FOLDER,),
    ),
)

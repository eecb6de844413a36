"""The stages `encode` (texts to embeddings) and `index` (embeddings and texts to indexes)."""

import functools
import itertools
import logging
import operator
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import SWITCH, Field, declare, one_of, whole
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Candidate, Judged
from retrieval.errors import UserError
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes import examples
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.initial_parameters import load_towers, of_towers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, build_towers, candidate_windows, query_tokens
from retrieval.search import encoding, windows
from retrieval.search.bm25 import Bm25Index
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, Contents, IndexKind
from retrieval.search.words import Words

_log = logging.getLogger(__name__)

CORPUS = "corpus"
TRAINED, UNTRAINED = "trained", "untrained"
ACCENTS = ("vocabulary", "fold", "keep")
BM25, BM25_ALSO = "bm25", "bm25_also"

declare(
    "encode",
    batch_tokens=Field(262_144, whole(1), "tokens of a batch of texts"),
    shard_size=Field(65_536, whole(1), "texts of a file of embeddings; those of one are in memory at a time"),
    windows=Field(1, whole(1), "windows of a candidate at most; its best one scores (MaxP); 1: its beginning (FirstP)"),
    untrained=Field(True, SWITCH, "whether the towers before training are evaluated too, as a baseline"),
    corpus=Field(True, SWITCH, "whether the corpus is indexed, for --stage=search"),
)
declare(
    "index",
    dense=Field("scann", one_of("index", DENSE), "dense index: scann, or exact, which builds nothing"),
    bm25_accents=Field(
        "vocabulary", one_of("way with accents", ACCENTS), "whether 'café' is 'cafe': fold, keep or vocabulary"
    ),
)


def encode(run: Run) -> dict[str, Any]:
    """Writes the embeddings of every set, and of the corpus, by the trained towers and by the untrained ones."""
    vocabulary = run.load_vocabulary()
    config = of_towers(run)
    mesh = local_mesh(config)  # every host has shards of its own
    embedder = Embedder(config, vocabulary, mesh)
    tokens_of = functools.partial(query_tokens, config, vocabulary)
    windows_of = functools.partial(candidate_windows, config, vocabulary)
    counts = {}
    for system, params in _systems(run, config, len(vocabulary)):
        for name in collections(run):
            if name == CORPUS and system == UNTRAINED:
                continue
            write = functools.partial(
                encoding.encode,
                run.embeddings(name, system),
                shard_size=config.encode.shard_size,
                batch_tokens=config.encode.batch_tokens,
                longest=longest_text(config),
                multiple=mesh.size,
            )
            if name != CORPUS:
                queries = beir.read_queries(run.sets / name / "queries.jsonl")
                _encode_queries("queries", queries, write, embedder.queries(params), tokens_of)
            if system == TRAINED and name == examples.split_set(run):
                queries, _ = examples.validation(run)
                _encode_queries("validation", queries, write, embedder.queries(params), tokens_of)
            counts[f"{name}, {system}"] = _encode_candidates(run, name, write, embedder.documents(params), windows_of)
    return counts


def index(run: Run) -> dict[str, Any]:
    """Builds BM25 and, where there are embeddings, the dense index of the config for every collection.

    Before `encode` or `mine` in config.stages it is BM25 alone.
    """
    dense_kind = INDEXES[run.config.index.dense]
    if not (is_available := dense_kind.available()):
        _log.warning("%s cannot be imported here: exact search serves instead", dense_kind.title)
    built, words = {}, _words(run)
    for name in collections(run):
        texts = [document_text(candidate) for candidate in read_candidates(run, name)]
        for kind, k1, b in _settings_of_bm25(run.config):
            bm25 = Bm25Index.build(texts, "title + text", k1, b, words)
            bm25.save(run.index(name, kind))
            built[f"{name}, {'BM25' if kind == BM25 else bm25.system}"] = bm25.description
        if dense_kind.is_saved and is_available and needs(run.config) and has_embeddings(run, name):
            dense = dense_kind.build(_contents(run, name, TRAINED), _options(run, dense_kind))
            dense.save(run.index(name, dense_kind.name))
            built[f"{name}, dense"] = dense.description
            _log.info("%s: %s", name, dense.description)
    return built


def needs(config: ConfigDict) -> tuple[str, ...]:
    """`encode`, unless config.stages has `index` before that or before `mine`: then it is of words alone."""
    stages = list(config.stages)
    place = stages.index("index") if "index" in stages else len(stages)
    of_words = "encode" not in stages[:place] and {"encode", "mine"} & set(stages[place:])
    return () if of_words else ("encode",)


def of_pairs(config: ConfigDict) -> tuple[str, ...]:
    """`pairs`, where the passages of labelled examples stand in for a prepared corpus."""
    stands_in = config.encode.corpus and not config.base and "prepare" not in config.stages
    return ("pairs",) if stands_in else ()


def collections(run: Run) -> list[str]:
    """The evaluation sets, and the corpus itself (or the passages of labelled examples) where it is to be searched."""
    names = sorted(path.name for path in run.sets.iterdir() if path.is_dir()) if run.sets.exists() else []
    return names + ([CORPUS] if run.passages and run.config.encode.corpus else [])


def read_candidates(run: Run, name: str) -> Iterator[Candidate]:
    """The candidates of a set, or the passages of the corpus, in order, one after the other."""
    if name != CORPUS:
        return beir.read_candidates(run.sets / name / "corpus.jsonl")
    return itertools.chain.from_iterable(map(beir.read_candidates, run.passages))


def document_text(candidate: Candidate) -> str:
    """What BM25 indexes: title and text (ReQA: sentence and passage; the sentence alone flatters the rest)."""
    return f"{candidate.title} {candidate.text}".strip()


def _settings_of_bm25(config: ConfigDict) -> Iterator[tuple[str, float, float]]:
    """The kind of each BM25 index of a set, with its k1 and b."""
    yield BM25, config.index.bm25_k1, config.index.bm25_b
    if config.index.bm25_also:
        yield BM25_ALSO, *config.index.bm25_also


def _words(run: Run) -> Words:
    """What BM25 counts as a word; with a vocabulary it folds accents as the towers do, or it would be the weaker."""
    config = run.config.index
    folds = config.bm25_accents == "fold"
    if config.bm25_accents == "vocabulary":
        folds = run.vocabulary is None or run.load_vocabulary().folds_accents
    return Words(config.bm25_stop_words, config.bm25_stemmer, folds)


def has_embeddings(run: Run, name: str, system: str = TRAINED) -> bool:
    """Whether `encode` has encoded this collection."""
    return run.embeddings(name, system).exists()


def check_embeddings(run: Run, system: str, value: Judged) -> None:
    """Checks that the embeddings of a set are those of its candidates and queries as they are now.

    Raises:
      UserError: they are not: whatever was found would be taken for something else.
    """
    folder = run.embeddings(value.name, system)
    for kind, ids in (("candidates", value.candidates), ("queries", value.queries)):
        there = dict.fromkeys(encoding.load_ids(folder, kind))
        for number, (id, other) in enumerate(itertools.zip_longest(ids, there), 1):
            if id != other:
                raise UserError(
                    f"{folder}: older than the set: of its {len(ids)} {kind} '{id}' is number {number}, and '{other}' "
                    f"of the {len(there)} embeddings; --stage=encode,index makes both again"
                )


def check_count(folder: Path, count: int, there: int) -> None:
    """Checks that an index is over as many texts or windows as there are.

    Raises:
      UserError: it is not.
    """
    if count != there:
        raise UserError(
            f"{folder}: older than what it was made from, over {count} texts where there are {there} now; "
            "--stage=index makes it again"
        )


def dense_index(run: Run, name: str) -> windows.Index:
    """The index of a collection that is saved, or exact search where none is."""
    kind = next(saved_kinds(run, name), INDEXES[EXACT])
    return open_index(run, name, kind)


def saved_kinds(run: Run, name: str) -> Iterator[IndexKind]:
    """The kinds of index over the embeddings of a collection that are saved and can be used here."""
    kinds = (INDEXES[kind] for kind in sorted(DENSE))
    return (kind for kind in kinds if kind.is_saved and run.index(name, kind.name).exists() and kind.available())


def open_index(run: Run, name: str, kind: IndexKind, system: str = TRAINED) -> windows.Index:
    """An index over the embeddings of a collection, whose rows are candidates."""
    if not kind.is_saved:
        contents = _contents(run, name, system)
        return windows.over_candidates(kind.build(contents, _options(run, kind)), contents.owners_W)
    ids = encoding.load_ids(run.embeddings(name, TRAINED), "candidates")
    saved = kind.load(run.index(name, kind.name))
    check_count(run.index(name, kind.name), len(saved), len(ids))
    return windows.over_candidates(saved, windows.owners(ids))


def _contents(run: Run, name: str, system: str) -> Contents:
    embeddings_WE, ids = encoding.load(run.embeddings(name, system), "candidates")
    queries = functools.partial(_queries, run, name)
    return Contents(embeddings_WE, windows.owners(ids), queries, run.config.evaluate.depth)


def _options(run: Run, kind: IndexKind) -> dict[str, Any]:
    return {option: operator.attrgetter(option)(run.config) for option in kind.options}


def written(run: Run, _: Any) -> list[Path]:
    """The folders of all indexes of the run."""
    return sorted(path.parent for path in (run.folder / "index").rglob(files.MANIFEST))


def _queries(run: Run, name: str) -> np.ndarray:
    """Embeddings of queries like those that will come: the set's own, and for the corpus those of every set."""
    sets = [name] if name != CORPUS else [other for other in collections(run) if other != CORPUS]
    folders = [run.embeddings(other, TRAINED) for other in sets if has_embeddings(run, other)]
    found = [embeddings for folder in folders if len(embeddings := encoding.load(folder, "queries")[0])]
    return np.concatenate(found) if found else np.zeros((0, 0), np.float32)


def _systems(run: Run, config: ConfigDict, vocab_size: int) -> Iterator[tuple[str, Any]]:
    """The parameters of the towers, by system."""
    yield TRAINED, parameters_of(load_towers(run, vocab_size))
    if run.config.encode.untrained:
        yield UNTRAINED, parameters_of(build_towers(config, vocab_size))


def _encode_queries(
    kind: str, queries: Mapping[str, str], write: Callable, embed: encoding.Embed, tokens: Callable
) -> None:
    write(kind, queries.items(), len(queries), lambda texts: [[ids] for ids in tokens(texts)], embed)


def _encode_candidates(run: Run, name: str, write: Callable, embed: encoding.Embed, tokens: Callable) -> int:
    # Read twice: a collection may be larger than the memory, and the names of the shards say how many there are.
    total = sum(1 for _ in read_candidates(run, name))
    write("candidates", ((item.id, item) for item in read_candidates(run, name)), total, tokens, embed)
    return total


STAGES.register(
    "encode",
    Stage(
        encode,
        reads="checkpoint, sets, passages",
        writes="`embeddings/`",
        settings=("seed", "encode", "model", "data.query_length", "data.document_length", "loop.validate_queries"),
        needs=("prepare", "sets", "train"),
        also=of_pairs,
        outputs=("embeddings",),
        everywhere=True,
    ),
)

STAGES.register(
    "index",
    Stage(
        index,
        reads="embeddings, texts",
        writes="`index/`: ScaNN and BM25",
        settings=("index", "evaluate.depth", "encode.corpus"),
        needs=("prepare", "sets"),
        also=lambda config: (*needs(config), *of_pairs(config)),
        after=("encode",),
        outputs=("index",),
        sealed=written,
    ),
)

"""The stage `index`: texts and embeddings to indexes."""

import functools
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import TEXTS, Field, Kind, declare, one_of
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.search.index_kind import DENSE, EXACT, IndexKind, Options, Texts
from retrieval.stage_outputs import Run
from retrieval.stages.collection import Collection, collections, of_pairs
from retrieval.stages.indexes import Built, built_by

_log = logging.getLogger(__name__)

_NAMES = Kind(
    "one name or more, such as \"('bm25',)\"",
    lambda value: TEXTS.fits(value) and len(value) > 0 and not any("," in name for name in value),
)
declare(
    "index",
    words=Field(("bm25",), _NAMES, "indexes of words; the first one is merged with the dense index"),
    dense=Field("scann", one_of("index", DENSE), "dense index: scann, or exact, which builds nothing"),
)


def check(config: ConfigDict) -> None:
    """Checks which indexes are to be built, and their options.

    Raises:
      UserError: one does not exist or is not of words, or its options do not fit.
    """
    for kind, options in _all(config):
        kind.check(options)


def _all(config: ConfigDict) -> list[Built]:
    """The kinds that a config names: those of words, and the dense one."""
    words, dense = built_by(config)
    return [*words, dense]


def index(run: Run) -> dict[str, Any]:
    """Builds the indexes of words and, where there are embeddings, the dense one, for every collection.

    Before `encode` or `mine` in config.stages there are those of words alone.
    """
    words, dense = built_by(run.config)
    has_dense = bool(needs(run.config.stages)) and _is_available(dense.kind)
    built: dict[str, str] = {}
    folds_accents = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
    for collection in collections(run):
        for kind, options in words:
            index_of_words = kind.build(
                Texts(collection.name, collection.candidates, folds_accents, collection.generated), options
            )
            index_of_words.save(collection.index(kind.name))
            built[f"{collection.name}, {kind.title}"] = index_of_words.description
        is_embedded = has_dense and collection.has_embeddings()
        if is_embedded and (description := _build_dense(*dense, collection, run.config.evaluate.depth)):
            built[f"{collection.name}, dense"] = description
            _log.info("%s: %s", collection.name, description)
    return built


def needs(stages: Sequence[str]) -> tuple[str, ...]:
    """`encode`, unless config.stages has `index` before that or before `mine`: then it is of words alone."""
    place = tuple(stages).index("index") if "index" in stages else len(stages)
    of_words = "encode" not in stages[:place] and {"encode", "mine"} & set(stages[place:])
    return () if of_words else ("encode",)


def further_needs(kinds: Sequence[Built]) -> tuple[str, ...]:
    """The stages that kinds of index read besides."""
    return tuple(dict.fromkeys(stage for kind, options in kinds for stage in kind.stages(options)))


def check_stages(run: Run) -> None:
    """Checks that there are the stages whose output the indexes are built from.

    Raises:
      UserError: one is a stage neither of this run nor of its base.
    """
    for stage in further_needs(_all(run.config)):
        if stage not in run.holder(stage).config.stages:
            raise UserError(
                f"config.index.words={tuple(run.config.index.words)}: one is built from what the stage '{stage}' "
                "writes, which is a stage neither of this run nor of its base: add it to config.stages, set "
                "config.base, or name a file for the index"
            )


def inputs(kinds: Sequence[Built]) -> list[Path]:
    """The files outside of the work directory that indexes are built from."""
    return [path for kind, options in kinds for path in kind.inputs(options)]


def written(folder: Path) -> list[Path]:
    """The folders of all indexes of a work directory."""
    return sorted(path.parent for path in (folder / "index").rglob(files.MANIFEST))


def _is_available(kind: IndexKind) -> bool:
    """Whether a kind can be used here; if not, the log says what serves in its place."""
    is_available = kind.available()
    if not is_available:
        _log.warning("%s cannot be imported here: exact search serves instead", kind.title)
    return is_available


def _build_dense(kind: IndexKind, options: Options, collection: Collection, depth: int) -> str:
    """Builds and saves a dense index; returns its description.

    One that is not saved leaves a note of its options: stages that build it are then made anew when they change.
    """
    folder = collection.index(kind.name)
    if kind.is_saved:
        index = kind.build(collection.contents(depth), options)
        index.save(folder)
        return index.description
    if kind.name != EXACT:  # which is always there
        with files.atomic(folder) as temporary:
            temporary.mkdir()
            files.write_json(temporary / "options.json", options)
            files.write_manifest(temporary)
    return ""


STAGES.register(
    "index",
    Stage(
        index,
        check_settings=(check,),
        check=(check_stages,),
        reads="embeddings, texts",
        writes="`index/`: ScaNN and BM25",
        settings=("index", "evaluate.depth", "encode.corpus"),
        needs=("prepare", "sets"),
        also=lambda config: (*needs(config.stages), *of_pairs(config), *further_needs(_all(config))),
        after=("encode", "generate"),
        texts_of=("sets",),
        inputs=lambda run: [*inputs(_all(run.config)), *run.vocabulary_inputs()],
        outputs=("index",),
        sealed=lambda run, _: written(run.folder),
    ),
)

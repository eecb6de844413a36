"""The stage `index`: texts and embeddings to indexes."""

import functools
import logging
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import TEXTS, Field, Kind, declare, one_of
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, IndexKind, Options, Texts
from retrieval.stage_outputs import Run
from retrieval.stages.collection import Collection, collections, of_pairs
from retrieval.stages.indexes import of_words, options_of

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
    for kind in (*of_words(config), INDEXES[config.index.dense]):
        kind.check(options_of(kind, config))


def index(run: Run) -> dict[str, Any]:
    """Builds the indexes of words and, where there are embeddings, the dense one, for every collection.

    Before `encode` or `mine` in config.stages there are those of words alone.
    """
    config, built = run.config, {}
    folds_accents = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
    word_kinds = [(kind, options_of(kind, config)) for kind in of_words(config)]
    dense = _where_available(INDEXES[config.index.dense]) if needs(config) else None
    for collection in collections(run):
        for kind, options in word_kinds:
            words = kind.build(
                Texts(collection.name, collection.candidates, folds_accents, collection.generated), options
            )
            words.save(collection.index(kind.name))
            built[f"{collection.name}, {kind.title}"] = words.description
        if dense and collection.has_embeddings():
            options = options_of(dense, config)
            if description := _build_dense(dense, collection, options, config.evaluate.depth):
                built[f"{collection.name}, dense"] = description
                _log.info("%s: %s", collection.name, description)
    return built


def needs(config: ConfigDict) -> tuple[str, ...]:
    """`encode`, unless config.stages has `index` before that or before `mine`: then it is of words alone."""
    stages = list(config.stages)
    place = stages.index("index") if "index" in stages else len(stages)
    of_words = "encode" not in stages[:place] and {"encode", "mine"} & set(stages[place:])
    return () if of_words else ("encode",)


def further_needs(config: ConfigDict) -> tuple[str, ...]:
    """The stages that kinds of index read besides."""
    kinds = (*of_words(config), INDEXES[config.index.dense])
    return tuple(dict.fromkeys(stage for kind in kinds for stage in kind.stages(options_of(kind, config))))


def check_stages(run: Run) -> None:
    """Checks that there are the stages whose output the indexes are built from.

    Raises:
      UserError: one is a stage neither of this run nor of its base.
    """
    for stage in further_needs(run.config):
        if stage not in run.holder(stage).config.stages:
            raise UserError(
                f"config.index.words={tuple(run.config.index.words)}: one is built from what the stage '{stage}' "
                "writes, which is a stage neither of this run nor of its base: add it to config.stages, set "
                "config.base, or name a file for the index"
            )


def inputs(config: ConfigDict) -> list[Path]:
    """The files outside of the work directory that the indexes are built from."""
    kinds = (*of_words(config), INDEXES[config.index.dense])
    return [path for kind in kinds for path in kind.inputs(options_of(kind, config))]


def written(folder: Path) -> list[Path]:
    """The folders of all indexes of a work directory."""
    return sorted(path.parent for path in (folder / "index").rglob(files.MANIFEST))


def _where_available(kind: IndexKind) -> IndexKind | None:
    if kind.available():
        return kind
    _log.warning("%s cannot be imported here: exact search serves instead", kind.title)
    return None


def _build_dense(kind: IndexKind, collection: Collection, options: Options, depth: int) -> str:
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
        also=lambda config: (*needs(config), *of_pairs(config), *further_needs(config)),
        after=("encode", "generate"),
        texts_of=("sets",),
        inputs=lambda run: [*inputs(run.config), *run.vocabulary_inputs()],
        outputs=("index",),
        sealed=lambda run, _: written(run.folder),
    ),
)

"""The stage `index`: texts and embeddings to indexes."""

import functools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking.collection import Collection, collections, of_pairs
from retrieval.runs.ranking.indexes import built_by, options_of
from retrieval.search import index_shards
from retrieval.search.encoding import StoredRows
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, IndexKind, Options, SavedIndex, Texts

_log = logging.getLogger(__name__)

_READ = "read"  # beside a collection's indexes: what stages take from the config of the run that has made these


def check(config: ConfigDict) -> None:
    """Checks which indexes are to be built, and their options."""
    for kind, options in built_by(config):
        kind.check(options)


def check_inputs(run: Run) -> None:
    """Looks into the files that indexes are built from besides texts, and for the stages whose output is read."""
    for kind, options in built_by(run.config):
        kind.preview(options)
    for stage in _further_needs(run.config):
        if stage not in run.owner(stage).config.stages:
            way = "add it to config.stages, set config.base to a run that has it, or name a file for the index"
            raise UserError(f"config.index.words: one is built from what the stage '{stage}' writes: {way}")


def index(run: Run) -> dict[str, Any]:
    """Builds the indexes of words and, where there are embeddings, the dense one, for every collection.

    Before `encode` or `mine` in config.stages there are those of words alone. In a pod the first host builds these, and
    each host its shards of the dense ones.
    """
    *words, dense = built_by(run.config)
    searched, built = collections(run), {}
    embedded = needs(run.config.stages) and any(collection.has_embeddings() for collection in searched)
    has_dense = bool(embedded) and _is_available(dense.kind)  # which imports TensorFlow for ScaNN
    folds_accents = functools.cache(lambda: run.vocabulary is None or run.load_vocabulary().folds_accents)
    of_dense = {name: of for kind in DENSE for name, of in options_of(INDEXES[kind], run.config).items()}
    read = {"index.words": tuple(run.config.index.words), **of_dense}  # what later stages take from the config
    for collection in searched:
        hosts.tell_all(functools.partial(_note, collection.index(_READ), read))
        for kind, options in words:
            texts = Texts(collection.name, collection.candidates, folds_accents, collection.generated)
            build = functools.partial(kind.build, texts, options)
            description = hosts.tell_all(functools.partial(_built, kind, collection.index(kind.name), build))
            built[f"{collection.name}, {kind.title}"] = description
        if has_dense and collection.has_embeddings() and (description := _build_dense(*dense, collection)):
            built[f"{collection.name}, dense"] = description
            _log.info("%s: %s", collection.name, description)
    return built


def needs(stages: Sequence[str]) -> tuple[str, ...]:
    """`encode`, unless config.stages has `index` before that or before `mine`: then it is of words alone."""
    place = tuple(stages).index("index") if "index" in stages else len(stages)
    of_words = "encode" not in stages[:place] and {"encode", "mine"} & set(stages[place:])
    return () if of_words else ("encode",)


def read(config: ConfigDict) -> list[str | Read]:
    """What the stage reads: texts, their embeddings, and what kinds of index read besides."""
    texts = ["prepare", Read("sets", must_match=True), *needs(config.stages), *of_pairs(config)]
    return [*texts, *_further_needs(config)]


def _further_needs(config: ConfigDict) -> tuple[str, ...]:
    """The stages that kinds of index read besides."""
    return tuple(dict.fromkeys(stage for kind, options in built_by(config) for stage in kind.stages(options)))


def inputs(run: Run) -> list[Path]:
    """The files outside of the work directory that indexes are built from."""
    of_kinds = (path for kind, options in built_by(run.config) for path in kind.inputs(options))
    return [*of_kinds, *run.vocabulary_inputs()]


def _is_available(kind: IndexKind) -> bool:
    """Whether all hosts can use a kind; if not, the log says what serves in its place."""
    there = hosts.to_first(kind.available())
    is_available = hosts.tell_all(lambda: all(there))
    if not is_available:
        _log.warning("%s cannot be imported here: exact search serves instead", kind.title)
    return is_available


def _built(kind: IndexKind, folder: Path, build: Callable[[], SavedIndex]) -> str:
    """Builds and saves an index, unless this stage had done so before it was cut off; returns its description.

    What was made with other settings, or of other inputs, was deleted when the stage began.
    """
    if (folder / files.MANIFEST).exists():
        try:
            description = kind.load(folder).description
            _log.info("%s: built before the stage was cut off", folder.name)
            return description
        except UserError as error:
            _log.warning("%s; it is built again", error)
    index = build()
    index.save(folder)
    return index.description


def _build_dense(kind: IndexKind, options: Options, collection: Collection) -> str:
    """Builds and saves this host's shards of a dense index; returns the description of the whole.

    One that is not saved leaves a note of its options, and its description is "": stages that build it are then made
    anew when they change.
    """
    folder = collection.index(kind.name)
    if not kind.is_saved:
        if kind.name != EXACT:  # which is always there
            hosts.tell_all(functools.partial(_note, folder, options))
        return ""
    rows, descriptions = StoredRows(collection.embeddings(), "candidates"), []
    count = index_shards.number(len(rows), hosts.count())
    for shard in range(hosts.number(), count, hosts.count()):
        path = index_shards.shard_path(folder, shard, count)
        files.remove_temporaries(folder, path.name)
        of_shard = index_shards.rows_of(shard, count, len(rows))
        descriptions.append(_built(kind, path, lambda of_shard=of_shard: kind.build(rows[of_shard], options)))
    hosts.on_first(functools.partial(index_shards.write_list, folder, count, len(rows)))
    first = hosts.tell_all(lambda: descriptions[0])
    return first if count == 1 else f"{count} shards, the first of them: {first}"


def _note(folder: Path, options: Options) -> None:
    """Writes options where they count as what the stage has made: who reads this is made anew when they change."""
    with files.atomic(folder) as temporary:
        temporary.mkdir()
        files.write_json(temporary / "options.json", options)
        files.write_manifest(temporary)


STAGES.register(
    "index",
    Stage(
        index,
        check_config=(check,),
        check=(check_inputs,),
        fields=("index", "evaluate.depth", "encode.corpus"),
        reads=read,
        files=inputs,
        writes=("index",),
        on_every_host=True,
    ),
)

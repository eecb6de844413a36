"""The stage `encode`: texts to embeddings."""

import dataclasses
import hashlib
import itertools
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import devices, hosts
from retrieval.config.fields import values_of
from retrieval.data.sets import beir
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, form_of, towers_of
from retrieval.runs.fitting import encoding_cost, held_out_questions
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import OLDER, STAGES, Read, Stage
from retrieval.runs.ranking import costs, ranked_lists
from retrieval.runs.ranking.collection import (
    BASELINES,
    CORPUS,
    START,
    TRAINED,
    UNTRAINED,
    Collection,
    collections,
    of_pairs,
    repeated,
)
from retrieval.runs.weights import initial_parameters, prompted, trained_run
from retrieval.runs.weights.exported_towers import LoadedTowers
from retrieval.runs.weights.initial_parameters import TEXT_FIELDS
from retrieval.runs.weights.text_embedder import DOCUMENTS, QUERIES, TextEmbedder
from retrieval.runs.weights.trained_model import TrainedKind
from retrieval.runs.weights.trained_run import check_towers, load_towers, of_towers
from retrieval.search import encoding, vector_codes
from retrieval.search.vector_codes import FLOAT32, Form

_log = logging.getLogger(__name__)

_CALIBRATED = 10_000  # candidates, spread evenly, that the ranges of int8 are from


def encode(run: Run) -> dict[str, Any]:
    """Writes the embeddings of every set, and of the corpus, by the trained towers and by the baselines."""
    vocabulary, config, items = run.load_vocabulary(), of_towers(run), collections(run)
    size, fields = len(vocabulary), run.config.encode
    systems = {TRAINED: lambda: load_towers(run, size)}
    systems |= {UNTRAINED: lambda: towers_of(config, size)} if fields.untrained else {}
    systems |= {START: lambda: trained_run.load_start(run, config, size)} if fields.start else {}
    configs = {item.name: _with_prompts_of(item.name, config, vocabulary) for item in items}
    # Prompts that are not pooled end in different places, and these are a part of the program.
    places = {name: tuple(own.model.pool_from) for name, own in configs.items()}
    mesh = local_mesh(config)  # every host has shards of its own
    at_places = {places[name]: own for name, own in configs.items()}
    embedders = {place: Embedder(own, vocabulary, mesh) for place, own in at_places.items()}
    same, counts = repeated(items), {}
    for system, load in systems.items():
        params = parameters_of(load())
        for item in items:
            if item.name == CORPUS and system in BASELINES:
                continue
            own, first = configs[item.name], same.get(item.name)
            towers = LoadedTowers(own, vocabulary, params)
            encoder = SetEncoder(run, item, system, towers, embedders[places[item.name]])
            if item.name == CORPUS and hosts.is_alone():  # sets of its own passages are encoded by now
                encoder.reuse([other.embeddings(system) for other in items if other is not item])
            if item.name != CORPUS:
                counts |= encoder.write_queries()
            has_prompt = first and configs[first.name].data.document_prefix != own.data.document_prefix
            counts |= encoder.write_candidates(None if has_prompt else first)
    return counts


class SetEncoder(TextEmbedder):
    """Encodes the texts of a collection by one system."""

    def __init__(self, run: Run, item: Collection, system: str, towers: LoadedTowers, embedder: Embedder):
        """Args are as of `TextEmbedder`; the config of the towers has the prompts of the collection."""
        super().__init__(towers, embedder)
        self._run, self._item, self._system = run, item, system
        self._config, self._vocabulary, _ = towers
        self._folder, self._maker = item.embeddings(system), _maker(towers)
        self._older = _older(run, self._folder, self._maker)

    def reuse(self, folders: Iterable[Path]) -> None:
        """Copies vectors of the same tokens from other folders, too, where their maker is the same."""
        forms = ((folder, vector_codes.read(folder, "candidates")) for folder in folders)
        self._older += [folder for folder, form in forms if form and form.maker == self._maker]

    def write_queries(self) -> dict[str, Any]:
        """Writes those of the set, and by the trained towers of validation; returns what a text costs."""
        name, is_trained = self._item.name, self._system == TRAINED
        kinds = {"queries": beir.read_queries(self._run.sets / name / "queries.jsonl")}
        if is_trained and name == held_out_questions.split_set(self._run):
            kinds["validation"] = held_out_questions.validation(self._run)[0]
        for kind, texts in kinds.items():
            self._store(kind, QUERIES, texts.items(), len(texts), self._form(FLOAT32))
        if not is_trained:
            return {}
        texts = kinds["queries"].values(), self._item.candidates(), sum(1 for _ in self._item.candidates())
        return {costs.of_set(name): encoding_cost.of_set(self._config, self._vocabulary, *texts, build=towers_of)}

    def write_candidates(self, first: Collection | None) -> dict[str, Any]:
        """Writes those of the collection; returns counts.

        Args:
          first: a collection with the same candidates and prompt that is encoded already.
        """
        name, total = self._item.name, sum(1 for _ in self._item.candidates())
        if first:
            _log.info("%s has the candidates of %s: embeddings are copied", name, first.name)
            encoding.copy(first.embeddings(self._system), self._folder, "candidates", total, self._shard_size)
        else:  # they are read as they are encoded: a collection may be larger than the memory
            texts, form = ((item.id, item) for item in self._item.candidates()), self._calibrated(total)
            self._store("candidates", DOCUMENTS, texts, total, form)
        return {f"{name}, {self._system}": total}

    def _store(self, name: str, side: str, texts: Iterable[tuple[str, Any]], total: int, form: Form) -> None:
        self.write(self._folder, name, side, texts, total, form=form, older=self._older)

    def _form(self, precision: str | None = None) -> Form:
        return dataclasses.replace(form_of(self._config, precision), maker=self._maker)

    def _calibrated(self, total: int) -> Form:
        """The form of candidates; where it needs ranges, these are of some of them, as a pod's first host has them.

        They stay those that the stage had before it was cut off, and those of the vectors that are reused.
        """
        form = self._form()

        def ranges() -> list[list[float]]:
            for folder in (self._folder, *self._older):
                if (there := vector_codes.read(folder, "candidates")) and there.ranges_2E is not None:
                    return there.ranges_2E.tolist()
            some = itertools.islice(self._item.candidates(), 0, None, -(-total // _CALIBRATED))
            rows = (row for each in some for row in self._rows[DOCUMENTS]([each])[0])
            return vector_codes.ranges_of(encoding.encode_rows(rows, self._towers[DOCUMENTS], **self._sizes)).tolist()

        return form.calibrated(np.asarray(hosts.tell_all(ranges), np.float32)) if form.needs_ranges else form


def _maker(towers: LoadedTowers) -> str:
    """What decides a vector besides its tokens, as a hash: the parameters themselves, and how they read texts.

    The record of a training will not do: a run that was killed ends with the same bits, and another record.
    """
    config, vocabulary, params = towers
    values = hashlib.sha256()
    for leaf in jax.tree.leaves(params):
        values.update(np.ascontiguousarray(leaf).reshape(-1).view(np.uint8).data)
    read = [config.model.to_dict(), *(config.data[name] for name in TEXT_FIELDS)]
    return files.fingerprint([values.hexdigest(), vocabulary.fingerprint, read])


def _older(run: Run, folder: Path, maker: str) -> list[Path]:
    """Where vectors by the same maker are that were made before: by this run, else by one that it stands on."""
    below = folder.relative_to(run.folder)
    for place in (run.folder / OLDER / below, *(base.folder / below for base in run.chain[1:])):
        try:
            form = vector_codes.read(place, "candidates")
        except UserError as error:
            _log.warning("nothing is reused: %s", error)
            continue
        if form and form.maker == maker:
            return [place]
        if form:
            _log.info("%s: of another model, length or prompt: nothing is reused", place)
    return []


def _with_prompts_of(name: str, config: ConfigDict, vocabulary: Vocabulary) -> ConfigDict:
    """The config with the prompts of a collection, of which the corpus has the usual ones."""
    if name == CORPUS:
        return config
    prompted.log_of_set(config, name)
    return prompted.of_set(config, vocabulary, name)


def check_start(run: Run) -> None:
    """Checks that the towers before training can be encoded, where they are asked for."""
    if run.config.encode.start:
        trained = run.owner("train")
        if not trained.config.train.init_from:
            raise UserError("config.encode.start=True evaluates what config.train.init_from names: set one of the two")
        initial_parameters.start_of(trained.config).check(trained)


def fetch(run: Run) -> None:
    """Copies down the towers before training, where they are asked for and on a store."""
    if run.config.encode.start:
        initial_parameters.start_of(run.owner("train").config).fetch(run.owner("train"))


def over_texts(kind: TrainedKind, field: str) -> dict[str, Any]:
    """Arguments of a `Stage` whose hosts all encode the collections, with the model of a kind that a field names."""

    def named(config: ConfigDict) -> str:
        return values_of(config, [field])[field]

    texts, full = (Read("sets", must_match=True), "prepare"), f"config.{field}"
    return {
        "check": (lambda run: kind.check(run, named(run.config), full), devices.check),
        "reads": lambda config: (*texts, *of_pairs(config), *ranked_lists.train_unless(named(config))),
        "files": lambda run: kind.inputs(run, named(run.config), full),
        "fetch": lambda run: kind.fetch(run, named(run.config), full),
        "also_reads": ("encode.batch_tokens",),
        "on_every_host": True,
    }


STAGES.register(
    "encode",
    Stage(
        encode,
        check=(Run.check_vocabulary, check_towers, check_start, lambda run: form_of(of_towers(run)), devices.check),
        fields=(
            *("seed", "encode", "model", "loop.validate_queries"),
            *(f"data.{name}" for name in (*TEXT_FIELDS, "prompts")),
        ),
        reads=lambda config: ("prepare", "sets", Read("train", required=True), *of_pairs(config)),
        files=Run.vocabulary_inputs,
        fetch=fetch,
        writes=("embeddings",),
        reuses=True,
        on_every_host=True,
    ),
)

"""A run that starts from BERT's weights: whether they fit, and where they go."""

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, hub_hint
from retrieval.common.runtime import hub, model_folder
from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models import module_folder, two_tower
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders.family import is_encoder
from retrieval.models.module_folder import ModuleFolder
from retrieval.models.warm_start import replace_parameters
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.recipe import Recipe, abstract_model, recipe_of
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import module_fields
from retrieval.runs.weights.initial_parameters import FIELD, STARTS, Start

_log = logging.getLogger(__name__)

_TOWERS = ("query_tower", "document_tower")
_HEAD = ("pooler", "pooler_norm", "classifier")  # of a cross-encoder


def folders(config: ConfigDict) -> dict[str, EncoderFolder]:
    """The folders of BERT's weights that `train.init_from` names, by tower; empty where it names none.

    Raises:
      UserError: one of them is none, or there are more towers than the model has.
    """
    value = config.train.init_from
    if "," not in value:
        folder = hub.path(value) if value else None
        if not folder or not is_encoder(folder):
            if hub.is_name(value):
                raise UserError(f"{FIELD}={value}: its config is not that of an encoder")
            return {}
        if not (recipe_of(config).has_towers and model_folder.has_two_towers(folder)):
            return dict.fromkeys(_TOWERS, EncoderFolder.open(folder))
        model_folder.check_sums(folder)
        names = [str(folder / name) for name in (model_folder.QUERY, model_folder.DOCUMENT)]
    else:
        names = value.split(",")
    if len(names) != 2 or not any(names):
        raise UserError(f"{FIELD}={value}: one folder is needed, or QUERY,DOCUMENT, of which one may be empty")
    recipe = recipe_of(config)
    if not recipe.has_towers or config.model.tied:
        why = "towers that share their parameters are" if recipe.has_towers else f"{recipe.label} is"
        way = "name one, or set config.model.tied=False"
        raise UserError(f"{FIELD}={value}: two folders, but {why} one encoder; {way}")
    for name in filter(None, names):
        if not is_encoder(hub.path(name)):
            what = "no folder of BERT's weights (config.json beside the weights)"
            raise UserError(f"{FIELD}={value}: {name} is {what}{hub_hint(name)}")
    return {tower: EncoderFolder.open(hub.path(name)) for tower, name in zip(_TOWERS, names) if name}


def check(config: ConfigDict, vocabulary: Path | None) -> None:
    """Checks that the model and the vocabulary of a run are those of the folders that it starts from.

    Args:
      vocabulary: the run's, None if it has none yet.
    """
    of_towers = folders(config)
    for folder in dict.fromkeys(of_towers.values()):
        missing = _other_sizes(config, folder)
        sides = [tower for tower, other in of_towers.items() if other is folder]
        lacking = _lacking(config, folder, sides) if recipe_of(config).has_towers else []
        if flags := " ".join([*missing, *lacking]):
            what = "a model of other sizes" if missing else "this config lacks what its modules do"
            way = f"\nor name a copy without {model_folder.MODULES}, for its encoder alone" if lacking else ""
            raise UserError(f"{FIELD}={folder.path}: {what}; set\n  {flags}{way}")
        _check_vocabulary(vocabulary, folder)


def _load(recipe: Recipe, bert_folders: Mapping[str, EncoderFolder], params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters (or shapes) of a model, with those of the folders in their places."""
    if "classifier" in params:
        return _load_reranker(bert_folders["query_tower"], params)
    if "encoder" in params:
        load = _load_mlm if "dense" in params else _load_encoder
        return {**load(bert_folders["query_tower"], params), **recipe.own_head(bert_folders["query_tower"], params)}
    loaded = dict(params)
    for name, folder in bert_folders.items():
        if name in params and model_folder.has_modules(folder.path):  # of its modules behind the pooling, too
            loaded[name] = {**params[name], **ModuleFolder.open(folder.path).tower(params[name])}
        elif name in params:
            loaded[name] = {**params[name], "encoder": folder.encoder(params[name]["encoder"])}
    return loaded


def _load_mlm(folder: EncoderFolder, params: Mapping[str, Any]) -> dict[str, Any]:
    loaded = folder.mlm_head({name: params[name] for name in ("dense", "norm", "bias")})
    if loaded is None:
        _log.warning("%s has no head of a masked language model: that starts at random", folder.path)
    more = {name: params[name] for name in ("pooler", "next_sentence") if name in params}
    second = folder.next_sentence_head(more) if more else {}
    if second is None:
        _log.warning("%s has no head of next-sentence prediction: that starts at random", folder.path)
    return {**params, "encoder": folder.encoder(params["encoder"]), **(loaded or {}), **(second or {})}


def _load_encoder(folder: EncoderFolder, params: Mapping[str, Any]) -> dict[str, Any]:
    """Of a model whose other parameters a BERT has not: they start at random."""
    if "final_norm" in params["encoder"] and not folder.sizes["architecture"].final_norm:
        way = "set config.model.writer.pre_norm=False"
        raise UserError(f"{FIELD}={folder.path}: the norms of a BERT stand after its sublayers: {way}")
    return {**params, "encoder": folder.encoder(params["encoder"])}


def _load_reranker(folder: EncoderFolder, params: Mapping[str, Any]) -> dict[str, Any]:
    """All of a cross-encoder of one class or of as many; of another model the encoder, and its pooler if it has one."""
    classes = params["classifier"]["kernel"].shape[1]
    like = {name: params[name] for name in _HEAD if name in params}
    if folder.classes not in (1, classes):
        del like["classifier"]
    head = folder.classifier(like)
    if missing := " and no ".join(name for name in _HEAD if name in params and name not in head):
        _log.warning("%s has no %s of a reranker of %d classes: at random", folder.path, missing, classes)
    return {**params, "encoder": folder.encoder(params["encoder"]), **head}


def _other_sizes(config: ConfigDict, folder: EncoderFolder) -> list[str]:
    """The flags that give a config the sizes of a folder."""
    fields = module_fields.encoder_fields(folder)
    wrong = [f"--config.model.{name}={quoted(str(x))}" for name, x in fields.items() if config.model[name] != x]
    longest, flat = folder.sizes["max_length"], ("data.query_length", "data.document_length", "model.positions")
    lengths = {name: config[group][field] for name in flat for group, _, field in [name.partition(".")]}
    return wrong + [f"--config.{name}={longest}" for name, length in lengths.items() if length > longest]


def _lacking(config: ConfigDict, folder: EncoderFolder, towers: Sequence[str]) -> list[str]:
    """The flags that give a config what a folder of sentence-transformers does behind its encoder, and before it.

    Args:
      towers: those that start from the folder.
    """
    if not model_folder.has_modules(folder.path):
        return []
    modules, settings = ModuleFolder.open(folder.path), module_folder.settings(folder.path)
    theirs, model = module_fields.fields_of(modules, settings), config.model
    names = ["pooling"]
    if modules.layers and tuple(two_tower.head_of(model.embed_dim, model.embed_norm, model.head)) != modules.layers:
        names += ["embed_dim", "embed_norm", "head"]
    names += [name for name in ("normalize", "truncate_dim") if not model[name]]
    wanted = {f"model.{name}": theirs[name] for name in names if model[name] != theirs[name]}
    config = config.copy_and_resolve_references()
    sides = zip(prefixes.NAMES, module_fields.prompts(folder.path, settings), _TOWERS)
    for name, prompt, tower in sides:
        if prompt and not config.data[name] and tower in towers:
            config.data[name] = wanted[f"data.{name}"] = prompt
    places = (0, 0) if modules.include_prompt else module_fields.behind_prefixes(config, vocabulary_of(folder))
    theirs_or_ours = zip(places, model.pool_from, _TOWERS, strict=True)
    places = tuple(place if tower in towers else ours for place, ours, tower in theirs_or_ours)
    wanted |= {} if places == tuple(model.pool_from) else {"model.pool_from": places}
    return [f"--config.{name}={quoted(str(value))}" for name, value in wanted.items()]


def quoted(text: str) -> str:
    """A value for a shell; that of a tuple of texts stays one that can be read."""
    return f'"{text}"' if "'" in text and not re.search(r'["$`\\!]', text) else shlex.quote(text)


def vocabulary_of(folder: EncoderFolder) -> Vocabulary:
    """The vocabulary that lies beside a model's weights, which has to be there."""
    if (path := vocabularies.find(folder.path)) is None:
        raise UserError(f"{folder.path}: no vocabulary beside the weights; put the model's vocab.txt there")
    vocabulary = vocabularies.load(path)
    _check_rows(folder, vocabulary, f"{folder.path}", path, "copy both again")
    return vocabulary


def log_spare_rows(folder: EncoderFolder, vocabulary: Vocabulary) -> None:
    """Logs how many of a folder's token embeddings are of no token. Published tables are padded to round numbers."""
    if (spare := folder.sizes["vocab_size"] - len(vocabulary)) > 0:
        _log.info("%s: %d token embeddings are of no token of its vocabulary, and stay unused", folder.path, spare)


def _check_rows(folder: EncoderFolder, vocabulary: Vocabulary, name: str, path: Path, remedy: str) -> None:
    """Every token has an embedding."""
    tokens, rows = len(vocabulary), folder.sizes["vocab_size"]
    if tokens > rows and model_folder.base_of(folder.place):
        remedy = "the adapter has no rows for its added tokens: save it with save_embedding_layers=True"
    if tokens > rows:
        raise UserError(f"{name}: a model of {rows} tokens, and {path} has {tokens}: {remedy}")


def _check_vocabulary(ours: Path | None, folder: EncoderFolder) -> None:
    theirs, name = vocabularies.find(folder.path), f"{FIELD}={folder.path}"
    remedy = f"set --config.vocab={folder.path if theirs else 'its vocabulary'}, in a --workdir of its own"
    if ours is None:
        raise UserError(f"{name}: it has a vocabulary of its own, and config.vocab is empty: {remedy}")
    vocabulary = vocabularies.load(ours)
    published = vocabularies.load(theirs) if theirs else vocabulary
    _check_rows(folder, published, name, theirs or ours, "copy both again" if theirs else remedy)
    if vocabulary.fingerprint != published.fingerprint:
        raise UserError(f"{name}: trained with another vocabulary than {ours}: {remedy}")


class PublishedWeights(Start):
    """The weights that `folders` gives."""

    def inputs(self, run: Run) -> Sequence[Path]:
        """The files of the folders: a run that has started notices when they change."""
        paths = []
        for of in dict.fromkeys(folders(run.config).values()):
            vocabulary = vocabularies.files(vocabularies.find(of.path))
            paths += [*of.files, *model_folder.module_files(of.path), *vocabulary]
        return paths

    def check(self, run: Run) -> None:
        """As `Start.check`."""
        check(run.config, run.vocabulary)

    def check_tensors(self, config: ConfigDict) -> None:
        """Reads the folders' weights: none is damaged, missing, left over or of another shape."""
        if bert_folders := folders(config):
            folder = next(iter(bert_folders.values()))
            path = vocabularies.find(folder.path)
            vocab_size = len(vocabularies.load(path)) if path else folder.sizes["vocab_size"]
            _load(recipe_of(config), bert_folders, parameters_of(abstract_model(config, vocab_size)))

    def init(self, model: nnx.Module, config: ConfigDict, vocab_size: int) -> None:
        """As `Start.init`; what the folders do not have stays as it is."""
        recipe, bert_folders = recipe_of(config), folders(config)
        replace_parameters(model, lambda params: _load(recipe, bert_folders, params))
        for folder in dict.fromkeys(bert_folders.values()):
            towers = [name for name in _TOWERS if hasattr(model, name) and bert_folders.get(name) is folder]
            without = ", without its head of a masked language model" if folder.has_head and recipe.has_towers else ""
            _log.info("%s: starts from %s%s", ", ".join(towers or ["encoder"]), folder.path, without)
            if path := vocabularies.find(folder.path):
                log_spare_rows(folder, vocabularies.load(path))


STARTS.register("published", PublishedWeights())

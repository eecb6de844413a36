"""A run that starts from BERT's weights: whether they fit, and where they go."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flax import nnx
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data import vocabularies
from retrieval.errors import UserError
from retrieval.models.hugging_face import BertFolder, is_bert
from retrieval.models.mlm import MaskedLanguageModel
from retrieval.models.two_tower import TwoTower
from retrieval.stages import model as models
from retrieval.stages.run import Run

_log = logging.getLogger(__name__)

_FIELD = "config.train.init_from"
_TOWERS = ("query_tower", "document_tower")

# What a folder may say about its tokeniser, and what ours does.
_TOKENIZER = {"do_lower_case": (True,), "strip_accents": (None, True), "tokenize_chinese_chars": (None, True)}


def folders(config: ConfigDict) -> dict[str, BertFolder]:
    """The folders of BERT's weights that `train.init_from` names, by tower; empty where it names none.

    Raises:
      UserError: one of them is none, or there are more towers than the model has.
    """
    value = config.train.init_from
    if "," not in value:
        return dict.fromkeys(_TOWERS, BertFolder.open(Path(value))) if value and is_bert(Path(value)) else {}
    names = value.split(",")
    if len(names) != 2 or not any(names):
        raise UserError(f"{_FIELD}={value}: one folder is needed, or QUERY,DOCUMENT, of which one may be empty")
    if models.is_mlm(config) or config.model.tied:
        why = "a masked language model is" if models.is_mlm(config) else "towers that share their parameters are"
        raise UserError(
            f"{_FIELD}={value}: two folders, but {why} one encoder; name one, or set config.model.tied=False"
        )
    for name in filter(None, names):
        if not is_bert(Path(name)):
            raise UserError(f"{_FIELD}={value}: {name} is no folder of BERT's weights (config.json beside the weights)")
    return {tower: BertFolder.open(Path(name)) for tower, name in zip(_TOWERS, names) if name}


def inputs(config: ConfigDict) -> list[Path]:
    """The files of the folders: a run that has started notices when they change."""
    found = dict.fromkeys(folders(config).values())
    vocabulary = [vocabularies.find(folder.path) for folder in found]
    return [*(path for folder in found for path in folder.files), *filter(None, vocabulary)]


def check(run: Run) -> None:
    """Checks that the model and the vocabulary of a run are those of the folders that it starts from.

    Raises:
      UserError: they are not; the message has the fields to set.
    """
    config = run.config
    for folder in dict.fromkeys(folders(config).values()):
        _check_sizes(config, folder)
        _check_vocabulary(run, folder)


def init(model: TwoTower | MaskedLanguageModel, config: ConfigDict) -> None:
    """Gives a model the parameters of the folders; what these do not have stays as it is."""
    found = folders(config)
    if isinstance(model, MaskedLanguageModel):
        _init_mlm(model, found["query_tower"])
    for name in _TOWERS:
        tower = getattr(model, name, None)
        if tower is not None and name in found:
            folder = found[name]
            _update(tower.encoder, folder.encoder(models.parameters(tower.encoder), _token_ids(folder)))
            _log.info("%s starts from %s", name, folder.path)


def _init_mlm(model: MaskedLanguageModel, folder: BertFolder) -> None:
    params = models.parameters(model)
    like = {name: value for name, value in params.items() if name != "encoder"}
    token_ids = _token_ids(folder)
    head = folder.mlm_head(like, token_ids)
    if head is None:
        _log.warning("%s has no head of a masked language model: that starts at random", folder.path)
    _update(model, {"encoder": folder.encoder(params["encoder"], token_ids), **(head or like)})
    _log.info("the masked language model starts from %s", folder.path)


def _update(module: nnx.Module, params: Mapping[str, Any]) -> None:
    state = nnx.state(module, nnx.Param)
    nnx.replace_by_pure_dict(state, params)
    nnx.update(module, state)


def _check_sizes(config: ConfigDict, folder: BertFolder) -> None:
    if config.model.encoder != "transformer":
        raise UserError(
            f"{_FIELD}={folder.path}: a BERT, and config.model.encoder is '{config.model.encoder}': set "
            "config.model.encoder=transformer"
        )
    names = [name for name in folder.sizes if name in config.model]
    wrong = [
        f"--config.model.{name}={folder.sizes[name]}" for name in names if config.model[name] != folder.sizes[name]
    ]
    longest = folder.sizes["max_length"]
    wrong += [
        f"--config.data.{name}={longest}" for name in ("query_length", "document_length") if config.data[name] > longest
    ]
    if wrong:
        raise UserError(f"{_FIELD}={folder.path}: a model of other sizes; set\n  " + " ".join(wrong))


def _check_vocabulary(run: Run, folder: BertFolder) -> None:
    theirs, ours = vocabularies.find(folder.path), vocabularies.find(run.corpus) or vocabularies.named(run.config.vocab)
    remedy = f"set --config.vocab={folder.path if theirs else 'its vocabulary'}, in a --workdir of its own"
    if ours is None:
        raise UserError(f"{_FIELD}={folder.path}: it has a vocabulary of its own, and config.vocab is empty: {remedy}")
    vocabulary = vocabularies.load(ours)
    _check_tokenizer(folder.path / "tokenizer_config.json")
    tokens = vocabularies.load(theirs).tokens if theirs else vocabulary.tokens
    if len(tokens) != folder.sizes["vocab_size"]:
        raise UserError(
            f"{_FIELD}={folder.path}: a model of {folder.sizes['vocab_size']} tokens, and {theirs or ours} has "
            f"{len(tokens)}: " + ("copy both again" if theirs else remedy)
        )
    if vocabulary.tokens != tokens:
        raise UserError(f"{_FIELD}={folder.path}: trained with another vocabulary than {ours}: {remedy}")


def _check_tokenizer(path: Path) -> None:
    """What the folder says about its tokeniser is what ours does."""
    config = files.read_json(path) if path.is_file() else {}
    for field, ours in _TOKENIZER.items():
        if isinstance(config, dict) and config.get(field, ours[0]) not in ours:
            raise UserError(f"{path}: {field} is {config[field]!r}; only {ours[-1]!r} is what our tokeniser does")


def _token_ids(folder: BertFolder) -> list[int] | None:
    """The folder's ids of our tokens; None where they are the same."""
    path = vocabularies.find(folder.path)
    return vocabularies.load(path).published_ids if path else None

"""Towers that the stage `export` has written, read back: folders as sentence-transformers has them."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.models import tensor_files
from retrieval.models.export_files import CONFIG, DOCUMENT, QUERY, TITLES
from retrieval.models.hugging_face import BertFolder
from retrieval.models.two_tower import POOLINGS
from retrieval.recipes import bert_weights
from retrieval.recipes.placement import parameters_of
from retrieval.recipes.towers import build_towers

_MODULES = "modules.json"
# The prompts of documents, in the order in which sentence-transformers looks for one.
_DOCUMENT_PROMPTS = (DOCUMENT, "passage", "corpus")
_LENGTHS = "sentence_bert_config.json"
_IDENTITY = "Identity"
_POOLING = "pooling_mode_"
_PATH = re.compile(r"(\d_\w+)?", re.ASCII)
_T = TypeVar("_T")


class ExportedTowers(NamedTuple):
    """Attributes:
    config: with the sizes and lengths of the towers.
    params: as `parameters_of` gives them.
    """

    config: ConfigDict
    vocabulary: Vocabulary
    params: dict[str, Any]


class Tower(NamedTuple):
    """One tower's folder.

    Attributes:
      modules: kind -> folder of what follows the encoder.
      model: the fields of `config.model` that it was made with.
    """

    bert: BertFolder
    modules: dict[str, Path]
    model: dict[str, Any]
    length: int
    query_length: int


def is_export(folder: Path) -> bool:
    """Whether a folder is one that sentence-transformers loads."""
    return (folder / _MODULES).is_file()


def read(folder: Path, config: ConfigDict) -> ExportedTowers:
    """The towers of an export.

    Args:
      config: all fields, of which those of the model and the lengths are replaced in a copy.

    Raises:
      UserError: a file is missing or damaged, or it is a model that ours cannot be.
    """
    config = config.copy_and_resolve_references()
    query, document = set_sizes(folder, config)
    vocabulary = bert_weights.vocabulary_of(document.bert)
    shapes = parameters_of(nnx.eval_shape(lambda: build_towers(config, len(vocabulary))))
    towers = {"query_tower": query, "document_tower": document}
    params = {name: _parameters(towers[name], shape) for name, shape in shapes.items()}
    return ExportedTowers(config, vocabulary, params)


def set_sizes(folder: Path, config: ConfigDict) -> tuple[Tower, Tower]:
    """Sets the fields of the model, the lengths, the prefixes and the titles to those of an export; its two towers.

    Raises:
      UserError: as `read`.
    """
    is_apart = (folder / QUERY / _MODULES).is_file()
    query, document = (_open(folder / name) for name in (QUERY, DOCUMENT)) if is_apart else [_open(folder)] * 2
    if query.model != document.model:
        raise UserError(f"{folder}: its towers are of different sizes, and ours have the same; export the run again")
    config.model.update(query.model, tied=not is_apart, encoder="transformer", remat="none", dtype="float32")
    lengths = (query.length if is_apart else query.query_length), document.length
    config.data.query_length, config.data.document_length = lengths
    config.data.query_prefix, config.data.document_prefix = _prompts(folder)
    config.data.titles = _titles(folder)
    config.model.positions = query.bert.sizes["max_length"]
    return query, document


def _titles(folder: Path) -> str:
    """How titles were read. Folders of others don't say: their models saw one text, with the title in it."""
    path = folder / CONFIG
    record = files.read_json(path) if path.is_file() else {}
    titles = record.get(TITLES, prefixes.JOINED) if isinstance(record, dict) else None
    if titles not in (prefixes.PAIR, prefixes.JOINED):
        raise UserError(f"{path}: {TITLES} is {titles!r}, and {prefixes.PAIR} or {prefixes.JOINED} is needed")
    return titles


def _prompts(folder: Path) -> list[str]:
    """What stands before queries and before documents."""
    path = folder / CONFIG
    record = files.read_json(path) if path.is_file() else {}
    prompts = record.get("prompts") or {} if isinstance(record, dict) else None
    names = (QUERY,), _DOCUMENT_PROMPTS
    texts = [next(filter(None, map(prompts.get, known)), "") for known in names] if isinstance(prompts, dict) else []
    if not texts or not all(map(prefixes.KIND.fits, texts)):
        raise UserError(f"{path}: one of its prompts is not {prefixes.KIND.needed}; mend it, or export it again")
    return texts


def _open(folder: Path) -> Tower:
    kinds = dict(_modules(folder))
    if unknown := kinds.keys() - {"Transformer", "Pooling", "Dense", "LayerNorm", "Normalize"}:
        raise UserError(f"{folder / _MODULES}: it has a module {min(unknown)}, which our towers do not have")
    if not {"Transformer", "Pooling"} <= kinds.keys():
        raise UserError(f"{folder / _MODULES}: no Transformer with a Pooling behind it, as our towers are")
    bert, pooling = BertFolder.open(folder), _pooling(kinds["Pooling"] / "config.json")
    sizes = {name: value for name, value in bert.sizes.items() if name not in ("vocab_size", "max_length")}
    model = {"pooling": pooling, "normalize": "Normalize" in kinds, "embed_norm": "LayerNorm" in kinds, "embed_dim": 0}
    if "Dense" in kinds:
        activation = _value(kinds["Dense"] / "config.json", "activation_function", str)
        if not activation.endswith(_IDENTITY):
            raise UserError(f"{kinds['Dense']}: a layer with {activation}, which our towers lack")
        model["embed_dim"] = _value(kinds["Dense"] / "config.json", "out_features", int)
    length = _length(folder, bert.sizes["max_length"])
    return Tower(bert, kinds, model | sizes, length, _value(folder / _LENGTHS, "query_length", int, length))


def _length(folder: Path, positions: int) -> int:
    """Tokens of a text. sentence-transformers 6 leaves them to the tokeniser, for which any number may do."""
    record = files.read_json(folder / _LENGTHS)
    if not isinstance(record, dict) or record.get("max_seq_length") is not None:
        return _value(folder / _LENGTHS, "max_seq_length", int)
    tokenizer = folder / "tokenizer_config.json"
    return min(positions, _value(tokenizer, "model_max_length", int, positions)) if tokenizer.is_file() else positions


def _pooling(path: Path) -> str:
    """Older folders have a switch for each way of pooling, newer ones the name of one."""
    record = files.read_json(path)
    record = record if isinstance(record, dict) else {}
    switched = [name for name, value in record.items() if name.startswith(_POOLING) and value is True]
    ways = [name.removeprefix(_POOLING).removesuffix("_tokens").removesuffix("_token") for name in switched]
    names = [str(record["pooling_mode"])] if "pooling_mode" in record else ways
    if len(names) != 1 or names[0] not in POOLINGS:
        raise UserError(
            f"{path}: it pools by {' and '.join(names) or 'nothing'}; one of {', '.join(POOLINGS)} is needed"
        )
    return names[0]


def _modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """Kinds and folders, none of which is outside of `folder`."""
    modules = files.read_json(folder / _MODULES)
    try:
        for module in modules:
            if not _PATH.fullmatch(module["path"]):
                raise ValueError(f"the path {module['path']!r}")
            yield module["type"].rpartition(".")[2], folder / module["path"]
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise UserError(f"{folder / _MODULES}: not the modules of an export ({error!r}); export it again") from error


def _value(path: Path, name: str, kind: type[_T], default: _T | None = None) -> _T:
    record = files.read_json(path)
    value = record.get(name, default) if isinstance(record, dict) else None
    if type(value) is not kind:
        raise UserError(f"{path}: {name} is {value!r}, where a value of type {kind.__name__} belongs; export it again")
    return value


def _parameters(tower: Tower, shapes: Mapping[str, Any]) -> dict[str, Any]:
    params = {"encoder": tower.bert.encoder(shapes["encoder"], bert_weights.published_ids(tower.bert))}
    for name, kind, prefix in (("projection", "Dense", "linear."), ("norm", "LayerNorm", "norm.")):
        if name in shapes:
            params[name] = _layer(tower.modules[kind], prefix, shapes[name])
    return params


def _layer(folder: Path, prefix: str, shapes: Mapping[str, Any]) -> dict[str, Any]:
    tensors = {name.removeprefix(prefix): tensor for name, tensor in tensor_files.read(folder).items()}
    theirs = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    layer = {name: tensors.get(theirs[name], np.zeros(0)).T for name in shapes}
    if any(layer[name].shape != shape.shape or not np.isfinite(layer[name]).all() for name, shape in shapes.items()):
        raise UserError(f"{folder}: its weights are not those of its config; export it again")
    return layer

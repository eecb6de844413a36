"""A model of sparse vectors as the folder that sentence-transformers' `SparseEncoder` loads.

    config.json, model.safetensors    the masked language model, as its family has it: `AutoModelForMaskedLM`
    modules.json                      that, and its pooling in 1_SpladePooling/

Where queries need no encoder, these two lie in folders `document_...` of a router, and the table of weights in
`query_0_SparseStaticEmbedding/`. Modules have the names of sentence-transformers 5, which 6 reads too.
"""

from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx

from retrieval import files
from retrieval.data.tokenizers import tokenizer_files
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.methods.splade.model import BY_IDF, Splade
from retrieval.models import encoder_folder, encoder_tensors, export_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.module_folder import SETTINGS
from retrieval.runtime import model_folder
from retrieval.runtime.model_folder import MODULES

_PACKAGE = "sentence_transformers.sparse_encoder.models"
_ENCODER, _POOLING, _TABLE = "MLMTransformer", "SpladePooling", "SparseStaticEmbedding"
_ROUTER = "sentence_transformers.models.Router"
_HEAD = ("dense", "norm", "bias")


def check(folder: Path) -> None:
    """Checks that a folder is of sparse vectors as ours are.

    Raises:
      UserError: it has other modules, sums in place of the highest, a second logarithm, or no head.
    """
    kinds = model_folder.modules(folder) if model_folder.has_modules(folder) else []
    if [module.kind for module in kinds] not in ([_ENCODER, _POOLING], ["Transformer", _POOLING]):
        found = ", ".join(module.kind for module in kinds) or "no modules.json"
        raise UserError(f"{folder}: not a folder of sparse vectors ({_ENCODER}, {_POOLING}): {found}")
    path = kinds[1].folder / "config.json"
    config = files.read_json(path)
    for key, ours in (("pooling_strategy", "max"), ("activation_function", "relu")):
        if config.get(key, ours) != ours:
            raise UserError(f"{path}: {key} is {config[key]!r}, and only {ours!r} is understood: take another model")
    if not EncoderFolder.open(folder).has_head:
        raise UserError(f"{folder}: its weights have no head of a masked language model: copy them again")


def settings(folder: Path) -> dict[str, Any]:
    """What the folder says about prompts."""
    path = folder / SETTINGS
    return {"prompts": files.read_json(path).get("prompts", {}) if path.is_file() else {}}


def write(folder: Path, model: Splade, data: Any, vocabulary: Vocabulary) -> None:
    """Writes a model with its tokenizer into a folder that is there.

    Args:
      data: the group `data` of the config that it was trained with.
    """
    if model.queries == BY_IDF:
        _write_routed(folder, model, data, vocabulary)
    else:
        _write_encoder(folder, model, vocabulary, max(data.query_length, data.document_length))
        _write_pooling(folder / f"1_{_POOLING}", model)
        kinds = [("", f"{_PACKAGE}.{_ENCODER}"), (f"1_{_POOLING}", f"{_PACKAGE}.{_POOLING}")]
        _write_modules(folder, kinds)
    prompts = {side: text for side in ("query", "document") if (text := data[f"{side}_prefix"])}
    settings = {"model_type": "SparseEncoder", "prompts": prompts, "default_prompt_name": None}
    files.write_json(folder / SETTINGS, settings | {"similarity_fn_name": "dot"})


def _write_routed(folder: Path, model: Splade, data: Any, vocabulary: Vocabulary) -> None:
    query, document, pooling = f"query_0_{_TABLE}", f"document_0_{_ENCODER}", f"document_1_{_POOLING}"
    for name in (query, document):
        (folder / name).mkdir()
    _write_encoder(folder / document, model, vocabulary, data.document_length)
    _write_pooling(folder / pooling, model)
    weights = np.maximum(np.asarray(model.idf[...], np.float32), 0)
    files.write_json(folder / query / "config.json", {"frozen": False})
    export_files.write_tensors(folder / query, {"weight": weights})
    tokenizer_files.write_tokenizer(folder / query, vocabulary, length=data.query_length, types=1)
    kinds = {query: _TABLE, document: _ENCODER, pooling: _POOLING}
    router = {
        "types": {name: f"{_PACKAGE}.{kind}" for name, kind in kinds.items()},
        "structure": {"query": [query], "document": [document, pooling]},
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    files.write_json(folder / export_files.ROUTER, router)
    _write_modules(folder, [("", _ROUTER)])


def _write_encoder(folder: Path, model: Splade, vocabulary: Vocabulary, length: int) -> None:
    sizes = model.encoder.config
    names = TensorNames.of(sizes.architecture)
    parameters = nnx.to_pure_dict(nnx.state(model, nnx.Param))
    prefix = FAMILIES[names.family].prefix
    encoder = encoder_tensors.to_tensors(parameters["encoder"], names)
    head = encoder_tensors.to_tensors({name: parameters[name] for name in _HEAD}, names)
    export_files.write_tensors(folder, {f"{prefix}{name}": x for name, x in encoder.items()} | head)
    config = encoder_folder.written_config(sizes)
    kind = config["architectures"][0].removesuffix("Model") + "ForMaskedLM"
    padding = vocabulary.pad_id if vocabulary.pad_id >= 0 else None
    files.write_json(
        folder / "config.json", config | {"architectures": [kind], "pad_token_id": padding, "tie_word_embeddings": True}
    )
    settings = {"max_seq_length": length, "do_lower_case": False}
    files.write_json(folder / "sentence_bert_config.json", settings)
    types = sizes.type_vocab_size if sizes.architecture.token_types else 0
    tokenizer_files.write_tokenizer(folder, vocabulary, length=length, types=types)


def _write_pooling(folder: Path, model: Splade) -> None:
    size = model.encoder.config.vocab_size
    folder.mkdir()
    config = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": size}
    files.write_json(folder / "config.json", config)


def _write_modules(folder: Path, kinds: list[tuple[str, str]]) -> None:
    modules = [{"idx": i, "name": str(i), "path": path, "type": kind} for i, (path, kind) in enumerate(kinds)]
    files.write_json(folder / MODULES, modules)

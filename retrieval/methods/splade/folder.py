"""A model of sparse vectors as the folder that sentence-transformers' `SparseEncoder` loads.

    config.json, model.safetensors    the masked language model, as its family has it: `AutoModelForMaskedLM`
    modules.json                      that, and its pooling in 1_SpladePooling/

Where queries need no encoder, these two lie in folders `document_...` of a router, and the table of weights in
`query_0_SparseStaticEmbedding/`. Modules have the names of sentence-transformers 5, which 6 reads too.
"""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from flax import nnx

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.model_folder import MODULES, Module
from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.splade.model import BY_IDF, Splade
from retrieval.models import encoder_folder, encoder_tensors, export_files, known_keys, module_folder, tensor_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoder_tensors import TensorNames
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.known_keys import ANY
from retrieval.models.module_folder import COSINE, SETTINGS
from retrieval.runs.weights import module_fields

_PACKAGE = "sentence_transformers.sparse_encoder.models"
_ENCODER, _POOLING, _TABLE = "MLMTransformer", "SpladePooling", "SparseStaticEmbedding"
_ROUTER = "sentence_transformers.models.Router"
HEAD = ("dense", "norm", "bias")
_MODEL, MOST_TERMS = "SparseEncoder", "max_active_dims"
_SETTINGS = {
    **{key: known for key, known in module_folder.SETTINGS_KEYS.items() if key != module_folder.TRUNCATED},
    "model_type": (_MODEL,),
    MOST_TERMS: ANY,
}
_TRANSFORMER = {**module_folder.TRANSFORMER_KEYS, "transformer_task": ("fill-mask",)}
_LOGITS = {"method": "forward", "method_output_name": "logits"}
_POOLING_KEYS = {
    "pooling_strategy": ("max",),
    "activation_function": ("relu",),
    **dict.fromkeys(("word_embedding_dimension", "embedding_dimension", "chunk_size"), ANY),
}
_TABLE_KEYS = {"frozen": (True, False)}


class SparseFolder(NamedTuple):
    """A folder that has been looked at.

    Attributes:
      encoder: the masked language model, whose weights are read when they are asked for.
      table: the folder of the weights of queries' tokens; None where the encoder encodes queries too.
      settings: what it says of the comparison of vectors and how many weights they keep.
      texts: the fields of a config that say what stands before texts, and what they are cut to.
      files: all that say what it does.
    """

    encoder: EncoderFolder
    table: Path | None
    settings: dict[str, Any]
    texts: dict[str, Any]
    files: list[Path]

    @classmethod
    def open(cls, folder: Path) -> "SparseFolder":
        """Looks at the modules of a folder and their settings.

        Sums in place of the highest, or a second logarithm, are refused.
        """
        table, modules = _modules(folder)
        kinds = [module.kind for module in modules]
        if kinds not in ([_ENCODER, _POOLING], ["Transformer", _POOLING]):
            kinds = ", ".join(kinds) or f"no {MODULES}"
            raise UserError(f"{folder}: not a folder of sparse vectors ({_ENCODER}, {_POOLING}): {kinds}")
        known_keys.read(path := modules[1].folder / "config.json", _POOLING_KEYS)
        settings = module_folder.settings(folder, _SETTINGS)
        known_keys.whole(folder / SETTINGS, settings, MOST_TERMS, default=1)
        encoder = EncoderFolder.open(modules[0].folder)
        if not encoder.has_head:
            raise UserError(f"{folder}: its weights have no head of a masked language model: copy them again")
        query, document = module_folder.lengths(encoder, _TRANSFORMER, _LOGITS)
        prompts = module_fields.prompts(folder, settings)
        texts: dict[str, Any] = {f"data.{name}": text for name, text in zip(prefixes.NAMES, prompts)}
        texts["data.query_length"] = _table_length(table, encoder) if table else query
        texts["data.document_length"] = document
        said = [folder / MODULES, folder / SETTINGS, folder / export_files.ROUTER, path, *encoder.files]
        said += [*(table.iterdir() if table else ()), *vocabularies.files(vocabularies.find(encoder.path))]
        return cls(encoder, table, settings, texts, [path for path in dict.fromkeys(said) if path.is_file()])

    def weights(self, size: int) -> np.ndarray:
        """The weights of queries' tokens, float32 [V]; a token that is never read has none."""
        assert self.table, "asked for where there is one"
        tensor = tensor_files.read(self.table).get("weight")
        if tensor is None or tensor.ndim != 1 or len(tensor) < size or not np.isfinite(tensor).all():
            raise UserError(f"{self.table}: no weight for each of the {size} tokens of the encoder; copy it again")
        return np.asarray(tensor[:size], np.float32)


def _table_length(table: Path, encoder: EncoderFolder) -> int:
    """The tokens that a query is cut to, with those that stand around it and weigh nothing."""
    known_keys.read(table / "config.json", _TABLE_KEYS, optional=True)
    ours, theirs = vocabularies.load(encoder.path), vocabularies.find(table)
    if theirs and vocabularies.load(theirs).fingerprint != ours.fingerprint:
        raise UserError(f"{table}: its tokenizer is not that of {encoder.path}: copy both again")
    most = encoder.sizes["max_length"]
    return min(most, known_keys.token_limit(table, most) + ours.template.size())


def _modules(folder: Path) -> tuple[Path | None, list[Module]]:
    """The folder of the weights of queries' tokens, if there is one, and the modules that encode documents."""
    modules = model_folder.modules(folder) if model_folder.has_modules(folder) else []
    if [module.kind for module in modules] != ["Router"]:
        return None, modules
    path = modules[0].folder / export_files.ROUTER
    record = files.read_json(path)
    try:
        query, document = (
            [Module(record["types"][name].rpartition(".")[2], path.parent / name) for name in record["structure"][side]]
            for side in ("query", "document")
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: no modules of queries and documents; copy it again") from error
    if query == document:
        return None, document
    if (kinds := [module.kind for module in query]) != [_TABLE]:
        raise UserError(f"{path}: queries go through {', '.join(kinds)}; {_TABLE}, or what documents do, is understood")
    return query[0].folder, document


def is_sparse(folder: Path) -> bool:
    """Whether a folder says that it has a model of sparse vectors."""
    path = folder / SETTINGS
    settings = files.read_json(path) if model_folder.has_modules(folder) and path.is_file() else {}
    return isinstance(settings, dict) and settings.get("model_type") == _MODEL


def write(folder: Path, model: Splade, data: Any, vocabulary: Vocabulary) -> None:
    """Writes a model with its tokenizer into a folder that is there.

    Args:
      data: the group `data` of the config that it was trained with.
    """
    by_idf, sizes = model.queries == BY_IDF, model.encoder.config
    places = (f"document_0_{_ENCODER}", f"document_1_{_POOLING}") if by_idf else ("", f"1_{_POOLING}")
    length = data.document_length if by_idf else max(data.query_length, data.document_length)
    encoder, pooling = (folder / place for place in places)
    for place in (encoder, pooling):
        place.mkdir(exist_ok=True)
    names, parameters = TensorNames.of(sizes.architecture), nnx.to_pure_dict(nnx.state(model, nnx.Param))
    tensors = encoder_tensors.to_tensors(parameters["encoder"], names)
    head = encoder_tensors.to_tensors({name: parameters[name] for name in HEAD}, names)
    prefix, config = FAMILIES[names.family].prefix, encoder_folder.written_config(sizes)
    export_files.write_tensors(encoder, {f"{prefix}{name}": x for name, x in tensors.items()} | head)
    config["architectures"] = [config["architectures"][0].removesuffix("Model") + "ForMaskedLM"]
    config |= {"pad_token_id": vocabulary.pad_id if vocabulary.pad_id >= 0 else None}
    files.write_json(encoder / "config.json", config | {"tie_word_embeddings": True})
    files.write_json(encoder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})
    vocabulary.export(encoder, length=length, types=sizes.type_vocab_size if sizes.architecture.token_types else 0)
    config = {"pooling_strategy": "max", "activation_function": "relu", "word_embedding_dimension": sizes.vocab_size}
    files.write_json(pooling / "config.json", config)
    modules = [(place, f"{_PACKAGE}.{kind}") for place, kind in zip(places, (_ENCODER, _POOLING))]
    if by_idf:
        (table := folder / f"query_0_{_TABLE}").mkdir()
        files.write_json(table / "config.json", {"frozen": False})
        export_files.write_tensors(table, {"weight": np.maximum(np.asarray(model.idf[...], np.float32), 0)})
        # The library reads queries without the tokens around them.
        vocabulary.export(table, length=max(1, data.query_length - vocabulary.template.size()), types=1)
        routes = {"query": [(table.name, f"{_PACKAGE}.{_TABLE}")], "document": modules}
        files.write_json(folder / export_files.ROUTER, export_files.routes(routes))
        modules = [("", _ROUTER)]
    export_files.write_modules(folder, modules)
    prompts = {side: text for side in ("query", "document") if (text := data[f"{side}_prefix"])}
    settings = {"model_type": _MODEL, "prompts": prompts, "default_prompt_name": None}
    settings |= {"similarity_fn_name": COSINE[0] if model.normalize else "dot", MOST_TERMS: model.terms or None}
    files.write_json(folder / SETTINGS, settings)

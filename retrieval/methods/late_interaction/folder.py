"""Reads ColBERT folders of PyLate, sentence-transformers and Stanford, and writes PyLate's.

PyLate's, which sentence-transformers 6 reads too:

    config.json, model.safetensors    the encoder, as its family has it
    modules.json                      it, and `1_Dense/`, ...: projections without a bias, which are read as one
    config_sentence_transformers.json    what stands before texts, their lengths, query expansion, what does not count
    tokenizer.json ...

sentence-transformers 6 writes its own `MultiVectorEncoder` in another way, which is read: what does not count is a
module, query expansion stands among the settings of the Transformer, and prefixes are prompts.

Stanford's (`HF_ColBERT`) are read, not written: one `model.safetensors` with the projection as `linear.weight`, and
`artifact.metadata` beside it.
"""

import logging
import re
import string
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.model_folder import DOCUMENT, MODULES, QUERY
from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.methods.late_interaction.model import LateInteraction
from retrieval.methods.late_interaction.token_masks import ATTENDED, NONE, PUNCTUATION, UNATTENDED, fill_id, words
from retrieval.models import export_files, known_keys, module_folder, tensor_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.known_keys import ANY, shown
from retrieval.models.module_folder import SETTINGS
from retrieval.models.tower_head import DENSE, Layer
from retrieval.runs.weights import module_fields
from retrieval.runs.weights import published_weights as bert_weights

_log = logging.getLogger(__name__)

NATIVE = "MultiVectorEncoder"
STANFORD, METADATA = "HF_ColBERT", "artifact.metadata"
_MODEL, _SCORE = "ColBERT", "MaxSim"
_IDENTITY = "torch.nn.modules.linear.Identity"
_CONFIG, _WEIGHT, _RESIDUAL, _DENSE = "config.json", "linear.weight", "residual.weight", "1_Dense"
_SWITCHES = (True, False)
_MOST = 2**31 - 1
# PyLate's settings: what is understood, and those that are there where a folder has none.
_SETTINGS = {
    **dict.fromkeys(["__version__", "default_prompt_name", "skiplist_words"], ANY),
    **dict.fromkeys([f"{side}_{what}" for side in (QUERY, DOCUMENT) for what in ("prefix", "length")], ANY),
    "model_type": (_MODEL, "SentenceTransformer"),  # some versions have it, others have none
    "similarity_fn_name": (_SCORE,),
    "prompts": ({}, {"query": "", "document": ""}),
    "add_special_tokens": (True,),
    "do_query_expansion": _SWITCHES,
    "attend_to_expansion_tokens": _SWITCHES,
}
_USUAL = {
    **{"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 180},
    **{"do_query_expansion": True, "attend_to_expansion_tokens": False, "skiplist_words": list(string.punctuation)},
}
# Modules that stand behind one another, on the vectors of tokens.
_OF_TOKENS = {f"module_{end}_name": ("token_embeddings",) for end in ("input", "output")}
_OF_DENSE = {
    **dict.fromkeys(["in_features", "out_features"], ANY),
    "bias": (False,),
    "activation_function": (_IDENTITY,),
    "use_residual": _SWITCHES,
    **_OF_TOKENS,
}
_OF_NATIVE = {
    **{key: known for key, known in module_folder.SETTINGS_KEYS.items() if key != module_folder.TRUNCATED},
    "model_type": (NATIVE,),
    "similarity_fn_name": ("maxsim",),
}
_OF_TRANSFORMER = {**module_folder.TRANSFORMER_KEYS, "query_expansion": ANY}
_OF_MASK = {"skiplist_words": ANY, "skiplist_tasks": (["document"], "document"), "keep_only_token_ids": ([],)}
_OF_EXPANSION = {"strategy": ("fixed", "min"), "attend": _SWITCHES, "token": ANY, "length": ANY}
# Of `artifact.metadata` what is read; the rest is of training.
_OF_STANFORD = {
    "query_prefix": ("query_token_id", "[unused0]"),
    "document_prefix": ("doc_token_id", "[unused1]"),
    "query_length": ("query_maxlen", 32),
    "document_length": ("doc_maxlen", 180),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", False),
}

# The folders of the projections, and the settings by PyLate's names.
_Read = tuple[tuple[Path, ...], dict[str, Any]]


class LateFolder(NamedTuple):
    """A folder that has been looked at.

    Attributes:
      encoder: its encoder, whose weights are read when they are asked for.
      projections: the folders of the layers that make vectors of hidden states, which together are one matrix.
      fields: those of a config on which vectors depend, by their dotted names, as the folder has them.
      files: all that say what it does.
    """

    encoder: EncoderFolder
    projections: tuple[Path, ...]
    fields: dict[str, Any]
    files: list[Path]

    @classmethod
    def open(cls, path: Path) -> "LateFolder":
        """Looks at all settings of a folder of PyLate's, sentence-transformers' or Stanford's.

        Raises:
          UserError: it is none, a file is missing or damaged, or a setting is not understood.
        """
        encoder = EncoderFolder.open(path)
        if not (read := _reader(path)):
            needed = f"PyLate's (similarity_fn_name {_SCORE}) or Stanford's (architectures [{STANFORD}]) is needed"
            raise UserError(f"{path}: an encoder without vectors of tokens; a folder of {needed}")
        vocabulary = bert_weights.vocabulary_of(encoder)
        projections, settings = read(path, encoder, vocabulary)
        place = path / (METADATA if read is _stanford else SETTINGS)
        filled = ATTENDED if settings["attend_to_expansion_tokens"] else UNATTENDED
        fields = {f"model.{name}": x for name, x in module_fields.encoder_fields(encoder).items()} | {
            "model.embed_dim": len(_projection(projections, encoder, values=False)),
            "model.late.expansion": filled if settings["do_query_expansion"] else NONE,
            "model.late.skip": _skipped(place, settings["skiplist_words"], vocabulary),
            "data.titles": prefixes.JOINED,
        }
        for side in (QUERY, DOCUMENT):
            prefix = settings[f"{side}_prefix"]
            if not isinstance(prefix, str) or not (read is _native or _is_one_token(prefix, vocabulary)):
                why = "is no token of its vocabulary, or stands behind the first token of a text"
                raise UserError(f"{place}: the prefix {prefix!r} {why}; take another model")
            length = known_keys.whole(place, settings, f"{side}_length", _MOST, least=5)
            fields |= {f"data.{side}_length": min(length, encoder.sizes["max_length"]), f"data.{side}_prefix": prefix}
        said = [*encoder.files, *model_folder.module_files(path), path / METADATA]
        said += vocabularies.files(vocabularies.find(path))
        return cls(encoder, projections, fields, [each for each in said if each.is_file()])

    def kernel(self) -> np.ndarray:
        """The projection's, float32 [H, E]."""
        return np.ascontiguousarray(_projection(self.projections, self.encoder).T.astype(np.float32))


def is_late(folder: Path) -> bool:
    """Whether a folder says that it has a model of late interaction."""
    return _reader(folder) is not None


def _reader(folder: Path) -> Callable[[Path, EncoderFolder, Vocabulary], _Read] | None:
    """What reads the settings of a folder; None where it says nothing of vectors of tokens."""
    has_modules = model_folder.has_modules(folder)
    path = folder / (SETTINGS if has_modules else "config.json")
    record = files.read_json(path) if path.is_file() else {}
    if not isinstance(record, dict):
        return None
    if not has_modules:
        return _stanford if STANFORD in (record.get("architectures") or ()) else None
    is_pylate = record.get("similarity_fn_name") == _SCORE
    return _native if record.get("model_type") == NATIVE else _pylate if is_pylate else None


def _native(path: Path, encoder: EncoderFolder, vocabulary: Vocabulary) -> _Read:
    """Of a folder that sentence-transformers 6 saved as its own."""
    settings = module_folder.settings(path, _OF_NATIVE)
    folders = _modules(path, "Transformer (Dense )*(MultiVectorMask )?Normalize")
    mask = known_keys.read(folders["MultiVectorMask"][0] / _CONFIG, _OF_MASK) if "MultiVectorMask" in folders else {}
    known_keys.read(folders["Normalize"][0] / _CONFIG, _OF_TOKENS, optional=True)
    query_length, document_length = module_folder.lengths(encoder, _OF_TRANSFORMER)
    place = encoder.place / "sentence_bert_config.json"
    expansion = (files.read_json(place) if place.is_file() else {}).get("query_expansion")
    if expansion is not None:
        query_length = _expanded(place, expansion, query_length, vocabulary)
    query, document = module_fields.prompts(path, settings)
    return folders.get("Dense", ()), {
        "query_prefix": query,
        "document_prefix": document,
        "query_length": query_length,
        "document_length": document_length,
        "do_query_expansion": expansion is not None,
        "attend_to_expansion_tokens": bool(expansion and expansion.get("attend")),
        "skiplist_words": mask.get("skiplist_words", []),
    }


def _expanded(path: Path, expansion: Any, longest: int, vocabulary: Vocabulary) -> int:
    """The length that queries are filled up to, which has to be that of the longest, with what they are filled here."""
    known_keys.check(path, expansion if isinstance(expansion, dict) else {"query_expansion": expansion}, _OF_EXPANSION)
    length = known_keys.whole(path, expansion, "length", _MOST, least=5)
    fill, token = fill_id(vocabulary), expansion.get("token")
    is_fill = token is None or token in vocabulary.tokens[max(fill, 0) :][:1]
    if not is_fill or (expansion.get("strategy") != "fixed" and length != longest):
        ours = "[MASK], or the token that ends a text, up to one length of all queries"
        raise UserError(f"{path}: query_expansion is {shown(expansion)}; only {ours} is understood here")
    return length


def _pylate(path: Path, *_: Any) -> _Read:
    settings = _USUAL | known_keys.read(path / SETTINGS, _SETTINGS)
    return _modules(path, "Transformer( Dense)+")["Dense"], settings


def _stanford(path: Path, *_: Any) -> _Read:
    record = files.read_json(path / METADATA) if (path / METADATA).is_file() else {}
    settings = {ours: record.get(theirs, usual) for ours, (theirs, usual) in _OF_STANFORD.items()}
    skip = list(string.punctuation) if record.get("mask_punctuation", True) else []
    return (path,), settings | {"do_query_expansion": True, "skiplist_words": skip}


def _modules(path: Path, order: str) -> dict[str, tuple[Path, ...]]:
    """The folders of each kind of module, which are in an order, a pattern; the settings of a Dense are understood."""
    modules = model_folder.modules(path)
    kinds = " ".join(module.kind for module in modules)
    if not re.fullmatch(order, kinds):
        raise UserError(f"{path / MODULES}: its modules are {kinds[:80]}; only '{order}' is understood here")
    folders = {kind: tuple(each.folder for each in modules if each.kind == kind) for kind in kinds.split()}
    for folder in folders.get("Dense", ()):
        known_keys.read(folder / _CONFIG, _OF_DENSE)
    return folders


def _skipped(path: Path, skip: Any, vocabulary: Vocabulary) -> tuple[str, ...]:
    """The tokens of a skip list; as in PyLate, a word that is none of the vocabulary stands for the unknown token."""
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f"{path}: skiplist_words is {shown(skip)}, and a list of words is needed")
    tokens = set(vocabulary.tokens)
    known = [word for word in skip if word in tokens]
    unknown = [vocabulary.tokens[vocabulary.unk_id]] if len(known) < len(skip) and vocabulary.unk_id >= 0 else []
    if unknown:
        _log.info("%s: %d words of its skip list are no tokens: %s is skipped", path, len(skip) - len(known), *unknown)
    is_punctuation = known and set(known) == tokens & set(string.punctuation)
    return (*((PUNCTUATION,) if is_punctuation else known), *unknown)


def _is_one_token(prefix: str, vocabulary: Vocabulary) -> bool:
    """Whether a prefix, where there is one, is a token that can stand behind the first one of a text: PyLate's are."""
    return not prefix or (prefix in vocabulary.tokens and len(vocabulary.template.before) == 1)


def _projection(folders: Sequence[Path], encoder: EncoderFolder, values: bool = True) -> np.ndarray:
    """The matrix [E, H] of all projections, float64; where no values are needed, of their shapes alone."""
    whole_EH = np.eye(encoder.sizes["hidden_size"])
    for folder in folders:
        tensors, size = tensor_files.read(folder, values), len(whole_EH)
        weight = np.asarray(tensors.get(_WEIGHT, 0), np.float64)
        has_residual = files.read_json(folder / _CONFIG).get("use_residual")
        residual = tensors.get(_RESIDUAL, np.eye(size)) if has_residual else np.zeros(weight.shape)
        if weight.ndim != 2 or weight.shape[1] != size or residual.shape != weight.shape:
            more = f", or no {_RESIDUAL} of its shape" if has_residual else ""
            raise UserError(f"{folder}: no projection {_WEIGHT} [dimensions, {size}]{more} among its weights")
        if not np.isfinite(weight + residual).all():
            raise UserError(f"{folder}: its weights have values that are not finite; copy it again")
        whole_EH = (weight + residual) @ whole_EH
    return whole_EH


def write(folder: Path, model: LateInteraction, fields: Any, vocabulary: Vocabulary) -> None:
    """Writes a model with its tokenizer, as PyLate has it, into a folder that is there.

    `fields` is the config that it was trained with. PyLate needs prefixes of one token.
    """
    data, late = fields.data, fields.model.late
    for side in ("query", "document"):
        if not _is_one_token(prefix := data[f"{side}_prefix"], vocabulary):
            why = "is no token of the vocabulary, and PyLate puts one behind [CLS]: train with one, or with ''"
            raise UserError(f"stage 'export': config.data.{side}_prefix={prefix!r} {why}")
    sizes = model.encoder.config
    export_files.write_encoder(folder, model.encoder, vocabulary.pad_id)
    (folder / _DENSE).mkdir()
    layer = Layer(DENSE, model.projection.out_features, bias=False)
    export_files.write_layer(folder / _DENSE, layer, model.projection, use_residual=False)
    kinds = [("", "sentence_transformers.models.Transformer"), (_DENSE, "pylate.models.Dense.Dense")]
    export_files.write_modules(folder, kinds)
    longest = max(data.query_length, data.document_length)
    files.write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    settings = {"model_type": _MODEL, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": _SCORE}
    settings |= {name: data[name] for name in ("query_prefix", "document_prefix", "query_length", "document_length")}
    settings |= {"do_query_expansion": late.expansion != NONE, "attend_to_expansion_tokens": late.expansion == ATTENDED}
    skip = [word for word in words(late.skip) if word in set(vocabulary.tokens)]
    files.write_json(folder / SETTINGS, settings | {"skiplist_words": skip})
    vocabulary.export(folder, length=longest, types=sizes.type_vocab_size if sizes.architecture.token_types else 0)
    # Sentence-transformers puts prefixes before a text: the tokenizer has to look for them there.
    tokenizer = Tokenizer.from_file(str(path := folder / "tokenizer.json"))
    tokens = sorted({data.query_prefix, data.document_prefix} - {""})
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
    files.write_text(path, tokenizer.to_str(pretty=True) + "\n")

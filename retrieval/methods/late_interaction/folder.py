"""Models of late interaction as folders of others, in and out.

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
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Tokenizer

from retrieval import files
from retrieval.data.tokenizers import prefixes, vocabularies
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.methods.late_interaction.model import LateInteraction
from retrieval.methods.late_interaction.token_marks import NONE, PUNCTUATION, SEEN, UNSEEN, words
from retrieval.models import export_files, known_keys, module_folder, tensor_files
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.known_keys import ANY, shown
from retrieval.models.module_folder import SETTINGS
from retrieval.recipes import bert_weights, module_fields
from retrieval.runtime import model_folder
from retrieval.runtime.model_folder import MODULES

_log = logging.getLogger(__name__)

NATIVE = "MultiVectorEncoder"
STANFORD, METADATA = "HF_ColBERT", "artifact.metadata"
_MODEL, _SCORE = "ColBERT", "MaxSim"
_IDENTITY = "torch.nn.modules.linear.Identity"
_WEIGHT, _RESIDUAL, _DENSE = "linear.weight", "residual.weight", "1_Dense"
_SWITCHES = (True, False)
_MOST = 2**31 - 1
_SETTINGS = {
    "__version__": ANY,
    "model_type": (_MODEL, "SentenceTransformer"),  # some versions have it, others have none
    "similarity_fn_name": (_SCORE,),
    "default_prompt_name": ANY,
    "prompts": ({}, {"query": "", "document": ""}),
    "query_prefix": ANY,
    "document_prefix": ANY,
    "query_length": ANY,
    "document_length": ANY,
    "add_special_tokens": (True,),
    "do_query_expansion": _SWITCHES,
    "attend_to_expansion_tokens": _SWITCHES,
    "skiplist_words": ANY,
}
# Modules that stand behind one another, on the vectors of tokens.
_OF_TOKENS = {f"module_{end}_name": ("token_embeddings",) for end in ("input", "output")}
_OF_DENSE = {
    "in_features": ANY,
    "out_features": ANY,
    "bias": (False,),
    "activation_function": (_IDENTITY,),
    "use_residual": _SWITCHES,
    **_OF_TOKENS,
}
_OF_NATIVE = {
    **{key: known for key, known in module_folder.SETTINGS_KEYS.items() if key != module_folder.TRUNCATED},
    "model_type": (NATIVE,),
    "similarity_fn_name": ("maxsim", "meanmaxsim"),
}
_OF_TRANSFORMER = {**module_folder.TRANSFORMER_KEYS, "query_expansion": ANY}
_OF_MASK = {"skiplist_words": ANY, "skiplist_tasks": (["document"], "document"), "keep_only_token_ids": ([],)}
# Of `artifact.metadata` what is read; the rest is of training.
_OF_STANFORD = {
    "query_prefix": ("query_token_id", "[unused0]"),
    "document_prefix": ("doc_token_id", "[unused1]"),
    "query_length": ("query_maxlen", 32),
    "document_length": ("doc_maxlen", 180),
    "attend_to_expansion_tokens": ("attend_to_mask_tokens", False),
}


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
        """Looks at all settings of a folder of PyLate's or Stanford's.

        Raises:
          UserError: it is none, a file is missing or damaged, or a setting is not understood.
        """
        encoder = EncoderFolder.open(path)
        vocabulary, is_native = bert_weights.vocabulary_of(encoder), _settings(path).get("model_type") == NATIVE
        if is_native:
            projections, settings = _native(path, encoder, vocabulary)
        elif model_folder.has_modules(path):
            projections, settings = _pylate(path)
        else:
            projections, settings = (path,), _stanford(path)
        expands, attends = settings["do_query_expansion"], settings["attend_to_expansion_tokens"]
        size = encoder.sizes["hidden_size"]
        for place in projections:
            size = _size(place, size)
        model = module_fields.encoder_fields(encoder) | {
            "embed_dim": size,
            "late.expansion": (SEEN if attends else UNSEEN) if expands else NONE,
            "late.skip": _skipped(path, settings["skiplist_words"], vocabulary),
            "late.mean": settings.get("mean", False),
        }
        data: dict[str, Any] = {"titles": prefixes.JOINED}
        for side in ("query", "document"):
            length, prefix = settings[f"{side}_length"], settings[f"{side}_prefix"]
            data |= {f"{side}_length": min(length, encoder.sizes["max_length"]), f"{side}_prefix": prefix}
            if not is_native:
                _check_prefix(path, prefix, vocabulary)
        named = {"model": model, "data": data}
        fields = {f"{of}.{name}": x for of, part in named.items() for name, x in part.items()}
        metadata = [path for path in [path / METADATA] if path.is_file()]
        tokenizer = vocabularies.files(vocabularies.find(path))
        said = [*encoder.files, *model_folder.module_files(path), *metadata, *tokenizer]
        return cls(encoder, projections, fields, said)

    def kernel(self) -> np.ndarray:
        """The projection's, float32 [H, E].

        Raises:
          UserError: it cannot be read, or has values that are not finite.
        """
        whole_EH = np.eye(self.encoder.sizes["hidden_size"])
        for place in self.projections:
            tensors = tensor_files.read(place)
            weight_EH = np.asarray(tensors[_WEIGHT], np.float64)
            if _has_residual(place):
                weight_EH = weight_EH + tensors.get(_RESIDUAL, np.eye(len(weight_EH)))
            if not np.isfinite(weight_EH).all():
                raise UserError(f"{place}: its weights have values that are not finite; copy it again")
            whole_EH = weight_EH @ whole_EH
        return np.ascontiguousarray(whole_EH.T.astype(np.float32))


def is_late(folder: Path) -> bool:
    """Whether a folder says that it has a model of late interaction."""
    if model_folder.has_modules(folder):
        settings = _settings(folder)
        return settings.get("similarity_fn_name") == _SCORE or settings.get("model_type") == NATIVE
    config = files.read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    return isinstance(config, dict) and STANFORD in (config.get("architectures") or ())


def _settings(folder: Path) -> dict[str, Any]:
    settings = files.read_json(folder / SETTINGS) if (folder / SETTINGS).is_file() else {}
    return settings if isinstance(settings, dict) else {}


def _native(path: Path, encoder: EncoderFolder, vocabulary: Vocabulary) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """As `_pylate`, of a folder that sentence-transformers 6 saved as its own."""
    settings = module_folder.settings(path, _OF_NATIVE)
    modules = model_folder.modules(path)
    kinds = [module.kind for module in modules]
    if not re.fullmatch("Transformer (Dense )*(MultiVectorMask )?Normalize", " ".join(kinds)):
        raise UserError(
            f"{path / MODULES}: its modules are {', '.join(kinds)[:80]}; a Transformer, Dense, a MultiVectorMask and a "
            "Normalize are understood, in this order"
        )
    folders = {module.kind: module.folder for module in modules}
    mask = {}
    if place := folders.get("MultiVectorMask"):
        mask = known_keys.read(place / "config.json", _OF_MASK)
    known_keys.read(folders["Normalize"] / "config.json", _OF_TOKENS, optional=True)
    projections = tuple(module.folder for module in modules if module.kind == "Dense")
    for place in projections:
        known_keys.read(place / "config.json", _OF_DENSE)
    query_length, document_length = module_folder.lengths(encoder, _OF_TRANSFORMER)
    place = encoder.place / "sentence_bert_config.json"
    record = files.read_json(place) if place.is_file() else {}
    expansion = record.get("query_expansion")
    if expansion is not None:
        query_length = _expanded(place, expansion, query_length, vocabulary)
    query, document = module_fields.prompts(path, settings)
    return projections, _checked(
        path / SETTINGS,
        {
            "query_prefix": query,
            "document_prefix": document,
            "query_length": query_length,
            "document_length": document_length,
            "do_query_expansion": expansion is not None,
            "attend_to_expansion_tokens": bool(expansion and expansion.get("attend")),
            "skiplist_words": mask.get("skiplist_words", []),
            "mean": settings.get("similarity_fn_name") == "meanmaxsim",
        },
    )


def _expanded(path: Path, expansion: Any, longest: int, vocabulary: Vocabulary) -> int:
    """The length that queries are filled up to.

    Raises:
      UserError: they may be longer, or it is done in another way than here.
    """
    known = {"strategy": ("fixed", "min"), "attend": _SWITCHES, "token": ANY, "length": ANY}
    known_keys.check(path, expansion if isinstance(expansion, dict) else {"query_expansion": expansion}, known)
    length = known_keys.whole(path, expansion, "length", _MOST, least=5)
    fill = next((id for id in (vocabulary.mask_id, vocabulary.eos_id) if id >= 0), -1)
    token = expansion.get("token")
    if (token is not None and token not in vocabulary.tokens[max(fill, 0) :][:1]) or (
        expansion.get("strategy") != "fixed" and length != longest
    ):
        raise UserError(
            f"{path}: query_expansion is {shown(expansion)}; only [MASK], or the token that ends a text, up to one "
            "length of all queries is understood here"
        )
    return length


def _pylate(path: Path) -> tuple[tuple[Path, ...], dict[str, Any]]:
    """The folders of the projections, and the settings, with those that PyLate has where there are none."""
    if not is_late(path):
        raise UserError(
            f"{path / SETTINGS}: similarity_fn_name is not {_SCORE}, so it has no vectors of tokens; take a folder of "
            "PyLate's"
        )
    modules = model_folder.modules(path)
    if [module.kind for module in modules] != ["Transformer", *["Dense"] * max(1, len(modules) - 1)]:
        raise UserError(
            f"{path / MODULES}: its modules are {', '.join(module.kind for module in modules)[:80]}; a Transformer and "
            "some Dense are needed"
        )
    for module in modules[1:]:
        known_keys.read(module.folder / "config.json", _OF_DENSE)
    usual = {"query_prefix": "[Q] ", "document_prefix": "[D] ", "query_length": 32, "document_length": 180}
    usual |= {"do_query_expansion": True, "attend_to_expansion_tokens": False}
    usual |= {"skiplist_words": list(string.punctuation)}
    settings = usual | known_keys.read(path / SETTINGS, _SETTINGS)
    return tuple(module.folder for module in modules[1:]), _checked(path / SETTINGS, settings)


def _stanford(path: Path) -> dict[str, Any]:
    if not is_late(path):
        raise UserError(
            f"{path}: an encoder without vectors of tokens; a folder of PyLate's, or one of Stanford's (architectures "
            f"[{STANFORD}]), is needed"
        )
    record = files.read_json(path / METADATA) if (path / METADATA).is_file() else {}
    settings = {ours: record.get(theirs, usual) for ours, (theirs, usual) in _OF_STANFORD.items()}
    skip = list(string.punctuation) if record.get("mask_punctuation", True) else []
    return _checked(path / METADATA, settings | {"do_query_expansion": True, "skiplist_words": skip})


def _checked(path: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings, whose values are of the types that they should be."""
    for side in ("query", "document"):
        known_keys.whole(path, settings, f"{side}_length", _MOST, least=5)
        if not isinstance(settings[f"{side}_prefix"], str):
            raise UserError(f"{path}: {side}_prefix is {shown(settings[f'{side}_prefix'])}, and a text is needed")
    skip = settings["skiplist_words"]
    if not isinstance(skip, list) or not all(isinstance(word, str) for word in skip):
        raise UserError(f"{path}: skiplist_words is {shown(skip)}, and a list of words is needed")
    return settings


def _skipped(path: Path, skip: list[str], vocabulary: Vocabulary) -> tuple[str, ...]:
    """The tokens of a skip list; as in PyLate, a word that is none of the vocabulary stands for the unknown token."""
    tokens = set(vocabulary.tokens)
    known = [word for word in skip if word in tokens]
    unknown = [vocabulary.tokens[vocabulary.unk_id]] if len(known) < len(skip) and vocabulary.unk_id >= 0 else []
    if unknown:
        _log.info("%s: %d words of its skip list are no tokens: %s is skipped", path, len(skip) - len(known), *unknown)
    is_punctuation = known and set(known) == tokens & set(string.punctuation)
    return (*((PUNCTUATION,) if is_punctuation else known), *unknown)


def _check_prefix(path: Path, prefix: str, vocabulary: Vocabulary) -> None:
    """Checks that a prefix is one token behind the first one: so PyLate has it."""
    if not _is_one_token(prefix, vocabulary):
        raise UserError(
            f"{path}: the prefix {prefix!r} is no token of its vocabulary, or stands behind the first token of a text; "
            "take another model, or one that was saved with its tokenizer"
        )


def _is_one_token(prefix: str, vocabulary: Vocabulary) -> bool:
    """Whether a prefix, where there is one, is a token that can stand behind the first one of a text."""
    return not prefix or (prefix in vocabulary.tokens and len(vocabulary.template.before) == 1)


def _size(folder: Path, size: int) -> int:
    """The dimensions that a projection makes of so many."""
    tensors = tensor_files.read(folder, values=False)
    shape = tensors[_WEIGHT].shape if _WEIGHT in tensors else ()
    if len(shape) != 2 or shape[1] != size:
        raise UserError(f"{folder}: no projection {_WEIGHT} [dimensions, {size}] among its weights; copy it again")
    beside = tensors[_RESIDUAL].shape if _RESIDUAL in tensors else (size, size)
    if _has_residual(folder) and beside != shape:
        raise UserError(
            f"{folder}: no {_RESIDUAL} {list(shape)} among its weights, as it has a residual; copy it again"
        )
    return shape[0]


def _has_residual(folder: Path) -> bool:
    return bool(files.read_json(folder / "config.json").get("use_residual"))


def write(folder: Path, model: LateInteraction, fields: Any, vocabulary: Vocabulary) -> None:
    """Writes a model with its tokenizer, as PyLate has it, into a folder that is there.

    Args:
      fields: the config that it was trained with.

    Raises:
      UserError: a prefix is no single token, which PyLate needs.
    """
    data, late = fields.data, fields.model.late
    for side in ("query", "document"):
        if not _is_one_token(prefix := data[f"{side}_prefix"], vocabulary):
            raise UserError(
                f"stage 'export': config.data.{side}_prefix={prefix!r} is no token of the vocabulary, and PyLate puts "
                "one token behind [CLS]: train with one, such as [unused0], or with ''"
            )
    sizes = model.encoder.config
    export_files.write_encoder(folder, model.encoder, vocabulary.pad_id)
    (folder / _DENSE).mkdir()
    kernel = np.asarray(model.projection.kernel[...], np.float32)
    dense = {"in_features": kernel.shape[0], "out_features": kernel.shape[1], "bias": False}
    files.write_json(folder / _DENSE / "config.json", dense | {"activation_function": _IDENTITY, "use_residual": False})
    export_files.write_tensors(folder / _DENSE, {_WEIGHT: np.ascontiguousarray(kernel.T)})
    kinds = [("", "sentence_transformers.models.Transformer"), (_DENSE, "pylate.models.Dense.Dense")]
    export_files.write_modules(folder, kinds)
    longest = max(data.query_length, data.document_length)
    files.write_json(folder / "sentence_bert_config.json", {"max_seq_length": longest, "do_lower_case": False})
    settings = {name: data[name] for name in ("query_prefix", "document_prefix", "query_length", "document_length")}
    files.write_json(
        folder / SETTINGS,
        {"model_type": _MODEL, "prompts": {}, "default_prompt_name": None, "similarity_fn_name": _SCORE}
        | settings
        | {"do_query_expansion": late.expansion != NONE, "attend_to_expansion_tokens": late.expansion == SEEN}
        | {"skiplist_words": [word for word in words(late.skip) if word in set(vocabulary.tokens)]},
    )
    types = sizes.type_vocab_size if sizes.architecture.token_types else 0
    vocabulary.export(folder, length=longest, types=types)
    _add_tokens(folder / "tokenizer.json", {data.query_prefix, data.document_prefix} - {""})


def _add_tokens(path: Path, tokens: set[str]) -> None:
    """Has a tokenizer look for tokens of its vocabulary in a text: sentence-transformers puts prefixes before it."""
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in sorted(tokens)])
    files.write_text(path, tokenizer.to_str(pretty=True) + "\n")

"""Towers as sentence-transformers has them, and as the stage `export` writes them: as fields of a config."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime import model_folder
from retrieval.common.runtime.model_folder import DOCUMENT, MODULES, QUERY
from retrieval.config import fields
from retrieval.data.tokenizers import prefixes
from retrieval.data.tokenizers import prompts as named
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models import architecture, two_tower
from retrieval.models.architecture import Architecture
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.models.encoders.family import FAMILIES
from retrieval.models.export_files import ROUTER, router
from retrieval.models.module_folder import DOT, SETTINGS, TITLES, TRUNCATED, ModuleFolder
from retrieval.models.tower_head import DENSE, LAYER_NORM, Layer

_log = logging.getLogger(__name__)


def open_towers(folder: Path) -> tuple[ModuleFolder, ModuleFolder]:
    """The towers of queries and of documents, which may be one."""
    if not model_folder.has_two_towers(folder):
        tower = ModuleFolder.open(folder)
        return tower, tower
    model_folder.check_sums(folder)
    if [kind for kind, _ in model_folder.modules(folder)] != ["Router"]:
        raise UserError(f"{folder / MODULES}: not the one Router above two towers; export the run again")
    query, document = (ModuleFolder.open(folder / name) for name in (QUERY, DOCUMENT))
    if files.read_json(folder / ROUTER) != router(folder):
        raise UserError(f"{folder / ROUTER}: not the router of the towers beside it; export the run again")
    return query, document


def fields_of(tower: ModuleFolder, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `config.model` that say what a folder does, but for the positions and what is pooled of prompts.

    Args:
      settings: as `module_folder.settings` gives them: embeddings that are compared by cosines have length 1 here.
    """
    sizes = encoder_fields(tower.bert)
    is_cosine = settings.get("similarity_fn_name") not in DOT
    dense = [layer.size for layer in tower.layers if layer.kind == DENSE]
    usual = {"embed_dim": (dense or [0])[0], "embed_norm": Layer(LAYER_NORM) in tower.layers, "head": ()}
    if tuple(two_tower.head_of(**usual)) == tower.layers:
        head = usual
    else:
        head = {"embed_dim": 0, "embed_norm": False, "head": tuple(map(str, tower.layers))}
    full, kept = (dense or [tower.bert.sizes["hidden_size"]])[-1], settings.get(TRUNCATED, 0)
    truncated = {"truncate_dim": kept if kept < full else 0}
    return sizes | head | truncated | {"pooling": tower.pooling, "normalize": tower.normalize or is_cosine}


def behind_prefixes(config: ConfigDict, vocabulary: Vocabulary) -> tuple[int, int]:
    """The `model.pool_from` that leaves out [CLS] and the prefix of queries, and of documents, where there is one.

    As sentence-transformers counts, a prefix has the tokens that it has alone.
    """
    before = len(vocabulary.template.before)
    texts = [config.data[name] for name in prefixes.NAMES]
    query, document = (before + len(vocabulary.encode(text)) if text else 0 for text in texts)
    return query, document


def encoder_fields(folder: EncoderFolder) -> dict[str, Any]:
    """The fields of `config.model` that say what an encoder is, but for its positions."""
    own: Architecture = folder.sizes["architecture"]
    others = {"architecture", "vocab_size", "max_length", *([] if own.token_types else ["type_vocab_size"])}
    sizes = {name: size for name, size in folder.sizes.items() if name not in others}
    switches = architecture.switches(own, FAMILIES[own.family].architecture)
    return sizes | {"encoder": "transformer", "family": own.family, "switches": switches}


def prompts(folder: Path, settings: Mapping[str, Any], names: Sequence[str] = ("", "")) -> list[str]:
    """What stands before queries and before documents.

    As in sentence-transformers 5 and later, documents have no prompt where none is called 'document'. 'passage' and
    'corpus' are not tried: it adds an empty 'document' to a folder without one.

    Args:
      names: those of the prompts; '' for the usual one.

    Raises:
      UserError: there is none of a name, one of them can be no prefix here, or nobody can know which texts a prompt
        stands before.
    """
    known = settings["prompts"]
    for name in filter(None, names):
        if name not in known:
            raise unknown_name(f"prompt of {folder}", name, known)
    texts = [known.get(name or usual, "") for name, usual in zip(names, (QUERY, DOCUMENT))]
    if not all(map(fields.PREFIX.fits, texts)):
        raise UserError(f"{folder / SETTINGS}: a prompt is not {fields.PREFIX.needed}; mend it, or export it again")
    default = settings.get("default_prompt_name")
    if default is not None and known[default] and default not in (QUERY, DOCUMENT, *names):
        way = f"call that prompt '{QUERY}' or '{DOCUMENT}', and take default_prompt_name out"
        what = f"default_prompt_name is {default!r}, of neither queries nor documents"
        raise UserError(f"{folder / SETTINGS}: {what}: {way}")
    if any(texts):
        _log.info("%s: before queries %r, before documents %r", folder, *texts)
    if others := ", ".join(name for name, text in known.items() if text and text not in texts):
        ways = "prompt_name, query_prompt, document_prompt"
        _log.info("%s: its prompts %s stand before no text unless named: %s", folder, others, ways)
    return texts


def named_prompts(folder: Path, settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The prompts of a folder for `config.data.prompts`: all but those of the names of the two sides."""
    if others := [name for name in settings["prompts"] if not name or "=" in name]:
        _log.warning("%s: a prompt cannot be named %r here, and is left out", folder / SETTINGS, others[0])
    return named.written(settings["prompts"])


def titles(folder: Path, settings: Mapping[str, Any]) -> str:
    """How titles were read. Folders of others don't say: their models saw one text, with the title in it."""
    way = settings.get(TITLES, prefixes.JOINED)
    if way not in (prefixes.PAIR, prefixes.JOINED):
        raise UserError(f"{folder / SETTINGS}: {TITLES} is {way!r}, and {prefixes.PAIR} or {prefixes.JOINED} is needed")
    return way

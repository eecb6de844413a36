"""Towers that the stage `export` has written, or sentence-transformers: folders that are read without a run."""

import logging
from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.models import module_folder
from retrieval.models.module_folder import ModuleFolder
from retrieval.recipes.parameters import parameters_of
from retrieval.recipes.towers import build_towers, check_truncated, embedding_size
from retrieval.runs.weights import module_fields
from retrieval.runs.weights import published_weights as bert_weights

_log = logging.getLogger(__name__)


class LoadedTowers(NamedTuple):
    """Attributes:
    config: with the sizes and lengths of the towers.
    params: as `parameters_of` gives them.
    """

    config: ConfigDict
    vocabulary: Vocabulary
    params: dict[str, Any]


class Chosen(NamedTuple):
    """What is chosen of that which a folder offers.

    Attributes:
      query_prompt, document_prompt: names of prompts; '' for the usual ones.
      truncate_dim: the dimensions of an embedding that are kept; 0 for the folder's own.
    """

    query_prompt: str = ""
    document_prompt: str = ""
    truncate_dim: int = 0


USUAL = Chosen()


def read(folder: Path, config: ConfigDict, chosen: Chosen = USUAL) -> LoadedTowers:
    """The towers of a folder.

    Args:
      config: all fields, of which those of the model and the lengths are replaced in a copy.

    Raises:
      UserError: a file is missing or damaged, it is a model that ours cannot be, or it has not what is chosen.
    """
    config = config.copy_and_resolve_references()
    query, document = set_sizes(folder, config, chosen)
    vocabulary = bert_weights.vocabulary_of(document.bert)
    shapes = parameters_of(nnx.eval_shape(lambda: build_towers(config, len(vocabulary))))
    towers = {"query_tower": query, "document_tower": document}
    params = {name: towers[name].tower(shape) for name, shape in shapes.items()}
    bert_weights.log_spare_rows(document.bert, vocabulary)
    return LoadedTowers(config, vocabulary, params)


def set_sizes(folder: Path, config: ConfigDict, chosen: Chosen = USUAL) -> tuple[ModuleFolder, ModuleFolder]:
    """Sets the fields of the model, the lengths, the prefixes and the titles to those of a folder; its two towers."""
    query, document = module_fields.open_towers(folder)
    settings = module_folder.settings(folder)
    fields, others = (module_fields.fields_of(tower, settings) for tower in (query, document))
    if fields != others or query.include_prompt != document.include_prompt:
        raise UserError(f"{folder}: its towers are of different sizes, and ours have the same; export the run again")
    config.model.update(fields, remat="none", dtype="float32")
    config.model.update(tied=query is document, positions=query.bert.sizes["max_length"])
    config.data.update(query_length=query.query_length, document_length=document.length)
    config.data.query_prefix, config.data.document_prefix = module_fields.prompts(folder, settings, chosen[:2])
    config.data.prompts = module_fields.named_prompts(folder, settings)
    config.data.default_prompt = settings.get("default_prompt_name") or ""
    config.data.titles = module_fields.titles(folder, settings)
    if chosen.truncate_dim:
        config.model.truncate_dim = chosen.truncate_dim
    check_truncated(config.model)
    size = embedding_size(config.model)
    smaller = [each for each in document.bert.matryoshka if each < size]  # only cosines may be of fewer dimensions
    config.train.matryoshka = (*smaller, size) if smaller and config.model.normalize else ()
    config.model.pool_from = (0, 0)
    if not query.include_prompt:
        config.model.pool_from = module_fields.behind_prefixes(config, bert_weights.vocabulary_of(document.bert))
        if config.data.prompts and not any(config.model.pool_from):
            why = "its prompts are not pooled, which needs one of queries or documents here: none is kept"
            _log.warning("%s: %s", folder, why)
            config.data.prompts = ()
    return query, document

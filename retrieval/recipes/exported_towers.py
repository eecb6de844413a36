"""Towers that the stage `export` has written, or sentence-transformers: folders that are read without a run."""

from pathlib import Path
from typing import Any, NamedTuple

from flax import nnx
from ml_collections import ConfigDict

from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.models import module_folder
from retrieval.models.module_folder import ModuleFolder
from retrieval.recipes import bert_weights, module_fields
from retrieval.recipes.placement import parameters_of
from retrieval.recipes.towers import build_towers


class ExportedTowers(NamedTuple):
    """Attributes:
    config: with the sizes and lengths of the towers.
    params: as `parameters_of` gives them.
    """

    config: ConfigDict
    vocabulary: Vocabulary
    params: dict[str, Any]


def read(folder: Path, config: ConfigDict) -> ExportedTowers:
    """The towers of a folder.

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
    params = {name: bert_weights.tower(towers[name], shape) for name, shape in shapes.items()}
    bert_weights.log_spare_rows(document.bert, vocabulary)
    return ExportedTowers(config, vocabulary, params)


def set_sizes(folder: Path, config: ConfigDict) -> tuple[ModuleFolder, ModuleFolder]:
    """Sets the fields of the model, the lengths, the prefixes and the titles to those of a folder; its two towers.

    Raises:
      UserError: as `read`.
    """
    query, document = module_fields.open_towers(folder)
    settings = module_folder.settings(folder)
    if module_fields.fields_of(query, settings) != module_fields.fields_of(document, settings):
        raise UserError(f"{folder}: its towers are of different sizes, and ours have the same; export the run again")
    config.model.update(module_fields.fields_of(query, settings), encoder="transformer", remat="none", dtype="float32")
    config.model.update(tied=query is document, positions=query.bert.sizes["max_length"])
    config.data.update(query_length=query.query_length, document_length=document.length)
    config.data.query_prefix, config.data.document_prefix = module_fields.prompts(folder, settings)
    config.data.titles = module_fields.titles(folder, settings)
    return query, document

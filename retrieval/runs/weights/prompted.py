"""A model's prompts by name, and its config with others in the place of the usual two."""

import logging

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.data.labelled import sources
from retrieval.data.tokenizers import prompts
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.runs.weights import module_fields

_log = logging.getLogger(__name__)


def table(config: ConfigDict) -> dict[str, str]:
    """All prompts by name of towers that a config trains; NAME-query and NAME-document are those of the source NAME."""
    of_sources = {
        f"{name}-{side}": text
        for name, texts in sources.prompts_of(config).items()
        for side, text in zip(prompts.USUAL, texts, strict=True)
    }
    return prompts.table(config.data) | of_sources


def take(config: ConfigDict, trained: ConfigDict) -> None:
    """Gives a config the named prompts of the run that trained its towers; what it has in another way counts more."""
    theirs = prompts.named(trained.data)
    own = {name: text for name, text in prompts.named(config.data).items() if theirs.get(name) != text}
    config.data.prompts = prompts.written(table(trained) | own)


def with_prompts(
    config: ConfigDict, vocabulary: Vocabulary, query: str | None = None, document: str | None = None
) -> ConfigDict:
    """The config with other prompts before queries and before documents; None leaves a side as it is.

    Where the tokens of prompts are not pooled, neither are those of the other ones.
    """
    others = {prompts.USUAL[QUERY]: query, prompts.USUAL[DOCUMENT]: document}
    others = {name: text for name, text in others.items() if text is not None and text != config.data[name]}
    if not others:
        return config
    changed, places = config.copy_and_resolve_references(), tuple(config.model.pool_from)
    changed.data.update(others)
    if any(places):
        if places != module_fields.behind_prefixes(config, vocabulary):
            why = "is not where the prompts end, so nobody knows what is pooled behind another prompt"
            raise UserError(f"config.model.pool_from={places} {why}: take the prompts that it was trained with")
        changed.model.pool_from = module_fields.behind_prefixes(changed, vocabulary)
    return changed


def of_set(config: ConfigDict, vocabulary: Vocabulary, name: str) -> ConfigDict:
    """The config with the prompts of an evaluation set, where some have its name."""
    names = prompts.of_set(config.data, name)
    return with_prompts(config, vocabulary, *(prompts.chosen(config.data, side, of) for side, of in names.items()))


def log_of_set(config: ConfigDict, name: str) -> None:
    """Logs which of a set's texts have another prompt than usual, so that nobody takes its scores for those of that."""
    for side, of in prompts.of_set(config.data, name).items():
        if of != side:
            _log.info("set %s: a %s has the prompt '%s', %r", name, side, of, prompts.named(config.data)[of])

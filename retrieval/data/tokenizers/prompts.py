"""Prompts by name, as sentence-transformers keeps them: what stands before texts of one task or another.

'query' and 'document' are those that queries and documents have unless another is asked for, `data.query_prefix` and
`data.document_prefix`. The others are `data.prompts`, a text 'name=prompt' each. A set with the name NAME has the
prompts 'NAME-query' and 'NAME-document', or 'NAME' for both, where there are such; mteb chooses in this order.
"""

from collections.abc import Mapping
from typing import Any

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY

USUAL = {QUERY: "query_prefix", DOCUMENT: "document_prefix"}  # a side -> the field of `data` with its prompt
FIELD = "data.prompts"


def are_prompts(value: Any) -> bool:
    """Whether a value of `config.data.prompts` is a tuple of 'name=prompt', with names of its own."""
    if not isinstance(value, tuple | list) or not all(isinstance(item, str) and "=" in item for item in value):
        return False
    names = [item.partition("=")[0] for item in value]
    return len({*names, *USUAL, ""}) == len(names) + len(USUAL) + 1


def named(data: Mapping[str, Any]) -> dict[str, str]:
    """The prompts of the group `data` of a config, but for the usual two."""
    return {name: text for name, _, text in (item.partition("=") for item in data["prompts"])}


def written(prompts: Mapping[str, str]) -> tuple[str, ...]:
    """Named prompts as `config.data.prompts` has them; the usual two are left out, and names that it cannot have."""
    return tuple(f"{name}={text}" for name, text in prompts.items() if name not in ("", *USUAL) and "=" not in name)


def table(data: Mapping[str, Any]) -> dict[str, str]:
    """All prompts by name; the usual two are there, be they empty."""
    return {side: data[field] for side, field in USUAL.items()} | named(data)


def chosen(data: Mapping[str, Any], side: str, name: str | None = None, text: str | None = None) -> str:
    """The prompt of texts for which a name or a text is given, or neither.

    Args:
      side: `QUERY` or `DOCUMENT`, whose own prompt serves where neither is given.

    Raises:
      UserError: both are given, or there is none of that name, or the text is nothing but spaces.
    """
    if name is not None and text is not None:
        raise UserError(f"prompt_name={name!r} and prompt={text!r} are both given: leave one out")
    prompts = table(data)
    if text is None:
        name = side if name is None else name
        if not isinstance(name, str) or name not in prompts:
            raise unknown_name("prompt", str(name), prompts)
        text = prompts[name]
    if not isinstance(text, str) or (text and not text.strip()):
        raise UserError(f"the prompt {text!r} is nothing to put before a text: '' is none, or write some words")
    return text


def of_set(data: Mapping[str, Any], name: str) -> dict[str, str]:
    """The names of a set's prompts, by side. Case does not count in the name of the set."""
    ours = {prompt.casefold(): prompt for prompt in reversed(named(data))}  # of equals the first
    folded = name.casefold()
    return {side: ours.get(f"{folded}-{side}", ours.get(folded, side)) for side in USUAL}

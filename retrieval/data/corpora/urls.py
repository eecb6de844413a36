"""Web addresses of documents: the one that a record has, or a base address and the document's path or title."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urljoin

_SCHEME = re.compile(r"([^/?#:]*):")
_PART = re.compile(r"\{(id|stem|title)\}")
_SUFFIX = re.compile(r"(?:\.[A-Za-z0-9]+)?(?:\.gz)?\Z")


def checked(url: str) -> str:
    """An address that a page may link to: http, https or relative; '' for others, such as one that runs a script."""
    url = url.strip()
    scheme = _SCHEME.match(url)
    is_safe = url.isprintable() and (not scheme or scheme[1].lower() in ("http", "https"))
    return url if is_safe else ""


def of_record(record: Mapping[str, Any]) -> str:
    """The address that a record has as its 'url', or as that of its 'metadata', as BEIR's have; '' for none."""
    metadata = record.get("metadata")
    found = record.get("url") or (metadata.get("url") if isinstance(metadata, Mapping) else None)
    return checked(found) if isinstance(found, str) else ""


def of_document(base: str, own: str, id: str, title: str) -> str:
    """The address of a document; '' where nothing tells one.

    Args:
      base: an address that the id is added to, or one with `{id}`, `{stem}` (the id without its suffix) or `{title}`.
      own: what the document itself says, which counts from the base where it is relative.
    """
    if not base:
        return own
    if not _PART.search(base):
        base = f"{base.removesuffix('/')}/{{id}}"
    if own:
        return urljoin(base.partition("{")[0], own)
    values = {"id": id, "stem": _SUFFIX.sub("", id, count=1), "title": title}
    return _PART.sub(lambda part: quote(values[part[1]]), base)


def is_base(value: Any) -> bool:
    """Whether a value of `config.documents.base_url` is '' or an address that a document's id can stand in."""
    return isinstance(value, str) and checked(value) == value and not set("{}") & set(_PART.sub("", value))

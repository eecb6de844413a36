"""Addresses: of a document on the web, and what a link between documents means."""

import posixpath
import re
import unicodedata
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, unquote, urljoin, urlsplit

# Files that stand for their folder.
OF_FOLDERS = ("index", "readme", "_index")
_GZIP = ".gz"
_PAGES = (".md", ".markdown", ".html", ".htm")
_SCHEME = re.compile(r"([^/?#:]*):")
_PART = re.compile(r"\{(id|stem|title)\}")
_SUFFIX = re.compile(r"(?:\.[A-Za-z0-9]+)?(?:\.gz)?\Z")


def resolved(address: str, base: str) -> str | None:
    """The address below the corpus that a link means; None where it leads elsewhere.

    Args:
      base: the path of the document that has the link.
    """
    try:
        parts = urlsplit(address.strip())
    except ValueError:
        return None
    if parts.scheme or parts.netloc or not parts.path:
        return None
    path = unquote(parts.path)
    joined = path.lstrip("/") if path.startswith("/") else posixpath.join(posixpath.dirname(base), path)
    normal = unicodedata.normalize("NFC", posixpath.normpath(joined))  # as ids are: a Mac takes letters apart
    return None if normal.startswith("..") or normal == "." else normal


def other_addresses(id: str) -> Iterator[str]:
    """By what else links may name a page: without its ending, as the page that is made of it, or by its folder."""
    path = PurePosixPath(id[: -len(_GZIP)] if id.lower().endswith(_GZIP) else id)
    suffix, bare = path.suffix.lower(), str(path.with_suffix(""))
    names = (str(path), bare, f"{bare}.html" if suffix in (".md", ".markdown") else id)
    if suffix in _PAGES:
        yield from (name for name in names if name != id)
        yield from [str(path.parent)] if path.stem.lower() in OF_FOLDERS and str(path.parent) != "." else []


def checked(url: str) -> str:
    """An address that a page may link to: http, https or relative; '' for others, such as one that runs a script."""
    url = url.strip()
    try:
        urlsplit(url)
    except ValueError:
        return ""
    scheme = _SCHEME.match(url)
    is_safe = url.isprintable() and (not scheme or scheme[1].lower() in ("http", "https"))
    return url if is_safe else ""


def of_record(record: Mapping[str, Any]) -> str:
    """The address that a record has as its 'url', or as that of its 'metadata', as BEIR's have; '' for none."""
    metadata = record.get("metadata")
    url = record.get("url") or (metadata.get("url") if isinstance(metadata, Mapping) else None)
    return checked(url) if isinstance(url, str) else ""


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

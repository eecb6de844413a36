"""Links between documents: how a file is addressed, and what a relative address means."""

import posixpath
import unicodedata
from collections.abc import Iterator
from pathlib import PurePosixPath
from urllib.parse import unquote, urlsplit

# Files that stand for their folder.
OF_FOLDERS = ("index", "readme", "_index")
_GZIP = ".gz"
_PAGES = (".md", ".markdown", ".html", ".htm")


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
    if path.suffix.lower() not in _PAGES:
        return
    bare = str(path.with_suffix(""))
    if str(path) != id:
        yield str(path)
    yield bare
    if path.suffix.lower() in (".md", ".markdown"):
        yield f"{bare}.html"
    if path.stem.lower() in OF_FOLDERS and str(path.parent) != ".":
        yield str(path.parent)

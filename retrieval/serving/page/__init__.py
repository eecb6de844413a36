"""The page of the server: its files, which name no other address."""

from pathlib import Path
from typing import NamedTuple

_FOLDER = Path(__file__).parent
_KINDS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}


class File(NamedTuple):
    """Attributes:
    kind: the media type.
    """

    kind: str
    content: bytes


def files() -> dict[str, File]:
    """The files by the address that each has."""
    return {address: File(kind, (_FOLDER / name).read_bytes()) for address, (name, kind) in _KINDS.items()}

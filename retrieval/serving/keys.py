"""Keys of those who may ask: a file with one a line, which is read again when it changes."""

import hmac
import logging
import re
from collections.abc import Iterable
from pathlib import Path

from retrieval import files
from retrieval.errors import UserError

_KEY = re.compile(r"[\x21-\x7e]+")
_log = logging.getLogger(__name__)


class Keys:
    """The keys of a file. Where a newer state of it cannot be read, the older ones hold, and the log says so."""

    def __init__(self, path: Path):
        """Raises:
        UserError: the file cannot be read, has no key, or a line that is none.
        """
        self._path = path
        self._state, self._keys = files.state(path), read(path)
        if not self._keys:
            raise UserError(f"config.serve.keys_file={path}: no key in it; write one a line")

    def admits(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Whether a request has a key: as 'Authorization: Bearer KEY' or as 'X-API-Key: KEY'."""
        self._refresh()
        given = [_given(name, value) for name, value in headers if name in (b"authorization", b"x-api-key")]
        same = [hmac.compare_digest(each, key) for each in given for key in self._keys]
        return any(same)  # all were compared: the time does not say which fits

    def _refresh(self) -> None:
        if (state := files.state(self._path)) == self._state:
            return
        self._state = state
        try:
            self._keys = read(self._path)
            _log.info("serve: keys are read again: %d", len(self._keys))
        except UserError as error:
            _log.warning("the keys that were read before still hold: %s", error)


def read(path: Path) -> tuple[bytes, ...]:
    """The keys of a file; blank lines are passed over.

    Raises:
      UserError: it cannot be read, or a line is no key.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"config.serve.keys_file={path}: cannot be read ({error})") from error
    for number, line in enumerate(lines, 1):
        if line.strip() and not _KEY.fullmatch(line.strip()):
            raise UserError(f"config.serve.keys_file={path}, line {number}: a key is of ASCII without spaces")
    return tuple(line.strip().encode() for line in lines if line.strip())


def _given(name: bytes, value: bytes) -> bytes:
    kind, _, key = value.strip().partition(b" ")
    return value.strip() if name == b"x-api-key" else key.strip() if kind.lower() == b"bearer" else b""

"""Metadata of passages: what they say of themselves, and what a file says of them or of their documents."""

import json
import logging
import re
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.parsing import scalars, text_files
from retrieval.data.sets.beir import Candidate
from retrieval.export.vectors.vectors import COLUMNS, DOCUMENT, INTEGER, NUMBER, PARENT, SWITCH, TEXT, TEXTS

_log = logging.getLogger(__name__)

_OWN = (DOCUMENT, PARENT, "section", "article", "url")
_LIKE = '{"_id": "guide/start.md", "lang": "en", "year": 2026}'
_HALF = re.compile("[\ud800-\udfff]")  # of a surrogate pair, which no encoding can hold
_KINDS = {bool: SWITCH, int: INTEGER, float: NUMBER, str: TEXT}


class Metadata:
    """Everything that the file says is held in memory.

    Attributes:
      kinds: of all metadata, by name.
    """

    def __init__(self, path: Path | None):
        """Args:
          path: lines of JSON that name passages or documents by `_id`.

        Raises:
          UserError: a line is broken, or its values are no metadata; with the line.
        """
        self.kinds: dict[str, str] = dict.fromkeys(_OWN, TEXT)
        self._path = path
        self._said: dict[str, dict[str, Any]] = {}
        for at, record in text_files.objects(path, _LIKE) if path else ():
            id = scalars.of_value(record.pop("_id", None), "_id", at)
            if id in self._said:
                raise UserError(f"{at}: the _id '{id}' is there twice; join the lines")
            self._said[id] = {
                name: self._checked(name, value, at) for name, value in record.items() if value is not None
            }
        for record in self._said.values():  # where some are whole and others are not
            record |= {name: float(value) for name, value in record.items() if self.kinds[name] == NUMBER}
        self._used: set[str] = set()

    def _checked(self, name: str, value: Any, at: str) -> Any:
        is_list = isinstance(value, list) and all(isinstance(item, str) for item in value)
        kind = TEXTS if is_list else _KINDS.get(type(value), "")
        is_long = type(value) is int and not -(2**63) <= value < 2**63
        if not kind or name in _OWN or is_long or _HALF.search(json.dumps([name, value], ensure_ascii=False)):
            what = "has a meaning of its own here" if name in _OWN else f"is {value!r}"[:200]
            raise UserError(
                f"{at}: '{name}' {what}; metadata is a text, a number, true, false or a list of texts, of other names"
            )
        before = self.kinds.get(name, kind)
        kind = NUMBER if {before, kind} == {INTEGER, NUMBER} else kind
        if before not in (kind, INTEGER if kind == NUMBER else kind):
            why = f"is a {kind} here and a {before} in lines before"
            raise UserError(f"{at}: '{name}' {why}; write it alike everywhere")
        self.kinds[name] = kind
        return value

    def check_columns(self, columns: tuple[str, ...]) -> None:
        """Checks the names of what is to be filtered by.

        Raises:
          UserError: no passage can have such metadata.
        """
        for name in columns:
            if name in COLUMNS:
                raise UserError(f"config.handover.columns: the table has a column '{name}' already; name others")
            if name not in self.kinds:
                raise unknown_name("metadata in config.handover.columns", name, self.kinds)

    def of(self, candidate: Candidate, document: str, parent: str) -> dict[str, Any]:
        """The metadata of a passage; what is empty is left out.

        Args:
          document: the id of the document that it is from, '' where it is none's.
          parent: the id of the passage, of one of its windows.
        """
        own = (document, parent, candidate.section, candidate.article, candidate.url)
        said = {name: value for name, value in zip(_OWN, own) if value}
        for id in filter(None, (document, candidate.id)):
            if id in self._said:
                self._used.add(id)
                said |= self._said[id]
        return said

    def log_unused(self) -> None:
        """Says which lines of the file were of nothing that is there.

        Raises:
          UserError: all of them.
        """
        unused = [id for id in self._said if id not in self._used]
        if self._said and len(unused) == len(self._said):
            what = f"none of its {len(unused):,} lines, such as '{unused[0]}', is of the collection's ids"
            raise UserError(f"{self._path}: {what}")
        if unused:
            _log.warning("%s: %d of its lines are of nothing here, such as '%s'", self._path, len(unused), unused[0])

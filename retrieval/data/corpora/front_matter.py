"""What static sites and notebooks put before a page: fields of YAML, TOML or JSON. They are no text; a title is its.

---              +++                  {
title: Words     title = "Words"        "title": "Words"
---              +++                  }
"""

import json
import re
import tomllib
from typing import Any

import yaml

_FENCED = re.compile(r"\A(---|\+\+\+)[ \t]*\n((?s:.*?\n)??)\1[ \t]*(?:\n|\Z)")
_END_OF_LINE = re.compile(r"[ \t]*(?:\n|\Z)")
_LONGEST = 1 << 14  # characters: the time for a key of many parts is quadratic


def split(text: str) -> tuple[str, str]:
    """The title that the front matter of a page gives, or '', and the text behind it. What never ends is a text."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        if text.startswith("{"):
            fields, end = json.JSONDecoder().raw_decode(text)
            line = _END_OF_LINE.match(text, end)
            return (_title(fields), text[line.end() :]) if line else ("", text)
        fenced = _FENCED.match(text)
        if not fenced or len(fenced[2]) > _LONGEST:
            return "", text
        fields = yaml.BaseLoader(fenced[2]).get_single_data() if fenced[1] == "---" else tomllib.loads(fenced[2])
        return _title(fields or {}), text[fenced.end() :]
    except (AttributeError, ValueError, RecursionError, yaml.YAMLError):  # something else between two rules
        return "", text


def _title(fields: Any) -> str:
    """The field of that name as it is written, but for halves of surrogate pairs; a list, maybe endless, is none."""
    title = {str(name).lower(): value for name, value in fields.items()}.get("title")
    is_none = title in (None, "~", "null") or isinstance(title, list | dict)
    return "" if is_none else str(title).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

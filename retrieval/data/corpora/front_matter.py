"""What static sites and notebooks put before a page: fields of YAML or TOML. They are no text; a title is its.

---              +++
title: Words     title = "Words"
---              +++
"""

import re
import tomllib

import yaml

_FENCED = re.compile(r"\A(---|\+\+\+)[ \t]*\n((?s:.*?\n)??)\1[ \t]*(?:\n|\Z)")
_LONGEST = 1 << 14  # characters: the time for a key of many parts is quadratic


def split(text: str) -> tuple[str, str]:
    """The title that the front matter of a page gives, or '', and the text behind it. What never ends is a text."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    fenced = _FENCED.match(text)
    if not fenced or len(fenced[2]) > _LONGEST:
        return "", text
    try:
        fields = (yaml.safe_load if fenced[1] == "---" else tomllib.loads)(fenced[2]) or {}
        title = {str(name).lower(): value for name, value in fields.items()}.get("title")
        return "" if title is None else str(title), text[fenced.end() :]
    except (AttributeError, ValueError, RecursionError, yaml.YAMLError):  # something else between two rules
        return "", text

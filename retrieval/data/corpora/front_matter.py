"""What static sites and notebooks put before a page: fields of YAML, TOML or JSON. They are no text; a title is its.

---              +++                  {
title: Words     title = "Words"        "title": "Words"
---              +++                  }
"""

import json
import re
import tomllib

_FENCED = re.compile(r"\A(---|\+\+\+)[ \t]*\n((?s:.*?\n)??)\1[ \t]*(?:\n|\Z)")
# Comments, then a field or nothing. Where something else is below the first line, that is a rule of the page.
_YAML = re.compile(r"""(?:\#.*\n)*(?:["'\w]["'\w./\ -]*:(?=\s)(?s:.*)\n)?""")
_TITLE = re.compile(
    r"""^(["']?)title\1:[ \t]+(?:"((?:[^"\\]|\\.)*)"|'((?:[^']|'')*)'|(.*))""", re.MULTILINE | re.IGNORECASE
)
_END_OF_LINE = re.compile(r"[ \t]*(?:\n|\Z)")
_LONGEST_TOML = 1 << 14  # characters: the time for a key of many parts is quadratic
_NO_TITLE = ("null", "~", "|", ">", ">-", "|-")  # YAML's words for nothing, and for lines that follow


def split(text: str) -> tuple[str, str]:
    """The title that the front matter of a page gives, or '', and the text behind it. What never ends is a text."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if text.startswith("{"):
        return _json(text)
    if not (fenced := _FENCED.match(text)):
        return "", text
    fence, fields, rest = *fenced.groups(), text[fenced.end() :]
    if fence == "---":
        return (_yaml_title(fields), rest) if _YAML.fullmatch(fields) else ("", text)
    try:
        title = tomllib.loads(fields).get("title", "") if len(fields) < _LONGEST_TOML else ""
    except (ValueError, RecursionError):
        return "", text
    return str(title), rest


def _json(text: str) -> tuple[str, str]:
    """As `split`, of a page that begins like an object of JSON."""
    try:
        fields, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        fields, end = {}, 0  # where an object is, and no end of a line
    if not (line := _END_OF_LINE.match(text, end)):
        return "", text
    title = fields.get("title")
    return title if isinstance(title, str) else "", text[line.end() :]


def _yaml_title(fields: str) -> str:
    """A plain or a quoted text on one line."""
    if not (match := _TITLE.search(fields)):
        return ""
    _, double, single, plain = match.groups(default="")
    plain = f" {plain}".partition(" #")[0].strip()
    return double.replace('\\"', '"') or single.replace("''", "'") or ("" if plain in _NO_TITLE else plain)

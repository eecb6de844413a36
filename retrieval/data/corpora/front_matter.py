"""What static sites and notebooks put before a page: fields of YAML, TOML or JSON. They are no text; a title is its.

    ---              +++                ;;;                  {
    title: Words     title = "Words"    "title": "Words"       "title": "Words"
    ---              +++                ;;;                  }

Hugo has all but the third, Jekyll and Obsidian the first. A language may stand behind the dashes: `---toml`.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Callable

# Nothing, comments or fields. Where something else is below the first line, that is a rule of the page.
_FENCED = re.compile(r"\A(---|\+\+\+|;;;)[ \t]*(yaml|toml|json)?[ \t]*\n((?s:.*?\n)??)(\1|\.\.\.)[ \t]*(?:\n|\Z)")
_FIELDS = {
    "yaml": re.compile(r"""(?:\#.*\n)*(?:["'\w]["'\w./\ -]*:(?=\s)(?s:.*)\n)?"""),
    "toml": re.compile(r"""(?:[ \t]*(?:\#.*)?\n)*+(?:[ \t]*(?:["'\w]["'\w.\ -]*+=|\[)(?s:.*)\n)?"""),
    "json": re.compile(r"""(?:\s*["{](?s:.*)\n)?"""),
}
_USUAL = {"---": "yaml", "+++": "toml", ";;;": "json"}

_LONGEST_TOML = 1 << 14  # characters: the time for a key of many parts is quadratic
_QUOTED = re.compile(r"""(?:("(?:[^"\\]|\\.)*")|'((?:[^']|'')*)')\s*(?:#.*)?$""")
_NO_TITLE = ("null", "Null", "NULL", "~")  # YAML's words for nothing
_TITLE = re.compile(r"""^(["']?)title\1:[ \t]*(\S.*)$""", re.MULTILINE | re.IGNORECASE)


def split(text: str) -> tuple[str, str]:
    """The title that the front matter of a page gives, or '', and the text behind it. What never ends is a text."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n")
    if text.startswith("{"):
        return _braces(text)
    fenced = _FENCED.match(text)
    if not fenced:
        return "", text
    fence, language, fields, end = fenced.groups()
    language = language or _USUAL[fence]
    if not _FIELDS[language].fullmatch(fields) or (end == "..." and language != "yaml"):
        return "", text
    return _TITLES[language](fields), text[fenced.end() :]


def _braces(text: str) -> tuple[str, str]:
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return "", text
    rest = text[end:].lstrip(" \t")
    return (_title_in(value), rest) if rest[:1] in ("", "\n") else ("", text)


def _of_json(fields: str) -> str:
    try:
        return _title_in(json.loads(fields if fields.lstrip().startswith("{") else f"{{{fields}}}"))
    except (ValueError, RecursionError):
        return ""


def _of_toml(fields: str) -> str:
    try:
        return _title_in(tomllib.loads(fields)) if len(fields) < _LONGEST_TOML else ""
    except (ValueError, RecursionError):
        return ""


def _title_in(fields: dict) -> str:
    value = next((value for name, value in fields.items() if name.lower() == "title"), "")
    return _encodable(str(value)) if isinstance(value, str | int | float) else ""


def _of_yaml(fields: str) -> str:
    """A plain or a quoted text, or a block of lines (`>` and `|`)."""
    found = _TITLE.search(fields)
    if not found:
        return ""
    value = found[2].strip()
    if value[0] in ">|":
        lines = itertools.takewhile(lambda line: line[:1] in (" ", "\t", ""), fields[found.end() :].split("\n")[1:])
        return " ".join(" ".join(lines).split())
    if quoted := _QUOTED.match(value):
        return _unescaped(quoted[1]) if quoted[1] else quoted[2].replace("''", "'")
    plain = f" {value}".partition(" #")[0].strip()
    return "" if plain in _NO_TITLE else plain


def _unescaped(quoted: str) -> str:
    """What double quotes hold: YAML's escapes are those of JSON, and a few that titles do not have."""
    try:
        return _encodable(json.loads(quoted, strict=False)) or quoted[1:-1]
    except ValueError:
        return quoted[1:-1]


def _encodable(text: str) -> str:
    """A text, or '' where half of a surrogate pair makes it none."""
    return "" if re.search("[\ud800-\udfff]", text) else text


_TITLES: dict[str, Callable[[str], str]] = {"yaml": _of_yaml, "toml": _of_toml, "json": _of_json}

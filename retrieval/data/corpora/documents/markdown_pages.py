"""Markdown: a file is a document. Headings begin sections, and links between files of the corpus are kept."""

import functools
import itertools
import json
import re
from collections.abc import Mapping
from urllib.parse import quote

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.rules_inline import StateInline

from retrieval.data.corpora import note_links
from retrieval.data.corpora.document_format import Document, DocumentFormat, Outline, register
from retrieval.data.corpora.documents import html_pages

# What static sites and notebooks put before a page: nothing, comments or fields between two lines of dashes. Where
# something else is below the first, that is a rule of the page.
_FRONT_MATTER = re.compile(
    r"""\A---[ \t]*\n((?:\#.*\n)*(?:["'\w]["'\w./\ -]*:(?=\s)(?s:.*?)\n)?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)"""
)
_REFERENCE = re.compile(r"\[([^\[\]]+)\]")
_NAMED = "named"  # in the parser's environment
_QUOTED = re.compile(r"""(?:("(?:[^"\\]|\\.)*")|'((?:[^']|'')*)')\s*(?:#.*)?$""")
_NO_TITLE = ("null", "Null", "NULL", "~")  # YAML's words for nothing
_TITLE = re.compile(r"^title:[ \t]*(\S.*)$", re.MULTILINE)


@register
class MarkdownPages(DocumentFormat):
    """CommonMark with tables, and `[[links]]` by name. The title is the front matter's, or the first heading's."""

    name = "markdown"
    what = "Markdown: headings become sections, links between files WLP's pairs"
    suffixes = (".md", ".markdown")
    example = "# T ⏎ Words, [a link](other.md)."

    has_names = True

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of the HTML that the text stands for."""
        return _outline(text, id, {})

    def outline_of(self, document: Document) -> Outline:
        """With the links by name."""
        return _outline(document.text, document.id, document.named)


def _outline(text: str, id: str, named: Mapping[str, str]) -> Outline:
    text = text.replace("\r\n", "\n")
    front = _FRONT_MATTER.match(text)
    body = text[front.end() :] if front else text
    html = _parser().render(body, {_NAMED: named})
    return html_pages.outline(html, id, is_prose=True, title=_title(front[1]) if front else "")


def _title(front: str) -> str:
    """The title of a front matter: a plain or a quoted text, or a block of lines (YAML's `>` and `|`)."""
    found = _TITLE.search(front)
    if not found:
        return ""
    value = found[1].strip()
    if value[0] in ">|":
        lines = itertools.takewhile(lambda line: line[:1] in (" ", "\t", ""), front[found.end() :].split("\n")[1:])
        return " ".join(" ".join(lines).split())
    if quoted := _QUOTED.match(value):
        return _unescaped(quoted[1]) if quoted[1] else quoted[2].replace("''", "'")
    plain = f" {value}".partition(" #")[0].strip()
    return "" if plain in _NO_TITLE else plain


def _unescaped(quoted: str) -> str:
    """What double quotes hold: YAML's escapes are those of JSON, and a few that titles do not have."""
    try:
        text = json.loads(quoted, strict=False)
        text.encode()  # half of a surrogate pair is no text
    except ValueError:
        return quoted[1:-1]
    return text


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.inline.ruler.before("link", "link_by_name", _link_by_name)
    return parser


def _link_by_name(state: StateInline, silent: bool) -> bool:
    """`[[Note|label]]` as a link: to no note's address where it names none, and no link to a heading of the page.

    What is shown in place, `![[picture.png]]`, has no text.
    """
    match = note_links.LINK.match(state.src, state.pos, state.posMax)
    if not match or _is_of_commonmark(state, match):
        return False
    state.pos = match.end()
    if silent or match[1]:
        return True
    target, shown = match[2], (match[3] or "").strip() or note_links.label(match[2])
    if target.startswith("#"):
        state.push("text", "", 0).content = shown
        return True
    address = state.env[_NAMED].get(target, f"[[{target}]]")
    state.push("link_open", "a", 1).attrs = {"href": f"/{quote(address)}"}
    state.push("text", "", 0).content = shown
    state.push("link_close", "a", -1)
    return True


def _is_of_commonmark(state: StateInline, match: re.Match) -> bool:
    """Whether it is `[[words]](address)`, or has the name of an address that stands elsewhere."""
    goes_on = _REFERENCE.match(state.src, match.end())
    names = {normalizeReference(name) for name in (match[2], goes_on[1] if goes_on else "")}
    return state.src.startswith("(", match.end()) or not names.isdisjoint(state.env.get("references", {}))

"""Markdown: a file is a document. Headings begin sections, and links between files of the corpus are kept."""

import functools
import re
from collections.abc import Mapping
from urllib.parse import quote

from markdown_it import MarkdownIt
from markdown_it.common.utils import normalizeReference
from markdown_it.rules_inline import StateInline

from retrieval.data.corpora import front_matter, note_links
from retrieval.data.corpora.document_format import Document, DocumentFormat, Outline, register
from retrieval.data.corpora.documents import html_pages

_REFERENCE = re.compile(r"\[([^\[\]]+)\]")
_NAMED = "named"  # in the parser's environment


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
    title, body = front_matter.split(text)
    html = _parser().render(body, {_NAMED: named})
    return html_pages.outline(html, id, is_prose=True, title=title)


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

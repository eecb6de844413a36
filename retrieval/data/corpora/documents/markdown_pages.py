"""Markdown: a file is a document. Headings begin sections, and links between files of the corpus are kept."""

import functools
import re

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

from retrieval.data.corpora import front_matter
from retrieval.data.corpora.document_format import DocumentFormat, Outline, register
from retrieval.data.corpora.documents import html_pages

_NOTE = re.compile(r"\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]*))?\]\](?!\()")


@register
class MarkdownPages(DocumentFormat):
    """CommonMark with tables. The title is the front matter's, or the first heading's."""

    name = "markdown"
    what = "Markdown: headings become sections, links between files WLP's pairs"
    suffixes = (".md", ".markdown")
    example = "# T ⏎ Words, [a link](other.md)."

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of the HTML that the text stands for."""
        title, body = front_matter.split(text)
        return html_pages.outline(_parser().render(body), id, title)


@functools.cache
def _parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.inline.ruler.after("link", "note", _note)
    return parser


def _note(state: StateInline, silent: bool) -> bool:
    """`[[Note]]` and `[[Note|label]]`, as notebooks write links by name, are their words."""
    match = _NOTE.match(state.src, state.pos, state.posMax)
    if match and not silent:
        state.push("text", "", 0).content = match[2] or match[1]
    state.pos = match.end() if match else state.pos
    return match is not None

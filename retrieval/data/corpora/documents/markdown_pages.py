"""Markdown: a file is a document. Headings begin sections, and links between files of the corpus are kept."""

import functools
import re

from markdown_it import MarkdownIt

from retrieval.data.corpora.document_format import DocumentFormat, Outline, register
from retrieval.data.corpora.documents import html_pages

# What static sites and notebooks put before a page: fields between two lines of dashes.
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n(.*?)\n(?:---|\.\.\.)[ \t]*(?:\n|\Z)", re.DOTALL)
_TITLE = re.compile(r"^title:[ \t]*(\S.*)$", re.MULTILINE)


@register
class MarkdownPages(DocumentFormat):
    """CommonMark with tables. The title is that of the front matter, or the first heading of level 1."""

    name = "markdown"
    what = "Markdown: headings become sections, links between files WLP's pairs"
    suffixes = (".md", ".markdown")
    example = "# T ⏎ Words, [a link](other.md)."

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of the HTML that the text stands for."""
        text = text.replace("\r\n", "\n")
        front = _FRONT_MATTER.match(text)
        body = text[front.end() :] if front else text
        outline = html_pages.outline(_parser().render(body), id)
        title = _TITLE.search(front[1]) if front else None
        return Outline(title[1].strip().strip("\"'") if title else outline.title, outline.blocks)


@functools.cache
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark").enable("table")

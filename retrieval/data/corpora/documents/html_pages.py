"""HTML: a page is a document. Headings begin sections, and links between pages of the corpus are kept."""

import codecs
import re
from html.parser import HTMLParser

from retrieval.data.corpora import links
from retrieval.data.corpora.articles import Link
from retrieval.data.corpora.document_format import Block, DocumentFormat, Outline, one_line, register

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_ENDS_PARAGRAPH = {
    *("address", "article", "blockquote", "body", "br", "caption", "dd", "details", "div", "dl", "dt", "figcaption"),
    *("figure", "hr", "li", "main", "ol", "p", "pre", "section", "summary", "table", "tbody", "tr", "ul"),
    *_HEADINGS,
}
_APART = {"td", "th", "label"}  # words on both sides of their ends are not one
# What is not the text of a page: programs, controls, and what every page of a site repeats. A form may hold all of it.
_HIDDEN = {"script", "style", "noscript", "template", "svg", "nav", "footer", "aside", "select", "textarea", "button"}
_CHARSET = re.compile(rb"""<meta[^>]{0,200}?charset\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE)


@register
class HtmlPages(DocumentFormat):
    """The title is the page's first heading of level 1, or its <title>."""

    name = "html"
    what = "HTML pages: headings become sections, links between pages WLP's pairs"
    suffixes = (".html", ".htm", ".xhtml")
    example = '<h1>T</h1><p>Words, <a href="other.html">a link</a>.</p>'

    def decode(self, data: bytes) -> str:
        """As the page says that it is encoded, or UTF-8."""
        charset = _CHARSET.search(data[:2048])
        has_mark = data.startswith((codecs.BOM_UTF8, codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return super().decode(data) if has_mark or not charset else data.decode(charset[1].decode("ascii"))

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of a page, without what every page of a site repeats."""
        return outline(text, id)


def outline(html: str, id: str) -> Outline:
    """The title and the blocks of HTML; relative links count from `id`."""
    reader = _Reader(id)
    reader.feed(html)
    reader.close()
    reader.end_block()
    first = next((block for block in reader.blocks if block.level == 1), None)
    return Outline(first.text if first else reader.title, [block for block in reader.blocks if block is not first])


class _Reader(HTMLParser):
    """Collects the blocks of a page."""

    def __init__(self, base: str):
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self.title = ""
        self._base = base
        self._hidden = 0
        self._in_title = False
        self._level = 0
        self._text = ""
        self._links: list[Link] = []
        self._open: tuple[str, int] | None = None  # the target of a link, and where its anchor begins

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begins a block, a link or something hidden."""
        self._hidden += tag in _HIDDEN
        self._in_title |= tag == "title" and not self._hidden
        if tag in _ENDS_PARAGRAPH:
            self.end_block()
            self._level = _HEADINGS.get(tag, 0)
        elif tag in _APART:
            self.handle_data(" ")
        elif tag == "a" and not self._hidden:
            target = links.resolved(dict(attrs).get("href") or "", self._base)
            self._open = (target, len(self._text)) if target and target != self._base else None

    def handle_endtag(self, tag: str) -> None:
        """Ends what `handle_starttag` began."""
        self._hidden = max(0, self._hidden - (tag in _HIDDEN))
        self._in_title &= tag != "title"
        if tag in _ENDS_PARAGRAPH:
            self.end_block()
        elif tag in _APART:
            self.handle_data(" ")
        elif tag == "a":
            self._end_link()

    def handle_data(self, data: str) -> None:
        """Adds a text, with one blank for white space."""
        if self._in_title:
            self.title = one_line(f"{self.title} {data}")
        elif not self._hidden:
            text = re.sub(r"\s+", " ", data)
            self._text += text.removeprefix(" ") if not self._text or self._text.endswith(" ") else text

    def end_block(self) -> None:
        """Keeps the block that has been read, if it has a text."""
        self._end_link()
        if text := self._text.rstrip():
            kept = tuple(link for link in self._links if link.end <= len(text))
            self.blocks.append(Block(text, self._level, () if self._level else kept))
        self._text, self._links, self._level = "", [], 0

    def _end_link(self) -> None:
        if self._open:
            target, start = self._open
            end = len(self._text.rstrip())
            if end > start:
                self._links.append(Link(target, start, end))
        self._open = None

"""HTML: a page is a document. Headings begin sections, and links between pages of the corpus are kept."""

import re
from html import escape
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
_WITHIN_HEADING = {"br", "div"}
_PROGRAMS = ("script", "style")
_MOST_UNCLOSED = 20
_APART = {"td", "th", "label"}  # words on both sides of their ends are not one
# What is not the text of a page: programs, controls, and what every page of a site repeats. A form may hold all of it.
_HIDDEN = {"script", "style", "noscript", "template", "svg", "nav", "footer", "aside", "select", "textarea", "button"}
_OF_SEVEN_BITS = ("iso-2022-", "hz")  # their bytes are UTF-8, too
# https://encoding.spec.whatwg.org: what pages call these is more than they say.
_WESTERN = "cp1252"
_READ_AS = {
    name: codec
    for codec, names in {
        _WESTERN: ("iso-8859-1", "iso8859-1", "latin1", "latin-1", "ascii", "us-ascii"),
        "gb18030": ("gb2312", "gbk", "gb_2312-80", "x-gbk"),
        "cp932": ("shift_jis", "shift-jis", "x-sjis"),
        "cp949": ("euc-kr", "ks_c_5601-1987"),
        "cp1254": ("iso-8859-9",),
        "cp874": ("iso-8859-11", "tis-620"),
    }.items()
    for name in names
}
_CHARSET = re.compile(
    rb"""<(?:meta[^>]{0,200}?charset|\?xml[^>]{0,200}?encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE
)


@register
class HtmlPages(DocumentFormat):
    """The title is the page's first heading of level 1, or its <title>."""

    name = "html"
    what = "HTML pages: headings become sections, links between pages WLP's pairs"
    suffixes = (".html", ".htm", ".xhtml")
    example = '<h1>T</h1><p>Words, <a href="other.html">a link</a>.</p>'

    def decode(self, data: bytes) -> str:
        """UTF-8, or where it is none as the page says that it is encoded, which browsers read as the WHATWG has it."""
        found = _CHARSET.search(data[:2048])
        charset = found[1].decode("ascii").lower() if found else ""
        if charset.startswith(_OF_SEVEN_BITS):
            return data.decode(charset)
        try:
            return super().decode(data)
        except UnicodeDecodeError:
            if not charset or charset.startswith(("utf", "unicode")):
                raise
        name = _READ_AS.get(charset, charset)
        return data.decode(name, errors="replace" if name == _WESTERN else "strict")  # five of its bytes are no letters

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of a page, without what every page of a site repeats."""
        return outline(text, id)


def outline(html: str, id: str, is_prose: bool = False, title: str = "") -> Outline:
    """The title and the blocks of HTML; relative links count from `id`.

    A page without a heading of level 1 and without a <title> is called as its first heading, where it begins with one.

    Args:
      is_prose: whether people wrote it, who may write of <select>: a tag that hides what follows and is never closed is
        a text then. Otherwise it is none, and an unclosed <script> goes to the end of a page that was cut off.
      title: what the page is called, where that is known. A heading of level 1 that says otherwise stays a heading.
    """
    reader = _read(html, id, is_prose)
    blocks = reader.blocks
    first = next((block for block in blocks if block.level == 1), None)
    if title:
        return Outline(title, [block for block in blocks if block is not first or block.text != one_line(title)])
    if not first and not reader.title and blocks and blocks[0].level:
        first = blocks[0]
    return Outline(first.text if first else reader.title, [block for block in blocks if block is not first])


def _read(html: str, id: str, is_prose: bool) -> "_Reader":
    """Reads a page; a tag that hides what follows and is never closed does not count."""
    for _ in range(_MOST_UNCLOSED):
        reader = _of_page(html, id)
        unclosed = [each for each in reader.unclosed if is_prose or each[0] not in _PROGRAMS]
        if not unclosed:
            return reader
        _, (line, column), tag = unclosed[0]
        at = sum(map(len, html.split("\n", line - 1)[: line - 1])) + line - 1 + column
        html = html[:at] + (escape(tag) if is_prose else " ") + html[at + len(tag) :]
    return _of_page(html, id)


def _of_page(html: str, id: str) -> "_Reader":
    reader = _Reader(id)
    reader.feed(html)
    reader.close()
    reader.end_block()
    return reader


class _Reader(HTMLParser):
    """Collects the blocks of a page."""

    def __init__(self, base: str):
        super().__init__(convert_charrefs=True)
        self.blocks: list[Block] = []
        self.title = ""
        self._base = base
        # What hides what follows: its name, the line and column where it begins, and its tag.
        self.unclosed: list[tuple[str, tuple[int, int], str]] = []
        self._level = 0
        self._text = ""
        self._links: list[Link] = []
        self._open: tuple[str, int] | None = None  # the target of a link, and where its anchor begins

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begins a block, a link or something hidden."""
        if tag in _HIDDEN or (tag == "title" and not self.unclosed):
            self.unclosed.append((tag, self.getpos(), self.get_starttag_text() or ""))
        if self._level and tag in _WITHIN_HEADING:
            self.handle_data(" ")
        elif tag in _ENDS_PARAGRAPH:
            self.end_block()
            self._level = _HEADINGS.get(tag, 0)
        elif tag in _APART:
            self.handle_data(" ")
        elif tag == "a" and not self.unclosed:
            target = links.resolved(dict(attrs).get("href") or "", self._base)
            self._open = (target, len(self._text)) if target and target != self._base else None

    def handle_endtag(self, tag: str) -> None:
        """Ends what `handle_starttag` began."""
        if places := [place for place, (opened, _, _) in enumerate(self.unclosed) if opened == tag]:
            del self.unclosed[places[-1]]
        if self._level and tag in _WITHIN_HEADING:
            self.handle_data(" ")
        elif tag in _ENDS_PARAGRAPH:
            self.end_block()
        elif tag in _APART:
            self.handle_data(" ")
        elif tag == "a":
            self._end_link()

    def handle_data(self, data: str) -> None:
        """Adds a text, with one blank for white space."""
        if self.unclosed and self.unclosed[-1][0] == "title":
            self.title = one_line(f"{self.title} {data}")
        elif not self.unclosed:
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

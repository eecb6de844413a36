"""HTML: a page is a document. Headings begin sections, and links between pages of the corpus are kept."""

import collections
import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from retrieval.data.corpora import entities, front_matter, links
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
_APART = {"td", "th", "label"}  # words on both sides of their ends are not one
# What is not the text of a page: programs, controls, and what every page of a site repeats. A form may hold all of it.
_HIDDEN = {"script", "style", "noscript", "template", "svg", "nav", "footer", "aside", "select", "textarea", "button"}
_HIDING = {*_HIDDEN, "title"}
# A search takes no step back, so the time is linear whatever a page holds. `html.parser` needs a minute for 72 kB of
# tags that never end, and reads pages in another way with each version of Python.
_TAG = re.compile(
    r"""<(?: (?P<slash>/?) (?P<name>[a-zA-Z][^\s/>]*+) (?P<attributes>(?:[^>=]++ | =\s*+(?:"[^"]*+"|'[^']*+')?+)*+)
           | [!?/][^>]*+ ) (?P<end>>?)""",
    re.VERBOSE,
)
_CLOSES_ITSELF = re.compile(r"""(?:^|[\s"'])/$""")
_ATTRIBUTE = re.compile(r"""([^\s=/]++)(?:\s*+=\s*+(?:"([^"]*)"|'([^']*)'|(\S*)))?""")
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
        title, body = front_matter.split(text)
        return outline(body, id, title=title)


def outline(html: str, id: str, is_prose: bool = False, title: str = "") -> Outline:
    """The title and the blocks of HTML; relative links count from `id`.

    A page without a heading of level 1 and without a <title> is called as its first heading, where it begins with one.

    Args:
      is_prose: whether people wrote it, who may write of <select>: a tag that hides what follows and is never closed is
        a text then. Otherwise it is none, and an unclosed <script> goes to the end of a page that was cut off.
      title: what the page is called, where that is known. A heading of level 1 that says otherwise stays a heading.
    """
    page = _read(html, id, is_prose)
    blocks, own = page.blocks, one_line(" ".join(page.title))
    first = next((block for block in blocks if block.level == 1), None)
    if title:
        return Outline(title, [block for block in blocks if block is not first or block.text != one_line(title)])
    if not first and not own and blocks and blocks[0].level:
        first = blocks[0]
    return Outline(first.text if first else own, [block for block in blocks if block is not first])


class _Tag(NamedTuple):
    """`html[start:end]`; `name` is '' for a comment, and what closes itself begins and ends."""

    start: int
    end: int
    name: str
    attributes: str
    begins: bool
    ends: bool

    @property
    def address(self) -> str:
        """What it links to."""
        found = _ATTRIBUTE.findall(self.attributes)
        return next((entities.unescape("".join(values)) for name, *values in found if name.lower() == "href"), "")


def _read(html: str, id: str, is_prose: bool) -> "_Page":
    """Reads a page; a tag that hides what follows and is never closed does not count."""
    page, position, unpaired = _Page(id), 0, _unpaired(_tags(html, is_prose))
    for tag in _tags(html, is_prose):
        if is_prose and tag.begins and tag.start in unpaired:
            continue  # it is a word
        page.add(html[position : tag.start])
        position = tag.end
        if tag.start not in unpaired:
            page.tag(tag)
        elif tag.begins:
            page.add(" ")
    page.add(html[position:])
    page.end_block()
    return page


def _unpaired(tags: Iterable[_Tag]) -> set[int]:
    """Where tags begin that hide what follows and are never closed, or close what is not open."""
    open_: dict[str, list[int]] = collections.defaultdict(list)
    unpaired = set()
    for tag in tags:
        if tag.name not in _HIDING or (tag.begins and tag.ends):
            continue
        if tag.begins:
            open_[tag.name].append(tag.start)
        elif open_[tag.name]:
            open_[tag.name].pop()
        else:
            unpaired.add(tag.start)
    return unpaired.union(*open_.values())


def _tags(html: str, is_prose: bool) -> Iterator[_Tag]:
    """The tags and comments of a page. A comment that is never closed is a tag, and a tag that never ends is a text."""
    last_comment, position, unclosed = html.rfind("-->"), 0, set()
    while match := _TAG.search(html, position):
        start, position = match.span()
        if html.startswith("<!--", start) and start + 2 <= last_comment:
            position = html.index("-->", start + 2) + 3
        elif not match["end"]:
            return  # nor does any other behind it
        name, attributes, begins = (match["name"] or "").lower(), match["attributes"] or "", not match["slash"]
        yield _Tag(start, position, name, attributes, begins, not begins or bool(_CLOSES_ITSELF.search(attributes)))
        if begins and name in _PROGRAMS and name not in unclosed:
            if end := re.compile(f"</{name}\\b", re.IGNORECASE).search(html, position):
                position = end.start()
            elif is_prose:
                unclosed.add(name)
            else:
                yield _Tag(position, len(html), "", "", True, True)  # goes to the end of a page that was cut off
                return


class _Page:
    """Collects the blocks of a page."""

    def __init__(self, base: str):
        self.blocks: list[Block] = []
        self.title: list[str] = []
        self._base = base
        self._hidden = 0  # how many tags that hide what follows are open
        self._in_title = False
        self._level = 0
        self._texts: list[str] = []
        self._length = 0
        self._links: list[Link] = []
        self._open: tuple[str, int] | None = None  # the target of a link, and where its anchor begins

    def tag(self, tag: _Tag) -> None:
        """Begins or ends a block, a link or something hidden."""
        name = tag.name
        if name in _HIDDEN:
            self._hidden += tag.begins - tag.ends
        elif name == "title" and not self._hidden:
            self._in_title = not tag.ends
        if self._level and name in _WITHIN_HEADING:
            self.add(" ")
        elif name in _ENDS_PARAGRAPH:
            self.end_block()
            self._level = 0 if tag.ends else _HEADINGS.get(name, 0)
        elif name in _APART:
            self.add(" ")
        elif name == "a":
            if tag.begins and not (self._hidden or self._in_title):
                target = links.resolved(tag.address, self._base)
                self._open = (target, self._length) if target and target != self._base else None
            if tag.ends:
                self._end_link()

    def add(self, html: str) -> None:
        """Adds what stands between tags, with one blank for white space."""
        text = re.sub(r"\s+", " ", entities.unescape(html))
        if self._hidden or not text:
            return
        if self._in_title:
            self.title.append(text)
            return
        if not self._texts or self._texts[-1].endswith(" "):
            text = text.removeprefix(" ")
        if text:
            self._texts.append(text)
            self._length += len(text)

    def end_block(self) -> None:
        """Keeps the block that has been read, if it has a text."""
        self._end_link()
        if text := "".join(self._texts).rstrip():
            kept = tuple(link for link in self._links if link.end <= len(text))
            self.blocks.append(Block(text, self._level, () if self._level else kept))
        self._texts, self._length, self._links, self._level = [], 0, [], 0

    def _end_link(self) -> None:
        if self._open:
            target, start = self._open
            end = self._length - self._texts[-1].endswith(" ") if self._texts else 0
            if end > start:
                self._links.append(Link(target, start, end))
        self._open = None

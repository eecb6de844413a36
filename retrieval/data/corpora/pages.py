"""Files that are a document each: HTML, Markdown and plain text.

Headings begin sections, and links between pages of the corpus are kept.
"""

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline

from retrieval.common.parsing import foreign_text
from retrieval.data.corpora import addresses, front_matter
from retrieval.data.corpora.articles import Link
from retrieval.data.corpora.document_format import Block, DocumentFormat, Outline, one_line, register, title_of

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_ENDS_PARAGRAPH = {
    *"address article blockquote body br caption dd details div dl dt figcaption figure hr li main ol p pre".split(),
    *("section", "summary", "table", "tbody", "tr", "ul", *_HEADINGS),
}
_WITHIN_HEADING = {"br", "div"}
_PROGRAMS = ("script", "style")
_APART = {"td", "th", "label"}  # words on both sides of their ends are not one
# What is not the text of a page: programs, controls, and what every page of a site repeats. A form may hold all of it.
_HIDDEN = {*_PROGRAMS, *"noscript template svg nav footer aside select textarea button".split()}
_HIDING = {*_HIDDEN, "title"}
# A search takes no step back, so the time is linear whatever a page holds. `html.parser` needs a minute for 72 kB of
# tags that never end, and reads pages in another way with each version of Python.
_TAG = re.compile(
    r"""<(?: (?P<slash>/?) (?P<name>[a-zA-Z][^\s/>]*+) (?P<attributes>(?:[^>=]++ | =\s*+(?:"[^"]*+"|'[^']*+')?+)*+)
           | [!?/][^>]*+ ) (?P<end>>?)""",
    re.VERBOSE,
)
_MOST_OF_REDIRECT = 300  # characters besides links: a page with more is one to read
# A list of links has no more text besides them than this share, and so many. Of real pages, indexes and tables of
# contents have 80 % and more in links; rules of a grammar, of which each links to others, have 72 %.
_UNLINKED, _FEWEST_LINKS = 0.2, 5
_CLOSES_ITSELF = re.compile(r"""(?:^|[\s"'])/$""")
_ATTRIBUTE = re.compile(r"""([^\s=/]++)(?:\s*+=\s*+(?:"([^"]*)"|'([^']*)'|(\S*)))?""")
# https://encoding.spec.whatwg.org: what pages call these is more than they say.
_READ_AS = {**dict.fromkeys(("iso-8859-1", "latin1", "latin-1", "ascii", "us-ascii"), "cp1252"), "iso-8859-9": "cp1254"}
_READ_AS |= dict.fromkeys(("shift_jis", "shift-jis", "x-sjis", "windows-31j"), "cp932") | {"big5": "big5hkscs"}
_READ_AS |= dict.fromkeys(("gb2312", "gbk"), "gb18030") | dict.fromkeys(("euc-kr", "ks_c_5601-1987"), "cp949")
_NOTE = re.compile(r"\[\[([^\[\]|\n]+)(?:\|([^\[\]\n]*))?\]\](?!\()")
_CHARSET = re.compile(
    rb"""<(?:meta[^>]{0,200}?charset|\?xml[^>]{0,200}?encoding)\s*=\s*["']?\s*([\w.:-]{1,40})""", re.IGNORECASE
)


@register
class HtmlPages(DocumentFormat):
    """The text is that of <main>, where there is one. Redirects, pages to print and lists of links are no documents."""

    name = "html"
    what = "HTML pages: headings become sections, links between pages WLP's pairs"
    suffixes = (".html", ".htm", ".xhtml")
    example = '<h1>T</h1><p>Words, <a href="other.html">a link</a>.</p>'

    def decode(self, data: bytes) -> str:
        """UTF-8, or where it is none as the page says that it is encoded, which browsers read as the WHATWG has it."""
        try:
            return super().decode(data)
        except UnicodeDecodeError:
            match = _CHARSET.search(data[:2048])
            charset = match[1].decode("ascii").lower() if match else "utf-8"
            return data.decode("utf-8" if charset.startswith(("u", "raw")) else _READ_AS.get(charset, charset))

    def outline(self, text: str, id: str) -> Outline:
        """The blocks of a page, without what every page of a site repeats."""
        title, body = front_matter.split(text)
        page = _read(body, id)
        reason = page.left_out()
        return Outline("", (), reason) if reason else page.outline(title)


class _Tag(NamedTuple):
    """`html[start:end]`; `name` is '' for a comment, and what closes itself begins and ends."""

    start: int
    end: int
    name: str
    attributes: str
    begins: bool
    ends: bool

    def attribute(self, name: str) -> str:
        """The value of an attribute, '' where there is none."""
        pairs = _ATTRIBUTE.findall(self.attributes)
        return next((foreign_text.unescape("".join(values)) for own, *values in pairs if own.lower() == name), "")


def _read(html: str, id: str) -> "_Page":
    """Reads a page; a tag that hides what follows and is never closed does not count: people write of <select>."""
    page, position, paired = _Page(id), 0, _paired(_tags(html))
    for tag in _tags(html):
        page.add(html[position : tag.start])
        position = tag.end
        if tag.name not in _HIDING or tag.start in paired:
            page.tag(tag)
        elif tag.begins:
            page.add(" ")
    page.add(html[position:])
    page.end_block()
    return page


def _paired(tags: Iterable[_Tag]) -> set[int]:
    """Where tags that hide what is between them begin, of those that have an end, and these."""
    open_: dict[str, list[int]] = collections.defaultdict(list)
    paired = set()
    for tag in tags:
        if tag.name in _HIDING and not tag.ends:
            open_[tag.name].append(tag.start)
        elif not tag.begins and open_[tag.name]:
            paired |= {open_[tag.name].pop(), tag.start}
    return paired


def _tags(html: str) -> Iterator[_Tag]:
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
            else:
                unclosed.add(name)


# A block of a page, whether it is in <main>, and how many characters each of its links has, wherever it leads.
_Part = tuple[Block, bool, Sequence[int]]


class _Page:
    """Collects the blocks of a page, and what it says of itself."""

    def __init__(self, id: str):
        self._id = id
        self._parts: list[_Part] = []
        self._title: list[str] = []
        self._meta: dict[str, str] = {}
        self._main, self._depth = "", 0  # the element that is the page's <main>, and how many of its name are open
        self._hidden = 0  # how many tags that hide what follows are open
        self._in_title = self._in_code = False
        self._begin_block(0)

    def _begin_block(self, level: int) -> None:
        self._level, self._length = level, 0
        self._texts: list[str] = []
        self._links: list[Link] = []
        self._linked: list[int] = []
        self._anchor: tuple[str, int, int] | None = None  # of an open link: its address, where it begins, in texts too

    def outline(self, title: str) -> Outline:
        """The blocks, and the title or else what the page calls itself: that heading is no block then."""
        blocks = [block for block, *_ in self._kept()]
        headings = [block for block in blocks if block.level]
        own = one_line(" ".join(self._title))
        tops = [block for block in headings if block.level == 1 and title in ("", block.text)]
        if not title and not (tops and self._kept() is not self._parts):  # outside of <main> an <h1> may be the site's
            tops = [*(block for block in headings if _begins_with(own, block.text)), *tops]
            tops += blocks[:1] if blocks and blocks[0].level and not own else []
        of_title = tops[0] if tops else Block(own)
        return Outline(title or of_title.text, [block for block in blocks if block is not of_title])

    def left_out(self) -> str:
        """Why a page is no document, '' where it is one."""
        paragraphs = [(block.text, sizes) for block, _, sizes in self._kept() if not block.level]
        linked = [size for _, sizes in paragraphs for size in sizes]
        length = sum(len(text) for text, _ in paragraphs)
        if "url=" in self._meta.get("refresh", "").lower() and length - sum(linked) <= _MOST_OF_REDIRECT:
            return "redirects to other pages"
        if "noindex" in self._meta.get("robots", "") and title_of(self._id).lower().startswith("print"):
            return "pages to print"  # a book on one page
        return "lists of links" if len(linked) >= _FEWEST_LINKS and length - sum(linked) <= _UNLINKED * length else ""

    def tag(self, tag: _Tag) -> None:
        """Begins or ends a block, a link or something hidden, or says something of the page."""
        name = tag.name
        self._see_main(tag)
        if name in _HIDDEN:
            self._hidden += tag.begins - tag.ends
        elif name == "title" and not self._hidden:
            self._in_title = not tag.ends
        elif name == "meta":
            self._meta[(tag.attribute("name") or tag.attribute("http-equiv")).lower()] = tag.attribute("content")
        if name in _APART or (self._level and name in _WITHIN_HEADING):
            self.add(" ")
        elif name in _ENDS_PARAGRAPH:
            self.end_block(0 if tag.ends else _HEADINGS.get(name, 0))
            self._in_code = not tag.ends if name == "pre" else self._in_code
        elif name == "a":
            self._end_link()
            address = tag.attribute("href").strip()
            if address and not (tag.ends or self._hidden or self._in_title):
                self._anchor = (address, self._length, len(self._texts))

    def add(self, html: str) -> None:
        """Adds what stands between tags, with one blank for white space; code keeps its lines (`Paragraph`)."""
        text = foreign_text.unescape(html)
        if self._in_code:
            text = (text if self._texts else "\n" + text.lstrip("\r\n")).replace("\r", "").replace("\n", "\n    ")
        else:
            text = re.sub(r"\s+", " ", text)
        if self._in_title and not self._hidden:
            self._title.append(text)
        elif not self._hidden:
            if not self._in_code and (not self._texts or self._texts[-1].endswith(" ")):
                text = text.removeprefix(" ")
            self._texts += [text] if text else []
            self._length += len(text)

    def end_block(self, level: int = 0) -> None:
        """Keeps the block that has been read, if it has a text; the next one is a heading of that level, or none."""
        self._end_link()
        if text := "".join(self._texts).rstrip():
            kept = tuple(link for link in self._links if link.end <= len(text))
            block = Block(text, self._level, () if self._level else kept)
            self._parts.append((block, self._depth > 0, self._linked))
        self._begin_block(level)

    def _kept(self) -> list[_Part]:
        """What is in <main>, where that has a text; otherwise all."""
        main = [part for part in self._parts if part[1]]
        return main if any(not block.level for block, *_ in main) else self._parts

    def _see_main(self, tag: _Tag) -> None:
        """Takes the next tag for whether the page is in its <main>."""
        is_main = tag.name == "main" or ("role" in tag.attributes and tag.attribute("role").lower() == "main")
        if self._depth and tag.name == self._main:
            if self._depth == 1 and not tag.begins:
                self.end_block()
            self._depth += tag.begins - tag.ends
        elif is_main and not tag.ends and not self._depth:
            self.end_block()
            self._main, self._depth = tag.name, 1

    def _end_link(self) -> None:
        if not self._anchor:
            return
        (address, start, texts), self._anchor = self._anchor, None
        if address.startswith("#") and not any(map(str.isalnum, "".join(self._texts[texts:]))):
            del self._texts[texts:]  # a sign, such as ¶, that leads to the heading it stands in
            self._length = start
            return
        end = self._length - self._texts[-1].endswith(" ") if self._texts else 0
        if end > start:
            self._linked.append(end - start)
            target = addresses.resolved(address, self._id)
            if target and target != self._id:
                self._links.append(Link(target, start, end))


def _begins_with(title: str, heading: str) -> bool:
    return title.lower().startswith(heading.lower()) and not title[len(heading) : len(heading) + 1].isalnum()


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
        return _read(_MARKDOWN.render(body), id).outline(title)


def _note(state: StateInline, silent: bool) -> bool:
    """`[[Note]]` and `[[Note|label]]`, as notebooks write links by name, are their words."""
    match = _NOTE.match(state.src, state.pos, state.posMax)
    if match and not silent:
        state.push("text", "", 0).content = match[2] or match[1]
    state.pos = match.end() if match else state.pos
    return match is not None


_MARKDOWN = MarkdownIt("commonmark").enable("table")
_MARKDOWN.inline.ruler.after("link", "note", _note)


@register
class PlainText(DocumentFormat):
    """Empty lines end a paragraph. What has no headings is all lead."""

    name = "text"
    what = "plain text, a document each"
    suffixes = (".txt", ".text")
    example = "A paragraph. Another sentence."

"""Wikitext to articles: plain paragraphs with links, or the reason why a page is none."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_text
from retrieval.data.corpora import corpus_kind, document_format, source_paths, wikinames, wikipedia
from retrieval.data.corpora.articles import Article, Dropped, Link, Paragraph, Section
from retrieval.data.corpora.corpus_kind import CorpusKind, register
from retrieval.data.corpora.wikimarkup import BAR, CLOSE, HOLE, ITEM, OPEN, TooHardError, one_line, render
from retrieval.data.corpora.wikipedia import Page
from retrieval.data.formats import Options

_LINK = re.compile(f"{OPEN}(\\d+){BAR}([^{CLOSE}]*){CLOSE}")
_HEADING = re.compile(r"(={1,6})(.+)\1")
_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz", ".bz2")


def parse(page: Page) -> list[Article | Dropped]:
    """The article of a page, or why there is none; always exactly one item.

    Left out are templates (but those that stand for words, such as measures), tables, references, files, formulas, the
    sections that point elsewhere ('See also', 'References' ...), list items that are nothing but links, and sections
    without text. The reasons for a page to be dropped: disambiguation, list, no text,
    too deep, too complex.
    """
    reason, sections = "", ()
    if wikinames.DISAMBIGUATION_TITLE.search(page.title) or wikinames.DISAMBIGUATION.search(page.text):
        reason = "disambiguation"
    elif wikinames.LIST_TITLE.match(page.title):
        reason = "list"
    else:
        try:
            sections, listed = _sections(*render(page))
            shown = sum(len(p.text) for s in sections for p in s.paragraphs)
            reason = "list" if listed > 4 * shown else "" if shown else "no text"
        except TooHardError as error:
            reason = str(error)
    return [Dropped(page.title, reason) if reason else Article(page.id, page.title, sections, url=page.url)]


def _sections(marked: str, targets: list[str]) -> tuple[tuple[Section, ...], int]:
    """The sections with text, the lead always among them, and the characters of list items that were left out."""
    sections: list[tuple[str, int, list[Paragraph]]] = [("", 1, [])]
    boilerplate = 0  # the level of the section that is being left out
    listed = 0
    for level, is_item, text in _blocks(marked):
        paragraph = _paragraph(text, targets)
        if level and (not boilerplate or level <= boilerplate):
            boilerplate = level if paragraph.text.casefold() in wikinames.BOILERPLATE_SECTIONS else 0
            sections.append((paragraph.text, level, []))
        elif level or boilerplate or not any(map(str.isalnum, paragraph.text)):
            continue
        elif is_item and _only_links(paragraph):
            listed += len(paragraph.text)
        else:
            sections[-1][2].append(paragraph)
    kept = [Section(heading, level, tuple(p)) for i, (heading, level, p) in enumerate(sections) if p or i == 0]
    return tuple(kept), listed


def _only_links(paragraph: Paragraph) -> bool:
    text, ends = paragraph.text, [0, *(link.end for link in paragraph.links)]
    starts = [*(link.start for link in paragraph.links), len(text)]
    return len(ends) > 1 and not any(any(map(str.isalnum, text[a:b])) for a, b in zip(ends, starts))


def _blocks(marked: str) -> Iterator[tuple[int, bool, str]]:
    """Headings (with their level), list items and paragraphs as (level or 0, is a list item, marked text)."""
    prose: list[str] = []
    for line in [*marked.split("\n"), ""]:
        line = line.strip()
        heading = _HEADING.fullmatch(line.strip(f" {HOLE}")) if "=" in line else None
        item = ITEM.match(line)
        if prose and (heading or item or not line):
            yield 0, False, " ".join(prose)
            prose = []
        if heading:
            yield len(heading[1]), False, heading[2]
        elif item:
            yield 0, True, line[item.end() :]
        elif line:
            prose.append(line)


def _paragraph(marked: str, targets: list[str]) -> Paragraph:
    """Plain text on one line with single spaces, and where its links are."""
    pieces: list[str] = []
    links: list[Link] = []
    length, spaced, target = 0, True, ""
    for i, piece in enumerate(_LINK.split(one_line(foreign_text.unescape(marked)))):
        if i % 3 == 1:
            target = targets[int(piece)]
            continue
        # The ends of an anchor may be spaces, beside which there may be others.
        if piece := piece.lstrip() if spaced else piece:
            start = length + (piece[0] == " ")
            length, spaced = length + len(piece), piece[-1] == " "
            pieces.append(piece)
            links += [Link(target, start, length - spaced)] if i % 3 == 2 and start < length - spaced else []
    return Paragraph("".join(pieces).rstrip(), tuple(links))


@register
class Dumps(CorpusKind):
    """Articles with sections, links and redirects."""

    name = "dump"
    what = "MediaWiki exports: .xml, .xml.bz2 or .xml.gz"
    setting = "--config.corpus=pages-articles.xml.bz2,…"

    def takes(self, part: str) -> bool:
        """By the ending of the name."""
        return part.lower().endswith(_SUFFIXES)

    def check(self, parts: Sequence[str], options: Options) -> None:
        """Looks at the first page of each file."""
        for path in source_paths.checked("config.corpus", parts, words=["pydocs"]):
            try:
                wikipedia.read_pages(path)
            except UserError as error:
                if self.takes(str(path)):
                    raise
                raise UserError(f"{error}, or documents, whose names end in {document_format.endings()}") from error

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files."""
        return source_paths.existing(_each_once(parts))

    def read(self, parts: Sequence[str], context: corpus_kind.Context) -> Iterator[Any]:
        """The pages of all files. Two dumps may use one id for two pages: ids of the second file begin with '1-'."""
        for number, path in enumerate(_each_once(parts)):
            for page in wikipedia.read_pages(path):
                yield page._replace(id=f"{number}-{page.id}") if number and isinstance(page, Page) else page

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """An article of wikitext."""
        return parse(page)


def _each_once(parts: Sequence[str]) -> list[Path]:
    """The files, each by one of its paths."""
    return list({path.resolve(): path for path in map(Path, parts)}.values())

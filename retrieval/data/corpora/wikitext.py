"""Wikitext to articles: plain paragraphs with links, or the reason why a page is none."""

import collections
import re
from collections.abc import Iterator, Sequence

from retrieval.data.corpora import entities, wikinames
from retrieval.data.corpora.articles import Article, Dropped, Link, Paragraph, Section
from retrieval.data.corpora.wikimarkup import BAR, CLOSE, HOLE, ITEM, OPEN, UNKNOWN, TooHardError, one_line, render
from retrieval.data.corpora.wikipedia import Page

_UNKNOWN = re.compile(f"{UNKNOWN}(\\d+){UNKNOWN}")
_LINK = re.compile(f"{OPEN}(\\d+){BAR}([^{CLOSE}]*){CLOSE}")
# Characters of the prose for which a section of notes is kept: a line on where the notes are is none.
_LEAST_PROSE = 200
_HEADING = re.compile(r"(={1,6})(.+)\1")


def parse(page: Page) -> list[Article | Dropped]:
    """The article of a page, or why there is none; always exactly one item.

    Left out are templates (but those that stand for words, such as measures), tables, references, files, formulas, the
    sections that point elsewhere ('See also', 'References' ..., and 'Notes' unless they are prose), list items that are
    nothing but links, and sections without text. The reasons for a page to be dropped: disambiguation, list, no text,
    too deep, too complex.
    """
    if wikinames.DISAMBIGUATION_TITLE.search(page.title) or wikinames.DISAMBIGUATION.search(page.text):
        return [Dropped(page.title, "disambiguation")]
    if wikinames.LIST_TITLE.match(page.title):
        return [Dropped(page.title, "list")]
    try:
        marked, targets, unknown = render(page)
    except TooHardError as error:
        return [Dropped(page.title, str(error))]
    holes: collections.Counter[str] = collections.Counter()
    sections, listed = _sections(marked, targets, unknown, holes)
    shown = sum(len(p.text) for s in sections for p in s.paragraphs)
    if listed > 4 * shown:
        return [Dropped(page.title, "list")]
    if not shown:
        return [Dropped(page.title, "no text")]
    return [Article(page.id, page.title, sections, url=page.url, holes=holes)]


def _sections(
    marked: str, targets: list[str], unknown: Sequence[str], holes: collections.Counter[str]
) -> tuple[tuple[Section, ...], int]:
    """The sections with text, the lead always among them, and the characters of list items that were left out.

    Args:
      holes: counts the unknown templates in them, by name.
    """
    sections: list[tuple[str, int, list[Paragraph]]] = [("", 1, [])]
    boilerplate = 0  # the level of the section that is being left out
    listed = 0
    for (level, heading), blocks in _headed(marked, targets):
        if level and (not boilerplate or level <= boilerplate):
            boilerplate = level if _is_boilerplate(heading, blocks) else 0
            sections.append((heading, level, []))
        for is_item, paragraph, lost in () if boilerplate else blocks:
            if is_item and _only_links(paragraph):
                listed += len(paragraph.text)
            else:
                sections[-1][2].append(paragraph)
                holes.update(unknown[number] for number in lost)
    kept = [Section(heading, level, tuple(p)) for i, (heading, level, p) in enumerate(sections) if p or i == 0]
    return tuple(kept), listed


# Whether it is an item of a list, and the numbers of unknown templates in it.
_Block = tuple[bool, Paragraph, list[int]]


def _headed(marked: str, targets: list[str]) -> Iterator[tuple[tuple[int, str], list[_Block]]]:
    """Headings (level 0 of what stands before the first), and the list items and paragraphs below each."""
    heading, blocks = (0, ""), []
    for level, is_item, text in _blocks(marked):
        lost = list(map(int, _UNKNOWN.findall(text)))
        paragraph = _paragraph(_UNKNOWN.sub(HOLE, text), targets)
        if level:
            yield heading, blocks
            heading, blocks = (level, paragraph.text), []
        elif any(map(str.isalnum, paragraph.text)):
            blocks.append((is_item, paragraph, lost))
    yield heading, blocks


def _is_boilerplate(heading: str, blocks: list[_Block]) -> bool:
    """Whether a section points elsewhere: by its title, and one of notes or sources also by what it holds."""
    title = heading.casefold()
    if title not in wikinames.NOTE_SECTIONS:
        return title in wikinames.BOILERPLATE_SECTIONS
    prose = sum(len(p.text) for is_item, p, _ in blocks if not (is_item or wikinames.CITATION.search(p.text)))
    return prose < _LEAST_PROSE or 2 * prose < sum(len(p.text) for _, p, _ in blocks)


def _only_links(paragraph: Paragraph) -> bool:
    ends = [0, *(link.end for link in paragraph.links)]
    starts = [*(link.start for link in paragraph.links), len(paragraph.text)]
    between = "".join(paragraph.text[end:start] for end, start in zip(ends, starts))
    return bool(paragraph.links) and not any(map(str.isalnum, between))


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
    text = one_line(entities.unescape(marked))
    if OPEN not in text:
        return Paragraph(text)
    pieces: list[str] = []
    links: list[Link] = []
    length, spaced = 0, True
    parts = _LINK.split(text)
    for i, piece in enumerate(parts):
        if i % 3 == 1:
            continue
        # The ends of an anchor may be spaces, beside which there may be others.
        piece = piece.lstrip() if spaced else piece
        if not piece:
            continue
        start = length + (piece[0] == " ")
        length, spaced = length + len(piece), piece[-1] == " "
        pieces.append(piece)
        if i % 3 == 2 and start < length - spaced:
            links.append(Link(targets[int(parts[i - 1])], start, length - spaced))
    return Paragraph("".join(pieces).rstrip(), tuple(links))

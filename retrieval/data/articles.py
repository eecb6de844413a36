"""What every corpus reader yields: articles, redirects and pages that were left out."""

import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Link:
    """A link in a paragraph: `text[start:end]` is the anchor, `target` the title of an article."""

    target: str
    start: int
    end: int


@dataclasses.dataclass(frozen=True)
class Paragraph:
    """Plain text on one line, without markup, and its outgoing links in order."""

    text: str
    links: tuple[Link, ...] = ()


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading (empty for the lead), its level (1 for the lead, 2 for `==`) and its paragraphs."""

    heading: str
    level: int
    paragraphs: tuple[Paragraph, ...]


@dataclasses.dataclass(frozen=True)
class Article:
    """One page; `sections[0]` is the lead, the text before the first heading (it may hold no paragraph)."""

    id: str
    title: str
    sections: tuple[Section, ...]


@dataclasses.dataclass(frozen=True)
class Redirect:
    """Another title of an article: links to `title` are links to `target`."""

    title: str
    target: str


@dataclasses.dataclass(frozen=True)
class Dropped:
    """A page that was read and left out; `reason` is one of a small set, to be counted."""

    title: str
    reason: str


@dataclasses.dataclass(frozen=True)
class Broken:
    """The source ended before its end (cut off, broken XML ...); `message` says which file and where."""

    message: str


@dataclasses.dataclass(frozen=True)
class KnownItem:
    """A text kept out of the corpus for evaluation: the query's one right answer is the body."""

    name: str
    query: str
    body: str


def to_json(item: Article | Redirect | KnownItem) -> str:
    """One line of JSON; `from_json` is its inverse."""
    if isinstance(item, KnownItem):
        return json.dumps({"known_item": item.name, "query": item.query, "body": item.body}, ensure_ascii=False)
    if isinstance(item, Redirect):
        return json.dumps({"redirect": item.title, "target": item.target}, ensure_ascii=False)
    sections = [
        [
            s.heading,
            s.level,
            [[p.text, [[link.target, link.start, link.end] for link in p.links]] for p in s.paragraphs],
        ]
        for s in item.sections
    ]
    return json.dumps({"id": item.id, "title": item.title, "sections": sections}, ensure_ascii=False)


def from_json(line: str) -> Article | Redirect | KnownItem:
    """Reads what `to_json` wrote."""
    value = json.loads(line)
    if "known_item" in value:
        return KnownItem(value["known_item"], value["query"], value["body"])
    if "redirect" in value:
        return Redirect(value["redirect"], value["target"])
    sections = tuple(
        Section(
            heading, level, tuple(Paragraph(text, tuple(Link(*link) for link in links)) for text, links in paragraphs)
        )
        for heading, level, paragraphs in value["sections"]
    )
    return Article(value["id"], value["title"], sections)

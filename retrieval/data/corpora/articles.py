"""What every corpus reader yields: articles, redirects and pages that were left out."""

import json
from typing import Any, NamedTuple, TypeVar

from retrieval.common.errors import UserError

_T = TypeVar("_T")


class Link(NamedTuple):
    """A link in a paragraph: `text[start:end]` is the anchor, `target` the title of an article."""

    target: str
    start: int
    end: int


class Paragraph(NamedTuple):
    """Plain text on one line, without markup, and its outgoing links in order.

    Code begins with a line feed and has lines, each with four blanks before it.
    """

    text: str
    links: tuple[Link, ...] = ()


class Section(NamedTuple):
    """A heading (empty for the lead), its level (1 for the lead, 2 for `==`) and its paragraphs."""

    heading: str
    level: int
    paragraphs: tuple[Paragraph, ...]


class Article(NamedTuple):
    """One page; `sections[0]` is the lead, the text before the first heading (it may hold no paragraph).

    `address` is what links name it by, where that is not its title. `url` is where it is on the web, '' if unknown.
    """

    id: str
    title: str
    sections: tuple[Section, ...]
    address: str = ""
    url: str = ""

    @property
    def linked_as(self) -> str:
        """The target of links that lead here."""
        return self.address or self.title


class Redirect(NamedTuple):
    """Another title of an article: links to `title` are links to `target`."""

    title: str
    target: str


class Dropped(NamedTuple):
    """A page that was read and left out; `reason` is one of a small set, to be counted."""

    title: str
    reason: str


class Broken(NamedTuple):
    """The source ended before its end (cut off, broken XML ...); `message` says which file and where."""

    message: str


class KnownItem(NamedTuple):
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
    known = {name: value for name, value in (("address", item.address), ("url", item.url)) if value}
    return json.dumps({"id": item.id, "title": item.title, "sections": item.sections, **known}, ensure_ascii=False)


def from_json(line: str | bytes, at: str) -> Article | Redirect | KnownItem:
    """Reads what `to_json` wrote.

    Args:
      at: where the line stands, for the message of an error.

    Raises:
      UserError: the line is something else.
    """
    try:
        return _item(_checked(json.loads(line), dict))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{at}: not an article, a redirect or a known item ({error!r})") from error


def _item(value: dict[str, Any]) -> Article | Redirect | KnownItem:
    if "known_item" in value:
        return KnownItem(*(_text(value[field]) for field in ("known_item", "query", "body")))
    if "redirect" in value:
        return Redirect(_text(value["redirect"]), _text(value["target"]))
    sections = tuple(
        Section(_text(heading), _checked(level, int), tuple(_paragraph(*p) for p in _checked(paragraphs, list)))
        for heading, level, paragraphs in _checked(value["sections"], list)
    )
    address, url = (_text(value.get(name, "")) for name in ("address", "url"))
    return Article(_text(value["id"]), _text(value["title"]), sections, address, url)


def _paragraph(text: str, links: list) -> Paragraph:
    read = tuple(Link(_text(target), _checked(i, int), _checked(j, int)) for target, i, j in _checked(links, list))
    places = [0, *(place for link in read for place in (link.start, link.end)), len(_text(text))]
    if places != sorted(places):
        raise ValueError("links that are not in order, or not in the text")
    return Paragraph(text, read)


def _text(value: str) -> str:
    if not _checked(value, str).isascii():
        value.encode()  # half of a surrogate pair raises a ValueError
    return value


def _checked(value: _T, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value

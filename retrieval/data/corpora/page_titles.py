"""What a page of HTML is called where no <h1> of its text says it: sites put their name into <title> and headings."""

import re
from collections.abc import Sequence

from retrieval.data.corpora.document_format import Block

SITE_NAMES = ("og:site_name", "application-name")  # of <meta>

# "Page - Site", "Page | Site", "Page: Site", "Page (Site)", and the other way around.
_SEPARATOR = re.compile(r"\s+(?:[-–—|·•»]|::)\s+|:\s+|\s+\(")
_LONGEST = 300  # characters of a <title> that is taken apart


def chosen(
    element: str, headings: Sequence[Block], sites: Sequence[str], outside: Sequence[str]
) -> tuple[str, Sequence[Block]]:
    """The title of a page, '' where nothing tells it, and the headings that are no longer needed.

    Args:
      element: its <title>.
      headings: those of its text, in order.
      sites: names of the site that the page says in <meta>.
      outside: headings of level 1 outside of its text: the page's or the site's.
    """
    matches = _SEPARATOR.finditer(element) if len(element) <= _LONGEST else ()
    halves = [(element[: match.start()], element[match.end() :].removesuffix(")")) for match in matches]
    named, beside = set(map(str.casefold, sites)), set(map(str.casefold, outside))
    texts = [block.text.casefold() for block in headings]
    ends = named | {after.casefold() for _, after in halves}
    for title in (element.casefold(), *(before.casefold() for before, _ in halves)):
        if title in texts and title not in named:
            place = texts.index(title)
            return headings[place].text, headings[: place + 1] if ends.issuperset(texts[:place]) else ()
    if first := next((block for block in headings if block.level == 1 and block.text.casefold() not in named), None):
        return first.text, [first]
    for before, after in halves:
        if after.casefold() in named | beside or before.casefold() in beside:
            return before, ()
        if before.casefold() in named:
            return after, ()
    return element or next(iter(outside), ""), ()

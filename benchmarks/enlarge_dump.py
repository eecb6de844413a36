"""A dump several times as large: every page again under other titles, and every link to the copy's own pages.

    python -m benchmarks.enlarge_dump COPIES DUMP.xml.bz2 OUT.xml

How `prepare` behaves as a corpus grows can be seen on it: as many links to a title, as many titles more.
"""

import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from retrieval import files
from retrieval.data.corpora import wikipedia
from retrieval.data.corpora.articles import Redirect
from retrieval.data.corpora.wikipedia import Page

_LINK = re.compile(r"\[\[([^\[\]|#:]+)")
_HEAD = '<mediawiki><siteinfo><namespaces><namespace key="0" case="first-letter" /></namespaces></siteinfo>\n'


def enlarge(dump: Path, copies: int) -> Iterator[str]:
    """The XML of `copies` copies, page by page; the first is the dump itself."""
    yield _HEAD
    for copy in range(copies):
        for number, page in enumerate(wikipedia.read_pages(dump)):
            if isinstance(page, Page):
                yield _page(copy * 10**9 + number, _name(page.title, copy), _rename_links(page.text, copy))
            elif isinstance(page, Redirect):
                text = f"#REDIRECT [[{_name(page.target, copy)}]]"
                yield _page(copy * 10**9 + number, _name(page.title, copy), text)
    yield "</mediawiki>\n"


def _page(id: int, title: str, text: str) -> str:
    revision = f"<revision><id>1</id><text>{escape(text)}</text></revision>"
    return f"<page><title>{escape(title)}</title><ns>0</ns><id>{id}</id>{revision}</page>\n"


def _rename_links(text: str, copy: int) -> str:
    return _LINK.sub(lambda link: f"[[{_name(link[1].strip(), copy)}", text)


def _name(title: str, copy: int) -> str:
    return f"{title} ({copy})" if copy else title


def main(arguments: Sequence[str]) -> None:
    """Writes OUT, whole or not at all."""
    if len(arguments) != 3 or not arguments[0].isdecimal():
        sys.exit("error: expected python -m benchmarks.enlarge_dump COPIES DUMP OUT")
    copies, dump, out = int(arguments[0]), *map(Path, arguments[1:])
    with files.atomic(out) as temporary, temporary.open("w", encoding="utf-8") as file:
        file.writelines(enlarge(dump, copies))


if __name__ == "__main__":
    main(sys.argv[1:])

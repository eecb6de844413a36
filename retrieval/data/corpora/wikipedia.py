"""MediaWiki XML exports, streamed page by page; `wikitext.parse` turns one into an article."""

import bz2
import gzip
import io
import itertools
import re
import unicodedata
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote
from xml.parsers import expat

from retrieval.common.errors import UserError
from retrieval.common.parsing import foreign_text
from retrieval.data.corpora.articles import Broken, Dropped, Redirect

_CHUNK = 1 << 18
_MEBIBYTE = 1 << 20
# Expat keeps a tag or comment whole, and reads it anew with every chunk.
_LONGEST_MARK = 16 * _MEBIBYTE
# Titles, names of namespaces, ids: MediaWiki allows titles of 255 bytes.
_LONGEST_NAME = 1024
_LONGEST_TEXT = 2 * _MEBIBYTE  # as MediaWiki allows; a longer one is dropped unread
_MOST_LEVELS = 100  # of elements within each other: more than any export has

_TITLE = "page/title"
_TEXT = "page/revision/text"
_NAMESPACE = "siteinfo/namespaces/namespace"
_LEAVES = {_TITLE, _TEXT, _NAMESPACE, "siteinfo/base", "siteinfo/case", "page/ns", "page/id", "page/revision/model"}
_HIDDEN_KEYS = {"6", "14"}  # files and categories

_REDIRECT = re.compile(r"\s*+#\s*+redirect\b", re.IGNORECASE)  # in old exports, which have no <redirect>
_FIRST_LINK = re.compile(r"[^\[\n]{0,40}\[\[([^\[\]|\n]+)")
_BEFORE_TITLE = re.compile(r"https?://[^\s/]+/(\S*[/=])?")  # in the address of the main page
_INVISIBLE = re.compile("[\u200e\u200f\u202a-\u202e]")


class Site(NamedTuple):
    """What a wiki says about its titles.

    Attributes:
      namespaces: names of all namespaces but the main one, in lower case.
      first_letter: whether titles begin with a capital letter whatever a link says.
      hidden: names of the namespaces whose links are not shown where they stand (files, categories), in lower case.
      address: what stands before a title in the address of its page, '' where the export does not say.
    """

    namespaces: frozenset[str]
    first_letter: bool
    hidden: frozenset[str] = frozenset()
    address: str = ""


class Page(NamedTuple):
    """One page of the main namespace; `text` is wikitext."""

    id: str
    title: str
    text: str
    site: Site

    @property
    def size(self) -> int:
        """Length of the text in characters: what parsing costs."""
        return len(self.text)

    @property
    def url(self) -> str:
        """Where the page is on the web, '' where the export does not say."""
        return self.site.address and self.site.address + quote(self.title.replace(" ", "_"), safe="/:@!$*(),;'")


def normalize_title(title: str, site: Site) -> str:
    """The one spelling of a title, whichever way a link writes it. It is empty if the title is too long to be one."""
    if len(title) > _LONGEST_NAME:  # the normal form takes time that is quadratic in the length
        return ""
    title = foreign_text.unescape(title)
    title = " ".join(_INVISIBLE.sub("", unicodedata.normalize("NFC", title)).replace("_", " ").split())
    capital = title[:1].upper()
    return capital + title[1:] if site.first_letter and len(capital) == 1 else title


def read_pages(path: Path) -> Iterator[Page | Redirect | Dropped | Broken]:
    """Every page of an export (XML as it is, or in bz2 or gzip, of one or many streams), in constant memory.

    Where the file is cut off or damaged, the pages before that place come first. One `Broken` is last.

    Raises:
      UserError: at once, where no page can be read from it.
    """
    pages = _pages(Path(path))
    first = next(pages, Broken(f"{path}: a MediaWiki export without a page"))
    if isinstance(first, Broken):
        raise UserError(f"{first.message}; expected a MediaWiki export: .xml, .xml.bz2 or .xml.gz")
    return itertools.chain([first], pages)


def _pages(path: Path) -> Iterator[Page | Redirect | Dropped | Broken]:
    export = _Export(path)
    with _open(path) as file:
        try:
            while chunk := file.read1(_CHUNK):  # `read` would lose what it read before damage
                export.parse(chunk)
                yield from export.take()
            export.parser.Parse(b"", True)
        except (expat.ExpatError, EOFError, OSError, zlib.error) as error:
            yield from export.take()
            yield Broken(export.where(error))


def _open(path: Path) -> bz2.BZ2File | gzip.GzipFile | io.BufferedReader:
    with path.open("rb") as file:
        magic = file.read(3)
    if magic == b"BZh":
        return bz2.open(path)
    return gzip.open(path) if magic[:2] == b"\x1f\x8b" else path.open("rb")


class _Export:
    """Expat's callbacks: collect the leaf elements that matter, and make a record at the end of every page."""

    def __init__(self, path: Path):
        self.parser = parser = expat.ParserCreate()
        parser.buffer_text, parser.buffer_size = True, _CHUNK
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = parser.EntityDeclHandler = self._refuse
        self._path = path
        self._records: list[Page | Redirect | Dropped] = []
        self._last_title = ""
        self._fed = 0  # bytes
        self._elements: list[str] = []
        self._leaf = ""  # the element that is being collected: its pieces, the bytes that it may still have
        self._pieces: list[str] = []
        self._room = 0
        self._values: dict[str, str | None] = {}  # of leaves; None for one that is too long
        self._namespaces: dict[str, str] = {}  # name -> number
        self._number = ""  # of the namespace that is being read
        self._site = Site(frozenset(), first_letter=True)

    def parse(self, chunk: bytes) -> None:
        """The next bytes of the file; raises `expat.ExpatError` where they are not XML, or a tag does not end."""
        self.parser.Parse(chunk)
        self._fed += len(chunk)
        if self._fed - self.parser.CurrentByteIndex > _LONGEST_MARK:
            raise expat.ExpatError(f"a tag or comment is longer than {_LONGEST_MARK >> 20} MiB")

    def take(self) -> list[Page | Redirect | Dropped]:
        """The pages that were completed since the last call."""
        records, self._records = self._records, []
        return records

    def where(self, error: Exception) -> str:
        line, byte = self.parser.CurrentLineNumber, self.parser.CurrentByteIndex
        cause = "the compressed file is cut off" if isinstance(error, EOFError) else str(error)
        last = f"the last whole page is '{self._last_title}'" if self._last_title else "no page before it"
        return f"{self._path}: broken at line {line}, byte {byte} of the XML ({cause}); {last}"

    def _refuse(self, *_) -> None:
        raise UserError(f"{self._path}: declares a document type or entities, which no MediaWiki export does; refused")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._elements and name != "mediawiki":
            raise UserError(f"{self._path}: the first element is <{name}>; expected a MediaWiki export (<mediawiki>)")
        self._elements.append(name)
        if len(self._elements) > _MOST_LEVELS:
            raise expat.ExpatError(f"elements are nested more than {_MOST_LEVELS} deep")
        place = "/".join(self._elements[1:])
        self._leaf, self._number = place if place in _LEAVES else "", attributes.get("key", "")
        # A page with its whole history has many revisions, the newest last.
        self._pieces, self._room = [], _LONGEST_TEXT if place == _TEXT else _LONGEST_NAME
        if place == "page/redirect":
            self._values[place] = attributes.get("title", "")

    def _characters(self, text: str) -> None:
        self._room -= len(text.encode()) if self._leaf else 0
        if self._leaf and self._room >= 0:
            self._pieces.append(text)

    def _end(self, name: str) -> None:
        self._elements.pop()
        if self._leaf:
            text = self._values[self._leaf] = "".join(self._pieces) if self._room >= 0 else None
            if self._leaf == _NAMESPACE and text:
                self._namespaces[text.lower().replace("_", " ")] = self._number
            self._leaf = ""
        elif len(self._elements) == 1 and name == "siteinfo":
            address = _BEFORE_TITLE.match(self._values.get("siteinfo/base") or "")
            hidden = frozenset(name for name, key in self._namespaces.items() if key in _HIDDEN_KEYS)
            first_letter = self._values.get("siteinfo/case") != "case-sensitive"
            self._site = Site(frozenset(self._namespaces), first_letter, hidden, address[0] if address else "")
        elif len(self._elements) == 1 and name == "page":
            record = self._record(self._values)
            self._last_title = record.title
            self._records.append(record)
            self._values = {}

    def _record(self, page: Mapping[str, str | None]) -> Page | Redirect | Dropped:
        site = self._site
        title, text = normalize_title(page.get(_TITLE) or "", site), page.get(_TEXT, "")
        named = ":" in title and title.partition(":")[0].strip().lower() in site.namespaces
        number = page.get("page/ns")  # exports before version 0.6 have none
        if named if number is None else number.strip() != "0":
            return Dropped(title, "other namespace")
        if not title:
            return Dropped(title, "no title")
        if target := _redirected(page.get("page/redirect"), text or ""):
            return Redirect(title, normalize_title(target.partition("#")[0].lstrip(" :"), site))
        if text is None:
            return Dropped(title, "too large")
        if page.get("page/revision/model", "wikitext") != "wikitext":
            return Dropped(title, "not wikitext")
        id = (page.get("page/id") or "").strip()
        # Run files hold no other id.
        return Page(id, title, text, site) if len(id.split()) == 1 else Dropped(title, "no id")


def _redirected(named: str | None, text: str) -> str:
    """The title that a page leads on to, or ''.

    Args:
      named: what the export says of it: None without <redirect>, and '' where that names no title, as in old exports.
    """
    if named or (named is None and not _REDIRECT.match(text)):
        return named or ""
    match = _FIRST_LINK.match(text)
    return match[1] if match else ""

"""The formats of one's own documents: `config.corpus` takes files, folders and patterns such as docs/*.md.

A format stands in one file of this package, or of a plugin:

    @register
    class Diary(DocumentFormat):
        name, what, suffixes, example = "diary", "diaries", (".diary",), "Monday. It rained."

        def outline(self, text, id):
            return Outline("", [Block(line) for line in text.splitlines()])
"""

import codecs
import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError, listed
from retrieval.common.parsing import scalars, text_files
from retrieval.data.corpora import addresses, sentences
from retrieval.data.corpora.articles import Article, Dropped, Link, Paragraph, Redirect, Section
from retrieval.data.formats import Format, Formats

_log = logging.getLogger(__name__)

_SHOWN = 40  # characters of a field's name in an error: it may be the text of a row
NOT_IN_IDS = "\t\n\r\v\f\0"  # they end a field, a line or an id of the files that name documents
_ZEROS = 20  # where one character in so many is a zero byte, a file is no text


# What the fields of a record are called where the config does not say.
USUAL = dict(
    id=("_id", "id", "docid"), title=("title",), text=("text", "contents", "body"), url=("url", "metadata.url")
)


class Block(NamedTuple):
    """A heading or a paragraph of a document: `level` is 0 for a paragraph, 1 to 6 for a heading."""

    text: str
    level: int = 0
    links: tuple[Link, ...] = ()


class Outline(NamedTuple):
    """What a document holds: the title that it gives itself, or '', and its blocks in order.

    `left_out` is why it is no document, a reason to be counted; '' where it is one.
    """

    title: str
    blocks: Sequence[Block]
    left_out: str = ""


class Document(NamedTuple):
    """A document before it is parsed.

    Attributes:
      id: the path of its file below the corpus, or what its record says.
      title: what it is called unless it says so itself.
      format: what parses it. Workers get it with the document, and so import the plugin that it may come from.
      url: its address on the web, '' where it says none.
    """

    id: str
    title: str
    text: str
    format: "DocumentFormat"
    url: str = ""

    @property
    def size(self) -> int:
        """Length of the text in characters: what parsing costs."""
        return len(self.text)


class Context(NamedTuple):
    """What a corpus says of a file.

    Attributes:
      id: the path of the file below the corpus.
      fields: 'id', 'title', 'text', 'url' -> the field of a record that has it; '' for the usual ones.
    """

    id: str
    fields: Mapping[str, str]


class DocumentFormat(Format[Path, Context, Document | Dropped]):
    """A format of documents. A format of one's own overrides `outline` or `read`, and what else differs."""

    def read(self, path: Path, context: Context) -> Iterator[Document | Dropped]:
        """The documents of a file: here the file is one."""
        try:
            text = self.decode(text_files.whole(path))
            if _ZEROS * text.count("\0") > len(text):
                raise UnicodeError("it has zero bytes, as UTF-16 has or no text")
            yield Document(context.id, title_of(context.id), text, self)
        except text_files.TooLargeError:
            _log.warning("%s: left out, for it is longer than %s; split it", path, text_files.MOST_SHOWN)
            yield Dropped(str(path), f"documents of more than {text_files.MOST_SHOWN}")
        except (UnicodeError, LookupError) as error:
            _log.warning("%s: left out, for it is not UTF-8 (%s); convert it to UTF-8", path, error)
            yield Dropped(context.id, "not UTF-8")

    def decode(self, data: bytes) -> str:
        """The text of a file: UTF-8, or UTF-16 that begins with a byte order mark, as Windows writes it."""
        is_utf_16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        return data.decode("utf-16" if is_utf_16 else "utf-8-sig")

    def outline(self, text: str, id: str) -> Outline:
        """What a text holds: here its paragraphs, with empty lines between them. Relative links count from `id`."""
        lines = itertools.groupby(text.splitlines(), key=lambda line: not line.strip())
        return Outline("", [Block(_flowing(list(part))) for blank, part in lines if not blank])

    def parse(self, document: Document) -> Iterator[Article | Redirect | Dropped]:
        """The article of a document, after the other addresses by which links may name it."""
        outline = self.outline(document.text, document.id)
        sections = list(_sections(outline.blocks))
        if outline.left_out or not any(section.paragraphs for section in sections):
            yield Dropped(document.id, outline.left_out or "documents without a text")
            return
        yield from (Redirect(address, document.id) for address in addresses.other_addresses(document.id))
        title = one_line(outline.title or document.title)
        yield Article(document.id, title, _with_lead(sections), document.id, document.url)


DOCUMENTS: Formats[DocumentFormat] = Formats("format of documents", "retrieval.data.corpora", "document")
register = DOCUMENTS.add


def format_of(path: Path) -> DocumentFormat | None:
    """The format of a file, by its name; None where it is of another kind. A file may be gzipped."""
    return next((form for form in DOCUMENTS.values() if form.has_suffix(path)), None)


def endings() -> str:
    """How the names of documents end, for errors."""
    return ", ".join(sorted(suffix for form in DOCUMENTS.values() for suffix in form.suffixes))


class Columns(NamedTuple):
    """The fields of a record that have a document's id, title, text and address; '' where there is none."""

    id: str
    title: str
    text: str
    url: str = ""

    def document(self, record: Mapping[str, Any], at: str, id: str, form: DocumentFormat) -> Document:
        """The document of a record that stands at `at`; `id` is for one that says none."""
        *values, url = [record.get(name) if name else None for name in self]
        own_id, title, text = ("" if v is None else scalars.of_value(v, name, at) for name, v in zip(self, values))
        if broken := set(NOT_IN_IDS).intersection(own_id):
            raise UserError(f"{at}: the id {own_id!r} has {broken}, which files of results cannot hold; rename it")
        return Document(own_id or id, title, text, form, url=addresses.checked(url) if isinstance(url, str) else "")


def columns(names: Sequence[str], fields: Mapping[str, str], at: str) -> Columns:
    """Finds the fields of a document among those of a record.

    Raises:
      UserError: there is no text, or not one field of a name that the config gives.
    """
    shown = listed(name[:_SHOWN] for name in names) or "none"
    chosen = {}
    for what, usual in USUAL.items():
        name = chosen[what] = fields.get(what, "") or next((name for name in usual if name in names), "")
        if name and names.count(name) != 1:
            count = "two fields have" if name in names else "no field has"
            raise UserError(f"{at}: {count} the name '{name}'; there are {shown}: mend it, or config.documents.{what}")
    if not chosen["text"]:
        remedy = "name that of the text, --config.documents.text=NAME or in Python fields={'text': NAME}"
        raise UserError(f"{at}: no field text, contents or body, but {shown}: {remedy}; CSV has names in its first row")
    return Columns(**chosen)


class RecordFormat(DocumentFormat):
    """A format of files that have a record for each document: it overrides `records` instead of `read`."""

    def records(self, path: Path, fields: Mapping[str, str]) -> Iterator[tuple[str, Columns, Mapping[str, Any]]]:
        """Where each record stands, for errors, its columns, and itself."""
        raise NotImplementedError(type(self))

    def read(self, path: Path, context: Context) -> Iterator[Document]:
        """The documents of a file, one after the other."""
        for number, (at, chosen, record) in enumerate(self.records(path, context.fields), 1):
            yield chosen.document(record, at, f"{context.id}#{number}", self)


def one_line(text: str) -> str:
    """A text without line breaks, and with one blank where there are several."""
    return " ".join(text.split())


def _flowing(lines: Sequence[str]) -> str:
    """A paragraph as one line. Lines of one without a full stop, such as transcribed speech, are kept apart.

    They are all that tells where its sentences end (`sentences.split`).
    """
    return (" " if any(map(sentences.has_mark, lines)) else "\n").join(map(one_line, lines))


def title_of(id: str) -> str:
    """What a file is called: its name without the ending, or its folder's where the name says nothing."""
    path = Path(id.lower().removesuffix(".gz"))
    stem = Path(id).name[: len(path.stem)]
    if stem.lower() in addresses.OF_FOLDERS and path.parent.name:
        stem = Path(id).parent.name
    return one_line(stem.replace("_", " ").replace("-", " "))


def _sections(blocks: Iterable[Block]) -> Iterator[Section]:
    heading, level, paragraphs = "", 1, []
    for block in blocks:
        if not block.level:
            paragraphs.append(Paragraph(block.text, block.links))
            continue
        yield Section(heading, level, tuple(paragraphs))
        heading, level, paragraphs = block.text, block.level + 1, []
    yield Section(heading, level, tuple(paragraphs))


def _with_lead(sections: Sequence[Section]) -> tuple[Section, ...]:
    """The sections, with the first one that has a text as the lead: BFS asks with its sentences."""
    first = next(number for number, section in enumerate(sections) if section.paragraphs)
    return (sections[first]._replace(level=1), *sections[first + 1 :])

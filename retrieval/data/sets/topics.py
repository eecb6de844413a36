"""TREC topics: a number and what is asked, as XML, or as the SGML of old tracks whose tags are not closed.

    <top> <num> Number: 301 <title> organized crime <desc> ... </top>
    <topic number="1"><query>coronavirus origin</query></topic>
    <topic><number>101</number><query>does tape help</query></topic>
    <topic number="2">A text alone.</topic>

What a parser of XML takes is read by one. It needs no root. All else is read by its tags.
"""

import collections
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from retrieval import text_files
from retrieval.data.corpora import entities
from retrieval.data.sets import beir
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

_TOPICS = ("top", "topic", "query")  # the outermost of these: Indri asks by <query> alone
_INLINE = ("b", "i", "u", "em", "strong", "sub", "sup")  # within a text: 'H<sub>2</sub>O'
_ALONE = "text alone"  # no name of an element
# Where a number and a text may be, the first that is there; @ is an attribute of the topic.
_NUMBERS = ("@number", "@num", "num", "number", "@id", "@qid", "qid", "id", "identifier")
_TEXTS = ("title", "query", "question", "desc", "description", "text", "content", _ALONE)
_ASKED = _TEXTS[:2]  # those that hold a query in most tracks

_TOPIC = re.compile(r"<top(?:ic)?(\s[^<>]*)?>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""(\w+)\s*=\s*["']([^"']*)["']""")
_TAG = re.compile(r"</?(\w+)(?:\s[^<>]*)?>")
_OF_LETTERS = re.compile(rf"</?(?:{'|'.join(_INLINE)})>", re.IGNORECASE)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_LABEL = re.compile(r"^\s*(number|topic|title|description)\s*:", re.IGNORECASE)
_DECLARED = re.compile(r"\s*(?:<\?xml[^>]*\?>)?\s*(?:<!DOCTYPE[^>\[]*>)?")
_NO_ROOT = expat.errors.codes[expat.errors.XML_ERROR_JUNK_AFTER_DOC_ELEMENT]


class _Topic(NamedTuple):
    """Where a topic begins, and the text of each of its elements and attributes; of equal ones the first counts."""

    at: str
    fields: dict[str, str]


def read(path: Path) -> dict[str, str]:
    """The number and the title of each topic: what TREC calls a short query. In XML it may be the <query>.

    Where a topic has neither, its <question>, its <desc> or its text alone is what is asked; the log says so. "Number:"
    or "Topic:" may stand before what they name.

    Raises:
      UserError: a topic has no number or no text, or two have the same number; with the line where it begins.
    """
    topics: dict[str, str] = {}
    others = collections.Counter[str]()
    for at, fields in _of_xml(path) or _of_tags(path):
        number, text = (next((name for name in names if fields.get(name)), "") for names in (_NUMBERS, _TEXTS))
        for name, field in (("num", number), ("title", text)):
            if not field:
                raise UserError(f"{at}: the topic has no <{name}>, or nothing in it; write one, or drop the topic")
        id = beir.check_id(fields[number], "number", at)
        if id in topics:
            raise UserError(f"{at}: the number '{id}' is there twice; numbers must be distinct")
        topics[id] = fields[text]
        others[text] += text not in _ASKED
    if not topics:
        raise UserError(f"{path}: no topic in it; <top> <num> Number: 1 <title> words </top> is needed")
    for name, count in others.items():
        if count:
            _log.warning("%s: %d topics have no <title> and no <query>: asked is their %s", path, count, name)
    return topics


def _of_xml(path: Path) -> list[_Topic]:
    """The topics of a file of XML, in whatever encoding it declares; none where a parser does not take it."""
    content = text_files.whole(path)
    lead = len(content) - len(content.lstrip())
    line = content[:lead].count(b"\n")
    try:
        return _parsed(content[lead:], path, line)
    except expat.ExpatError as error:
        if error.code != _NO_ROOT:
            return []
    text = "\n".join(text_files.decoded(piece, str(path)) for piece in text_files.byte_lines(path))
    text = _DECLARED.sub(lambda found: "\n" * found[0].count("\n"), text, count=1)
    try:
        return _parsed(f"<topics>{text}</topics>".encode(), path, before=0)
    except expat.ExpatError:
        return []


def _parsed(content: bytes, path: Path, before: int) -> list[_Topic]:
    """The topics of a document.

    Args:
      before: lines of the file before it.

    Raises:
      UserError: it declares entities.
      expat.ExpatError: it is no XML.
    """
    parser, found, open_names = expat.ParserCreate(), list[_Topic](), list[str]()
    parser.buffer_text = True
    texts: dict[str, list[str]] = {}

    def start(name: str, attributes: dict[str, str]) -> None:
        name = name.rpartition(":")[2].lower()
        if open_names and name not in _INLINE:
            open_names.append(name)
        elif not open_names and name in _TOPICS:
            open_names.append(name)
            texts.clear()
            fields = {f"@{attribute.lower()}": " ".join(value.split()) for attribute, value in attributes.items()}
            found.append(_Topic(f"{path}, line {before + parser.CurrentLineNumber}", fields))

    def characters(text: str) -> None:
        if open_names:
            texts.setdefault(open_names[1] if len(open_names) > 1 else _ALONE, []).append(text)

    def end(name: str) -> None:
        if open_names and name.rpartition(":")[2].lower() == open_names[-1]:
            depth, name = len(open_names), open_names.pop()
            if depth <= 2 and (text := _cleaned("".join(texts.pop(_ALONE if depth == 1 else name, [])))):
                found[-1].fields.setdefault(_ALONE if depth == 1 else name, text)

    def refuse(name: str, *_: object) -> None:
        raise UserError(f"{path}: declares the entity '{name}', and none is read; write its text in its place")

    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, characters
    parser.EntityDeclHandler = refuse
    parser.Parse(content, True)
    return found


def _of_tags(path: Path) -> Iterator[_Topic]:
    """The topics of a file whose tags may be closed or not: each holds what follows it up to the next tag."""
    began, attributes, block = "", "", []
    for at, line in text_files.lines(path):
        before, *topics = _TOPIC.split(line)
        block.append(before)
        for of_next, rest in zip(topics[::2], topics[1::2]):
            if began:
                yield _Topic(began, _tagged(attributes, "\n".join(block)))
            began, attributes, block = at, of_next or "", [rest]
    if began:
        yield _Topic(began, _tagged(attributes, "\n".join(block)))


def _tagged(attributes: str, text: str) -> dict[str, str]:
    fields = {f"@{name.lower()}": " ".join(value.split()) for name, value in _ATTRIBUTE.findall(attributes)}
    alone, *parts = _TAG.split(_OF_LETTERS.sub("", _CDATA.sub(r"\1", text)))
    for tag, value in zip([_ALONE, *parts[::2]], [alone, *parts[1::2]]):
        if value := _cleaned(entities.unescape(value)):
            fields.setdefault(tag.lower(), value)
    return fields


def _cleaned(text: str) -> str:
    return " ".join(_LABEL.sub("", text, count=1).split())

"""TREC topics: a number and what is asked, in the SGML of old tracks whose tags are not closed, or in XML.

    <top> <num> Number: 301 <title> organized crime <desc> ... </top>
    <topic number="1"><query>coronavirus origin</query></topic>
    <topic><number>101</number><query>does tape help</query></topic>
    <topic number="2">A text alone.</topic>

Both are read by their tags: each holds what follows it up to the next one. XML needs no root.
"""

import collections
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from retrieval.data.corpora import entities
from retrieval.data.sets import beir
from retrieval.errors import UserError
from retrieval.parsing import text_files

_log = logging.getLogger(__name__)

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
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


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
    for at, fields in _topics(path):
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


def _topics(path: Path) -> Iterator[_Topic]:
    """The topics of a file."""
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
    alone, *parts = _TAG.split(_OF_LETTERS.sub("", _CDATA.sub(r"\1", _COMMENT.sub("", text))))
    for tag, value in zip([_ALONE, *parts[::2]], [alone, *parts[1::2]]):
        if value := _cleaned(entities.unescape(value)):
            fields.setdefault(tag.lower(), value)
    return fields


def _cleaned(text: str) -> str:
    return " ".join(_LABEL.sub("", text, count=1).split())

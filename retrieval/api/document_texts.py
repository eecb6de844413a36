"""Documents as people give them: texts, records, files and folders."""

import functools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from retrieval.data.corpora import articles, corpus_kind, passages, sources
from retrieval.data.corpora.articles import Article
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards import shard_steps
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, no_path

Document = str | Mapping[str, str]

_IDS = ("id", "_id")
_NO_FIELDS = {"documents.id": "", "documents.title": "", "documents.text": ""}
_NOT_LEFT_OUT = ("pages read", "redirects")  # of what reading counts

_log = logging.getLogger(__name__)


def check_list(documents: object) -> None:
    """Checks that documents are a list of them: in a loop a text has letters, and a record or a table names.

    Raises:
      UserError: they are one text, one record or a table.
    """
    if isinstance(documents, str | Mapping):
        one = "text" if isinstance(documents, str) else "record"
        raise UserError(f"a list of texts or records is needed, and this is one {one}; write [{one}]")
    if hasattr(documents, "columns"):
        raise UserError(
            "a list of texts or records is needed, and this is a table; write documents.to_dict('records') with "
            "pandas, to_dicts() with polars, to_pylist() with Arrow"
        )


def candidates(documents: Iterable[Document]) -> list[Candidate]:
    """Texts and records as candidates. A record has a 'text', and may have a 'title' and an 'id'.

    Raises:
      UserError: they are no list, one is neither, or two have one id; with its place.
    """
    check_list(documents)
    made = [_candidate(document, place) for place, document in enumerate(documents)]
    seen: set[str] = set()
    for place, candidate in enumerate(made):
        if candidate.id in seen:
            raise UserError(f"document {place}: the id '{candidate.id}' is there twice; ids must be distinct")
        seen.add(candidate.id)
    return made


def checked_text(text: object, what: str) -> str:
    """A text, called `what`, that a tokenizer takes.

    Raises:
      UserError: it is none, or has half of a surrogate pair, which no encoding can hold.
    """
    if not isinstance(text, str):
        raise UserError(f"{what}: a text is needed, not {text!r}"[:300])
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise UserError(f"{what} has half of a surrogate pair; decode it as UTF-16 or UTF-8 first")
    return text


def read_passages(path: Path, vocabulary: Vocabulary, limits: Limits) -> Iterator[Candidate]:
    """The passages of the documents of a file or a folder, as the stage `prepare` cuts them.

    What is left out is counted in the log.

    Raises:
      UserError: there is no document there, a record is broken, or two have one id.
    """
    if not path.exists() and not any(path.parent.glob(path.name)):
        raise no_path(path, "documents")
    kind, parts = corpus_kind.kind_of_parts([str(path)])
    kind.check(parts, _NO_FIELDS)
    pages, parse = kind.read(parts, _NO_FIELDS, Path()), functools.partial(kind.parse, options=_NO_FIELDS)
    seen, left_out = set(), Counter()
    for tag, what, value in sources.parse_pages(pages, parse):
        if tag == shard_steps.COUNT:
            left_out[what] += value
            continue
        item = articles.from_json(value, str(path))
        if isinstance(item, Article):
            if item.id in seen:
                raise UserError(f"{path}: two documents have the id '{item.id}'; give them ids of their own")
            seen.add(item.id)
            cut = passages.cut(item, vocabulary, limits)[1]
            left_out["documents without a passage (too short)"] += not cut
            yield from (Candidate(each.id, item.title, each.text, each.section) for each in cut)
    told = [f"{what}: {count:,}" for what, count in left_out.items() if count and what not in _NOT_LEFT_OUT]
    if told:
        _log.warning("%s: %s", path, "; ".join(told))


def _candidate(document: Document, place: int) -> Candidate:
    if isinstance(document, str):
        return Candidate(str(place), "", checked_text(document, f"document {place}"))
    if not isinstance(document, Mapping) or not isinstance(document.get("text"), str):
        raise UserError(f"document {place}: a text or a record with a 'text' is needed, not {document!r}"[:300])
    id = next((document[name] for name in _IDS if not _is_missing(document.get(name))), place)
    title, section = ("" if _is_missing(value := document.get(name)) else str(value) for name in ("title", "section"))
    text = checked_text(document["text"], f"document {place}")
    return Candidate(str(id), checked_text(title, f"document {place}"), text, section)


def _is_missing(value: object) -> bool:
    """Whether a field of a record is empty: pandas writes NaN there, which does not equal itself."""
    return value is None or value != value

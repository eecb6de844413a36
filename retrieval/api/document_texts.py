"""Documents as people give them: texts, records, files and folders."""

import functools
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError, no_path
from retrieval.data.corpora import addresses, articles, corpus_kind, own_documents, passages
from retrieval.data.corpora.articles import Article
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.data.shards import shard_steps
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking.collection import Collection

Document = str | Mapping[str, str]

_IDS = ("_id", "id", "docid")
_LIMITS = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
_NOT_LEFT_OUT = ("pages read", "redirects")  # of what reading counts

_log = logging.getLogger(__name__)


def is_list(texts: object) -> bool:
    """Whether a loop over something goes over its texts, not over the names of a record or of a table's columns."""
    return isinstance(texts, Iterable) and not (isinstance(texts, str | Mapping) or hasattr(texts, "columns"))


def candidates(documents: Iterable[Document], are_distinct: bool = False) -> list[Candidate]:
    """Texts and records as candidates. A record has a 'text', and may have a 'title' and an 'id'.

    Args:
      are_distinct: whether no two may have one id.

    Raises:
      UserError: they are no list, or one is neither or has the id of another; with its place.
    """
    if not is_list(documents):  # in a loop a text has letters, and a record or a table names
        kind = type(documents).__name__
        raise UserError(f"a list of texts or records is needed, not {kind}: [document], or table.to_dict('records')")
    made = [_candidate(document, place) for place, document in enumerate(documents)]
    ids: set[str] = set()
    for place, candidate in enumerate(made if are_distinct else ()):
        if candidate.id in ids:
            raise UserError(f"document {place}: the id '{candidate.id}' is there twice; by default it is the place")
        ids.add(candidate.id)
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


def checked_queries(queries: Sequence[str]) -> list[str]:
    """Queries that a tokenizer takes.

    Raises:
      UserError: they are no list, or one is no such text; with its place.
    """
    if not is_list(queries):
        raise UserError("encode_query takes a text or a list of texts; of a table it is table['query'].tolist()")
    return [checked_text(query, f"query {place}") for place, query in enumerate(queries)]


def check_query(query: str) -> None:
    """Checks that a query is a text with something in it."""
    if not checked_text(query, "the query").strip():
        raise UserError("the query is empty")


def read_passages(path: Path, vocabulary: Vocabulary, prepared: ConfigDict) -> Iterator[Candidate]:
    """The passages of a file or a folder, as the stage `prepare` cuts them, each with the address of its document.

    What is left out is counted in the log.

    Args:
      prepared: says what records call their fields, and how passages are cut.

    Raises:
      UserError: there is no document there, a record is broken, or two have one id.
    """
    if not _is_there(path):
        raise no_path(path, "documents")
    limits, documents = Limits(*(prepared.prepare[name] for name in _LIMITS)), prepared.documents
    kind, parts = corpus_kind.kind_of_parts([str(path)])
    options = {f"documents.{name}": documents[name] for name in ("id", "title", "text", "url")}
    kind.check(parts, options)
    pages, parse = kind.read(parts, corpus_kind.Context(options)), functools.partial(kind.parse, options=options)
    ids, left_out, examples = set(), Counter(), {}
    for tag, what, value in corpus_kind.parse_pages(pages, parse):
        if tag == shard_steps.COUNT:
            left_out[what] += value
        elif tag == shard_steps.EXAMPLE:
            examples.setdefault(what, f", such as {value}")
        elif isinstance(item := articles.from_json(value, str(path)), Article):
            if item.id in ids:
                raise UserError(f"{path}: two documents have the id '{item.id}'; give them ids of their own")
            ids.add(item.id)
            own = passages.cut(item, vocabulary, limits)[1]
            left_out["documents without a passage (too short)"] += not own
            url = addresses.of_document(documents.base_url, item.url, item.id, item.title)
            yield from (Candidate(each.id, item.title, each.text, each.section, url=url) for each in own)
    kinds = [(what, count) for what, count in left_out.items() if count and what not in _NOT_LEFT_OUT]
    if counts := [f"{what}: {count:,}{examples.get(what, '')}" for what, count in kinds]:
        _log.warning("%s: %s", path, "; ".join(counts))


class WholeDocument(NamedTuple):
    """A document of a run, by its passages in order."""

    id: str
    title: str
    url: str
    passages: list[Candidate]


class OwnPassages(RowTexts):
    """The passages that a run searches, each with the address of its document."""

    def __init__(self, paths: Sequence[Path], base: str, document_of: Callable[[str], str]):
        """Args:
          base: as `addresses.of_document` has it.
          document_of: the id of a passage to that of its document, which is the same where nothing was cut.

        Raises:
          UserError: a file is missing, or cannot be read.
        """
        super().__init__(paths, lambda of: addresses.of_document(base, of.url, document_of(of.id), of.title))
        self._document_of = document_of

    def document(self, id: str) -> WholeDocument | None:
        """The document that has an id, or the one whose passage has it; None where there is none."""
        is_cut, one = (own := self._document_of(id)) != id, self.find(id)
        passages = (self.numbered(own) if is_cut else [one]) if one else self.numbered(id)
        first = passages[0] if passages else None
        return first and WholeDocument(self._document_of(first.id), first.title, first.url, passages)


def own_passages(run: Run, collection: Collection) -> OwnPassages:
    """The passages that a run searches."""
    base = run.config.documents.base_url or run.owner("prepare").config.documents.base_url
    # The id of a passage that `prepare` has cut has its number behind that of the document.
    return OwnPassages(collection.files, base, (lambda id: id.rpartition(":")[0]) if run.prepares else str)


def _is_there(path: Path) -> bool:
    """Whether there is such a file, a folder, or what a pattern fits."""
    try:
        return path.exists() or bool(own_documents.places(str(path)))
    except OSError as error:
        raise UserError(f"'{str(path)[:60]}…' is no path ({error.strerror}); for one text write [text]") from error


def _candidate(document: Document, place: int) -> Candidate:
    record = {"text": document} if isinstance(document, str) else document
    if not isinstance(record, Mapping) or not isinstance(record.get("text"), str):
        raise UserError(f"document {place}: a text or a record with a 'text' is needed, not {document!r}"[:300])
    text = checked_text(record["text"], f"document {place}")
    id, title, section = (_value(record, names, place) for names in (_IDS, ("title",), ("section",)))
    return Candidate(id or str(place), title, text, section, url=addresses.of_record(record))


def _value(document: Mapping[str, object], names: Sequence[str], place: int) -> str:
    """The first of some fields of a record that is there, a text or a number; '' where none is."""
    values = (document[name] for name in names if document.get(name) is not None)
    value = next((value for value in values if not isinstance(value, str) or value), "")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise UserError(f"document {place}: '{names[0]}' is {value!r}, where a text belongs"[:300])
    return checked_text(str(value), f"document {place}: '{names[0]}'")

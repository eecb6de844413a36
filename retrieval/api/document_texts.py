"""Documents as people give them: texts, records, files and folders."""

import dataclasses
import functools
import logging
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.data.corpora import articles, corpus_kind, document_format, passages, sources, urls
from retrieval.data.corpora.articles import Article
from retrieval.data.corpora.corpus_kind import CorpusKind, Options
from retrieval.data.corpora.document_format import DOCUMENTS
from retrieval.data.corpora.kinds import documents_kind
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.sets.row_texts import RowTexts
from retrieval.data.shards import shard_steps
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, no_path, unknown_name
from retrieval.pipeline.run import Run
from retrieval.stages.collection import Collection

Document = str | Mapping[str, str]

_IDS = ("id", "_id")
_FIELDS = ("id", "title", "text", "url")
_NOT_LEFT_OUT = ("pages read", "redirects")  # of what reading counts

_log = logging.getLogger(__name__)


def is_list(texts: object) -> bool:
    """Whether a loop over something goes over its texts, not over the names of a record or of a table's columns."""
    return isinstance(texts, Iterable) and not (isinstance(texts, str | Mapping) or hasattr(texts, "columns"))


def check_list(documents: object) -> None:
    """Checks that documents are a list of them: in a loop a text has letters, and a record or a table names.

    Raises:
      UserError: they are one text, one record, a table, or nothing to loop over.
    """
    if not is_list(documents):
        raise UserError(
            f"a list of texts or records is needed, not {type(documents).__name__}: write [document], or of a table "
            "documents.to_dict('records')"
        )


def candidates(documents: Iterable[Document]) -> list[Candidate]:
    """Texts and records as candidates. A record has a 'text', and may have a 'title' and an 'id'.

    Ids may be there twice: see `check_ids`.

    Raises:
      UserError: they are no list, or one is neither; with its place.
    """
    check_list(documents)
    return [_candidate(document, place) for place, document in enumerate(documents)]


def check_ids(candidates: Sequence[Candidate]) -> None:
    """Checks the ids of candidates that are to be found by them.

    Raises:
      UserError: two have one id.
    """
    seen: set[str] = set()
    for place, candidate in enumerate(candidates):
        if candidate.id in seen:
            raise UserError(
                f"document {place}: the id '{candidate.id}' is there twice; ids must be distinct, and where there is "
                "none the place is one"
            )
        seen.add(candidate.id)


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


def check_fields(fields: Mapping[str, str]) -> None:
    """Checks what a call says of the fields of records.

    Raises:
      UserError: it names others than 'id', 'title', 'text' and 'url'.
    """
    if unknown := [name for name in fields if name not in _FIELDS]:
        raise unknown_name("field of a document", unknown[0], _FIELDS)


class Cut(NamedTuple):
    """How documents are cut into passages."""

    vocabulary: Vocabulary
    limits: Limits

    def passages(self, article: Article) -> list[Candidate]:
        """The passages of an article, each with the address that the article has."""
        cut = passages.cut(article, self.vocabulary, self.limits)[1]
        return [Candidate(each.id, article.title, each.text, each.section, url=article.url) for each in cut]


def limits_of(prepared: ConfigDict) -> Limits:
    """How a config cuts passages."""
    names = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
    return Limits(*(prepared.prepare[name] for name in names))


def read_passages(path: Path, cut: Cut, fields: Mapping[str, str]) -> Iterator[Candidate]:
    """The passages of `read_documents`, each with the address of its document.

    Args:
      fields: as there; and the 'base_url' of documents without an address.
    """
    for id, own in read_documents(path, cut, fields):
        for each in own:
            yield dataclasses.replace(each, url=urls.of_document(fields.get("base_url", ""), each.url, id, each.title))


def read_documents(path: Path, cut: Cut, fields: Mapping[str, str]) -> Iterator[tuple[str, list[Candidate]]]:
    """The documents of a file or a folder by their ids, as the stage `prepare` cuts them into passages.

    What is left out is counted in the log.

    Args:
      fields: the names that records have for 'id', 'title', 'text' and 'url', where they are not the usual ones.

    Raises:
      UserError: there is no document there, a record is broken, or two have one id.
    """
    kind, parts, options = check_documents(path, fields)
    pages, parse = kind.read(parts, options, Path()), functools.partial(kind.parse, options=options)
    seen, left_out, examples = set(), Counter(), {}
    for tag, what, value in sources.parse_pages(pages, parse):
        if tag == shard_steps.COUNT:
            left_out[what] += value
            continue
        if tag == shard_steps.EXAMPLE:
            examples.setdefault(what, f", such as {value}")
            continue
        item = articles.from_json(value, str(path))
        if isinstance(item, Article):
            if item.id in seen:
                raise UserError(f"{path}: two documents have the id '{item.id}'; give them ids of their own")
            seen.add(item.id)
            own = cut.passages(item)
            left_out["documents without a passage (too short)"] += not own
            yield from [(item.id, own)] if own else []
    kinds = [(what, count) for what, count in left_out.items() if count and what not in _NOT_LEFT_OUT]
    told = [f"{what}: {count:,}{examples.get(what, '')}" for what, count in kinds]
    if told:
        _log.warning("%s: %s", path, "; ".join(told))


def documents_with_ids(documents: Iterable[Document], cut: Cut) -> dict[str, list[Candidate]]:
    """Records by their ids, cut into passages as a record of JSON lines is.

    Raises:
      UserError: one has no id or no text, two have one id, or a text is too short for a passage; with its place.
    """
    check_list(documents)
    found: dict[str, list[Candidate]] = {}
    for place, given in enumerate(documents):
        at = f"document {place}"
        record = _record(given, at)
        document = document_format.columns(record, {}, at).document(record, at, "", DOCUMENTS["jsonl"])
        _check_new_id(document.id, found, at)
        article = next((item for item in document.format.parse(document) if isinstance(item, Article)), None)
        own = cut.passages(article) if article else []
        if not own:
            why = f"fewer than config.prepare.least_passage={cut.limits.least} tokens" if article else "no text"
            raise UserError(f"{at}: '{document.id}' has {why}: leave it out, or delete it where it was there")
        found[document.id] = own
    return found


def whole_with_ids(documents: Iterable[Document]) -> dict[str, list[Candidate]]:
    """Records by their ids, each as one passage.

    Raises:
      UserError: one has no id or no text, or two have one id; with its place.
    """
    check_list(documents)
    found: dict[str, list[Candidate]] = {}
    for place, given in enumerate(documents):
        at = f"document {place}"
        record = _record(given, at)
        each = _candidate(record, place)
        _check_new_id(each.id if any(record.get(name) not in (None, "") for name in _IDS) else "", found, at)
        if not (each.title.strip() or each.text.strip()):
            raise UserError(f"{at}: '{each.id}' has no text: leave it out, or delete it where it was there")
        found[each.id] = [each]
    return found


def _record(document: Document, at: str) -> Mapping[str, str]:
    if not isinstance(document, Mapping):
        raise UserError(f"{at}: a record with an 'id' and a 'text' is needed, not {document!r}"[:300])
    return document


def _check_new_id(id: str, known: Container[str], at: str) -> None:
    if not id or id in known:
        why = f"the id '{id}' is there twice" if id else "it has no 'id'"
        raise UserError(f"{at}: {why}; documents are replaced and deleted by their ids, so each needs one of its own")


def check_documents(path: Path, fields: Mapping[str, str]) -> tuple[CorpusKind, Sequence[str], Options]:
    """Checks a file or a folder of documents; returns their kind, its parts, and its options.

    Args:
      fields: as of `read_documents`.

    Raises:
      UserError: there is no document there, or the first record of a file is broken.
    """
    if not _is_there(path):
        raise no_path(path, "documents")
    options = {f"documents.{name}": fields.get(name, "") for name in _FIELDS}
    kind, parts = corpus_kind.kind_of_parts([str(path)])
    kind.check(parts, options)
    return kind, parts, options


def own_passages(run: Run, collection: Collection) -> RowTexts:
    """The passages that a run searches, each with the address of its document."""
    return RowTexts(collection.files, address_of(run))


def address_of(run: Run) -> Callable[[Candidate], str]:
    """Gives the address of a passage of a run: that of its document."""
    prepared = run.holder("prepare").config
    base, are_cut = run.config.documents.base_url or prepared.documents.base_url, run.prepares

    def of(passage: Candidate) -> str:
        id = document_of(passage.id) if are_cut else passage.id
        return urls.of_document(base, passage.url, id, passage.title)

    return of


def document_of(passage_id: str) -> str:
    """The document of a passage that `prepare` has cut: a passage's id has its number behind it."""
    return passage_id.rpartition(":")[0]


def _is_there(path: Path) -> bool:
    """Whether there is such a file, a folder, or what a pattern fits.

    Raises:
      UserError: it can be no path: a text was given.
    """
    try:
        return path.exists() or bool(documents_kind.places(str(path)))
    except OSError as error:
        raise UserError(f"'{str(path)[:60]}…' is no path ({error.strerror}); for one text write [text]") from error


def _candidate(document: Document, place: int) -> Candidate:
    if isinstance(document, str):
        return Candidate(str(place), "", checked_text(document, f"document {place}"))
    if not isinstance(document, Mapping) or not isinstance(document.get("text"), str):
        raise UserError(f"document {place}: a text or a record with a 'text' is needed, not {document!r}"[:300])
    text = checked_text(document["text"], f"document {place}")
    id, title, section = (_value(document, names, place) for names in (_IDS, ("title",), ("section",)))
    return Candidate(id or str(place), title, text, section, url=urls.of_record(document))


def _value(document: Mapping[str, object], names: Sequence[str], place: int) -> str:
    """The first of some fields of a record that is there, a text or a number; '' where none is."""
    value = next((document[name] for name in names if document.get(name) not in (None, "")), "")
    if isinstance(value, bool) or not isinstance(value, str | int | np.integer):
        raise UserError(f"document {place}: '{names[0]}' is {value!r}, where a text belongs"[:300])
    return checked_text(str(value), f"document {place}: '{names[0]}'")

"""Documents as people give them: texts, records, files and folders."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from retrieval.data.corpora import articles, passages, sources
from retrieval.data.corpora.articles import Article
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError

Document = str | Mapping[str, str]

_IDS = ("id", "_id")
_NO_FIELDS = {"documents.id": "", "documents.title": "", "documents.text": ""}


def candidates(documents: Sequence[Document]) -> list[Candidate]:
    """Texts and records as candidates. A record has a 'text', and may have a 'title' and an 'id'.

    Raises:
      UserError: one is neither, or two have one id; with its place.
    """
    if isinstance(documents, str):
        raise UserError("a list of texts or records is needed, and this is one text; write [text]")
    made = [_candidate(document, place) for place, document in enumerate(documents)]
    seen: set[str] = set()
    for place, candidate in enumerate(made):
        if candidate.id in seen:
            raise UserError(f"document {place}: the id '{candidate.id}' is there twice; ids must be distinct")
        seen.add(candidate.id)
    return made


def read_passages(path: Path, vocabulary: Vocabulary, limits: Limits) -> Iterator[Candidate]:
    """The passages of the documents of a file or a folder, as the stage `prepare` cuts them.

    Raises:
      UserError: there is no document there, or a record is broken.
    """
    source = sources.open_source(str(path), _NO_FIELDS, Path())
    for tag, _, value in sources.parse_pages(source.read(), source.parse):
        item = articles.from_json(value, str(path)) if tag == "article" else None
        if isinstance(item, Article):
            for passage in passages.cut(item, vocabulary, limits)[1]:
                yield Candidate(passage.id, item.title, passage.text, passage.section)


def _candidate(document: Document, place: int) -> Candidate:
    if isinstance(document, str):
        return Candidate(str(place), "", document)
    if not isinstance(document, Mapping) or not isinstance(document.get("text"), str):
        raise UserError(f"document {place}: a text or a record with a 'text' is needed, not {document!r}"[:300])
    id = next((document[name] for name in _IDS if name in document), place)
    title, section = (str(document.get(name) or "") for name in ("title", "section"))
    return Candidate(str(id), title, document["text"], section)

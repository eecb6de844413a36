"""JSON lines: a record is a document, with BEIR's fields or those that the config names."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from retrieval.data.corpora.document_format import Document, DocumentFormat, columns, register
from retrieval.errors import UserError
from retrieval.parsing import foreign_json, text_files


@register
class JsonDocuments(DocumentFormat):
    """Lines of a file may have different fields."""

    name = "jsonl"
    what = "JSON lines, a document each: BEIR's fields, or those that config.documents names"
    suffixes = (".jsonl", ".ndjson")
    example = '{"_id": "d1", "title": "T", "text": "words"}'

    def read(self, path: Path, id: str, fields: Mapping[str, str]) -> Iterator[Document]:
        """The records of a file, one after the other."""
        for number, (at, line) in enumerate(text_files.lines(path), 1):
            record = foreign_json.parse(line, at, "mend the line")
            if not isinstance(record, dict):
                raise UserError(f"{at}: {type(record).__name__}, where an object with fields belongs; mend the line")
            if isinstance(metadata := record.get("metadata"), dict):  # BEIR's
                record = {f"metadata.{name}": value for name, value in metadata.items()} | record
            yield columns(record, fields, at).document(record, at, f"{id}#{number}", self)

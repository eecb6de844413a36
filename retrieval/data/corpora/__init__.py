"""Documents, and their formats."""

NAMES = {
    "document": {"document_records": "jsonl parquet csv", "pages": "html markdown text"},
    "corpus": {"pydocs": "pydocs", "own_documents": "documents", "wikitext": "dump"},
}

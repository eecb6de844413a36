"""Labelled examples, and their formats."""

NAMES = {"format": {"dpr": "dpr", "record_files": "jsonl parquet csv", "triples": "triples id_triples"}}

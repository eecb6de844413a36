"""Evaluation sets, and their formats."""

NAMES = {
    "set": {
        "set_format": "beir",
        "reqa": "reqa squad",
        "trec": "trec judgements msmarco",
        "held_out_texts": "sentences pydocs",
        "ir_sets": "ir",
        "labelled_sets": "labelled",
        "natural_questions": "nq",
        "parquet_sets": "parquet",
        "qa": "qa qa_dev",
    }
}

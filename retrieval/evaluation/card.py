"""The model card of an exported model: a README.md with the metadata that the Hugging Face Hub reads."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.evaluation import display, run_report


class Kind(NamedTuple):
    """A kind of model: what it is, how it is used, and what the Hub calls it."""

    summary: str
    use: str
    task: str
    tags: tuple[str, ...]


TOWERS = Kind(
    "Two towers for dense retrieval: queries and documents become vectors, whose inner product is the score.",
    """```python
from sentence_transformers import SentenceTransformer
model = SentenceTransformer("FOLDER")
queries, documents = model.encode_query(["a question"]), model.encode_document([("a title", "its text"), "a text"])
scores = model.similarity(queries, documents)
```""",
    "sentence-similarity",
    ("sentence-transformers", "feature-extraction", "sentence-similarity", "dense-retrieval"),
)
RERANKER = Kind(
    "A reranker: a query and a document are read together, and become a score.",
    """```python
from sentence_transformers import CrossEncoder
model = CrossEncoder("FOLDER")
scores = model.predict([("a question", "a title its text"), ("a question", "a text")])
```""",
    "text-ranking",
    ("sentence-transformers", "cross-encoder", "reranker"),
)
LATE = Kind(
    "Late interaction: every token of a query and of a document has a vector, and their best matches are added up.",
    """```python
from pylate import models, scores
model = models.ColBERT("FOLDER")
query, document = model.encode("a question", is_query=True), model.encode("a title its text", is_query=False)
score = scores.colbert_scores([query], [document])
```""",
    "sentence-similarity",
    ("PyLate", "ColBERT", "sentence-transformers", "feature-extraction", "late-interaction"),
)
SPARSE = Kind(
    "Learned sparse retrieval: queries and documents become weights of the vocabulary's tokens.",
    """```python
from sentence_transformers import SparseEncoder
model = SparseEncoder("FOLDER")
queries, documents = model.encode_query(["a question"]), model.encode_document(["a title its text"])
scores = model.similarity(queries, documents)
```""",
    "feature-extraction",
    ("sentence-transformers", "sparse-encoder", "splade", "feature-extraction"),
)
# By `Recipe.published_by`.
KINDS = {"": TOWERS, "reranker": RERANKER, "late_interaction": LATE, "splade": SPARSE}


def model_card(
    kind: Kind,
    *,
    title: str,
    license: str,
    datasets: Sequence[str],
    data: Sequence[str],
    notes: Sequence[str],
    settings: Mapping[str, Any],
    results: Sequence[Mapping],
) -> str:
    """The card as Markdown; every text is shown as it reads, but for `data` and `notes`, which are Markdown.

    Args:
      license: an identifier of the Hub's, such as apache-2.0; '' for none.
      datasets: names for the metadata.
      data: what the model was trained on.
      notes: how to use it, and what it is not good for.
      settings: fields of the config by their dotted names.
      results: rows of results.json.
    """
    fields = [[field, str(value)] for field, value in settings.items()]
    parts = [
        _metadata(kind, license, datasets),
        f"# {display.inline(title)}",
        kind.summary,
        "## Use",
        kind.use,
        _listed(notes),
        "## Training data",
        _listed(data),
        "## Results",
        *(run_report.results_tables(results) or ["The model has not been evaluated."]),
        "## Settings",
        display.markdown(["field", "value"], fields, left=2),
        "## License",
        f"`{license}`" if license else "None was given (`export.license`).",
    ]
    return "\n\n".join(parts) + "\n"


def _metadata(kind: Kind, license: str, datasets: Sequence[str]) -> str:
    """YAML between two lines of dashes; a JSON string is one of YAML's."""
    names = sorted({re.sub(r"[^\w.-]+", "-", name, flags=re.ASCII).strip("-.") for name in datasets} - {""})
    lines = ["library_name: sentence-transformers", f"pipeline_tag: {kind.task}"]
    lines += [f"license: {json.dumps(license)}"] if license else []
    lines += ["tags:", *(f"- {tag}" for tag in kind.tags)]
    lines += ["datasets:", *(f"- {json.dumps(name)}" for name in names)] if names else []
    return "\n".join(["---", *lines, "---"])


def _listed(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)

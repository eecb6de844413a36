"""An index of documents as a folder: what `DocumentIndex.save` writes and `retrieval.load_index` opens.

    index.json         the model, the kinds of the indexes and their options
    documents.jsonl    id, title, text, section, url and metadata of each document, in order
    arrays.npz         what the model made of the documents; not there for an index of words alone
    manifest.json      the SHA-256 of these

An index of words is built anew from the texts, which is quick; so is ScaNN's tree, from the embeddings.
"""

import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.sets.beir import Candidate

Arrays = dict[str, np.ndarray]

_INDEX, _DOCUMENTS, _ARRAYS = "index.json", "documents.jsonl", "arrays.npz"
_FILES = {_INDEX, _DOCUMENTS, _ARRAYS, files.MANIFEST}
USUAL = ("", "", 0)  # of what `retrieval.load` lets one choose
_FIELDS = ("id", "title", "text", "section", "url")
_values = operator.attrgetter(*_FIELDS)
_NO_METADATA = {*_FIELDS, "_id", "docid"}
_AGAIN = "save the index again"
_NEAR = 1e-3  # of the largest number: what another device may differ by


class StoredIndex(NamedTuple):
    """What an index is made of.

    Attributes:
      model: where the model is, as `retrieval.load` takes it.
      kinds: of the indexes; of two the second is of embeddings.
      weight: of the embeddings in a hybrid.
      options: of the index, as `Model.index` takes them.
      metadata: of each document what its record has besides.
      arrays: of what the model made of the documents.
      chosen: prompts and dimensions that the model was loaded with.
    """

    model: str
    kinds: Sequence[str]
    weight: float
    options: Mapping[str, Any]
    documents: Sequence[Candidate]
    metadata: Sequence[Mapping[str, Any]]
    arrays: Arrays
    chosen: Sequence[Any] = USUAL


def metadata_of(documents: Iterable[Any]) -> list[dict[str, Any]]:
    """What records have beside the fields of a document, as values of JSON; of a text nothing."""
    records = (document if isinstance(document, Mapping) else {} for document in documents)
    kept = ({name: value for name, value in record.items() if name not in _NO_METADATA} for record in records)
    named = ((f"document {place}: its metadata", more) for place, more in enumerate(kept))
    return [json.loads(files.json_line(more, where)) if more else {} for where, more in named]


def write(folder: Path, index: StoredIndex) -> None:
    """Writes an index into a folder that is new or empty, or has an index in its place; the manifest comes last."""
    if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - _FILES):
        raise UserError(f"{folder}: there is something else than an index; name a new folder")
    rows = ([*_values(document), more] for document, more in zip(index.documents, index.metadata))
    lines = [files.json_line(row, f"document {place}: its metadata") for place, row in enumerate(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    files.remove(folder / files.MANIFEST)
    files.write_text(folder / _DOCUMENTS, "".join(lines))
    files.remove(folder / _ARRAYS)
    if index.arrays:
        with files.atomic(folder / _ARRAYS) as temporary, temporary.open("wb") as file:
            np.savez(file, allow_pickle=False, **index.arrays)
    about = {"model": index.model, "kinds": list(index.kinds), "weight": index.weight, "options": dict(index.options)}
    about["chosen"] = list(index.chosen)
    files.write_json(folder / _INDEX, about)
    files.write_manifest(folder)


def read(folder: Path) -> StoredIndex:
    """Reads what `write` wrote.

    Raises:
      UserError: it is not there, or damaged.
    """
    if not (folder / _INDEX).exists():
        raise UserError(f"{folder}: there is no index; name the folder that index.save wrote")
    files.verify_manifest(folder, _AGAIN)
    about, path = files.read_json(folder / _INDEX), folder / _ARRAYS
    lines = (folder / _DOCUMENTS).read_text(encoding="utf-8").split("\n")[:-1]  # U+2028 ends no line of JSON
    rows = list(map(json.loads, lines))
    documents = [Candidate(**dict(zip(_FIELDS, row))) for row in rows]
    arrays = files.read_arrays(path, _AGAIN) if path.exists() else {}
    return StoredIndex(**about, documents=documents, metadata=[row[-1] for row in rows], arrays=arrays)


def check_model(index: StoredIndex, first: Arrays, model: str) -> None:
    """Checks that a model makes of the first document what is stored.

    Args:
      first: what it makes of it.
      model: what it is, for the error.
    """
    for name, made in first.items():
        stored = index.arrays.get(name, np.zeros(0))[: len(made)]
        if stored.shape != made.shape or not np.allclose(
            stored, made, rtol=0, atol=_NEAR * np.abs(stored).max(initial=1e-9)
        ):
            raise UserError(f"the index was made with another model than {model}: load {index.model}, or index again")

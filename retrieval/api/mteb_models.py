"""Models as the benchmark `mteb` 2 takes them: `mteb.evaluate(retrieval.MtebEncoder("runs/one"), tasks)`.

`mteb` is imported when it asks for a model's metadata, and nothing else of it is needed here.
"""

import functools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.api.document_index import Hit
from retrieval.api.loaded_model import Model
from retrieval.api.loading import load
from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts, hashing, hub
from retrieval.common.runtime.store import is_url
from retrieval.models.encoders.family import is_encoder
from retrieval.runs.pipeline import preflight, records
from retrieval.runs.pipeline.run import Run
from retrieval.search.index_kind import EXACT
from retrieval.search.side_by_side import HYBRID

_QUERY = "query"  # mteb's type of prompt
_WEIGHTS = ("*.safetensors", "*.bin", "*.json", "*.txt", "*.model")


class _OfMteb:
    """A model with the metadata that names the files of its results: MODEL/REVISION/TASK.json."""

    def __init__(self, model_name: str | Path, revision: str | None, name: str):
        path = os.path.expanduser(model_name)
        if revision and hub.is_name(path):
            path = f"{path.partition('@')[0]}@{revision}"
        self._path, self._revision = path, revision or ""
        last = path.removeprefix(hub.PREFIX).partition("@")[0]
        folder = last.rstrip("/").rpartition("/")[2] if is_url(last) else Path(last).resolve().name
        self._name = name or (last if hub.is_name(path) and "/" in last else f"local/{folder}")

    @functools.cached_property
    def _folder(self) -> Path:
        """The files of the model, or of the work directory."""
        return artefacts.copy_of(self._path).folder if is_url(self._path) else hub.path(self._path)

    @functools.cached_property
    def _model(self) -> Model:
        return load(self._path)

    @functools.cached_property
    def mteb_model_meta(self) -> Any:
        """The metadata, a `mteb.models.ModelMeta`."""
        from mteb.models import ModelMeta  # pyright: ignore[reportMissingImports]
        from mteb.models.model_meta import ScoringFunction  # pyright: ignore[reportMissingImports]

        model = self._model
        size = model.encode_query(["a"])[0].shape[-1]  # of late interaction a token's
        about = {"name": self._name, "revision": self._revision or self._identity(), "framework": ["JAX"]}
        about |= {"similarity_fn_name": ScoringFunction(model.similarity_fn_name), "embed_dim": size}
        return ModelMeta.create_empty(about)

    def _identity(self) -> str:
        """What changes where the model does: mteb takes results of one name and revision for one model's.

        A commit of the hub, what the training of a run was made from, or the sums of a folder's files.
        """
        if hub.is_name(self._path):
            return self._folder.name
        if not is_encoder(self._folder):
            self._model  # noqa: B018 # which brings the records of a run on a store
            trained = Run(preflight.read_config(self._folder), self._folder, Path()).owner("train")
            return records.identity(records.record_of(trained, "train"))[:16]
        paths = sorted({path for pattern in _WEIGHTS for path in self._folder.rglob(pattern)})
        sums = files.checksums(self._folder, paths)
        return hashing.digest(*(part for pair in sorted(sums.items()) for part in pair)).hex()


class MtebEncoder(_OfMteb):
    """Two towers as an encoder of mteb.

    Queries go through the tower of queries. Documents, and texts that are neither, go through that of documents.
    The model's prompts are chosen as mteb says: for task and type, task, kind of task and type, kind of task, type.
    """

    def __init__(
        self, model_name: str | Path, revision: str | None = None, *, device: str | None = None, name: str = ""
    ):
        """Args:
          model_name: as `retrieval.load` takes it: a work directory, a folder or hf:NAME.
          revision: of the hub; else what the results are filed under, by default what identifies the model.
          device: not read; JAX chooses.
          name: ORGANISATION/MODEL that the results are filed under.

        Raises:
          UserError: there is no such model, or it embeds nothing.
        """
        super().__init__(model_name, revision, name)
        self._model.towers  # noqa: B018 # says what is wrong before mteb loads data

    def encode(
        self,
        inputs: Iterable[Mapping[str, Any]],
        *,
        task_metadata: Any,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: Any = None,
        **kwargs: Any,
    ) -> np.ndarray:
        """Embeddings of all texts of a loader's batches, float32 [N, E].

        Args:
          inputs: batches with 'text', and of documents 'body' and perhaps 'title' too.
          task_metadata: whose `name` and `type` choose a prompt.
          prompt_type: query, document or None.
        """
        side = getattr(prompt_type, "value", prompt_type)
        name = prompt_name(self._model.prompts, task_metadata.name, task_metadata.type, side)
        batches = list(inputs)
        if side == _QUERY:
            return self._model.encode_query([text for batch in batches for text in batch["text"]], name)
        return self._model.encode_document([document for batch in batches for document in _documents(batch)], name)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Inner products [N, M]; of models that compare by cosines embeddings have length 1."""
        return _rows(embeddings1) @ _rows(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> np.ndarray:
        """Inner products [N] of the pairs."""
        return (_rows(embeddings1) * _rows(embeddings2)).sum(axis=1)


class MtebSearch(_OfMteb):
    """A model and its indexes as a search system of mteb: hybrids, BM25 and approximate search have no embeddings."""

    def __init__(self, model_name: str | Path, revision: str | None = None, *, kind: str = HYBRID, name: str = ""):
        """Args:
          model_name, revision, name: as of `MtebEncoder`; the kind of index stands behind the name.
          kind: of index, as `Model.index` takes it.

        Raises:
          UserError: there is no such model, or it encodes nothing.
        """
        super().__init__(model_name, revision, name)
        self._model.similarity_fn_name  # noqa: B018
        self._kind = kind
        self._name += "" if kind == EXACT else f"-{kind}"
        self._index: Any = None

    def index(self, corpus: Iterable[Mapping[str, Any]], **kwargs: Any) -> None:
        """Indexes documents with 'id', 'text' and perhaps 'title', in place of those before."""
        rows = [{"id": row["id"], "title": row.get("title") or "", "text": row["text"]} for row in corpus]
        self._index = self._model.index(rows, kind=self._kind)

    def search(
        self, queries: Iterable[Mapping[str, Any]], *, top_k: int, top_ranked: Any = None, **kwargs: Any
    ) -> dict[str, dict[str, float]]:
        """Query id -> document id -> score, of the best `top_k` documents of each query.

        Raises:
          UserError: the task gives each query documents to rerank.
        """
        if top_ranked is not None:
            raise UserError(f"{self._name}: an index cannot rerank documents that a task gives: take MtebEncoder")
        rows = list(queries)
        texts = [f"{row['text']} {row['instruction']}" if row.get("instruction") else row["text"] for row in rows]
        lists = self._index.search_batch(texts, top_k)
        return {row["id"]: dict(_strictly_falling(hits)) for row, hits in zip(rows, lists)}


def prompt_name(prompts: Mapping[str, str], task: str, kind: str, side: str | None) -> str | None:
    """The name of the prompt for a task, in mteb's order; None where there is none.

    Args:
      kind: of the task, such as 'Retrieval'.
      side: 'query', 'document' or None.
    """
    names = [f"{task}-{side}", task, f"{kind}-{side}", kind, side] if side else [task, kind]
    return next((name for name in names if name in prompts), None)


def _documents(batch: Mapping[str, Any]) -> list[str | dict[str, str]]:
    """The texts of a batch; with titles of their own where it has them, for models that read pairs."""
    if "title" not in batch or "body" not in batch:
        return list(batch["text"])
    return [{"title": title or "", "text": body} for title, body in zip(batch["title"], batch["body"], strict=True)]


def _strictly_falling(hits: Iterable[Hit]) -> Iterator[tuple[str, float]]:
    """Ids and scores of hits, best first. Of equal scores the later one is a hair lower: mteb would go by the ids."""
    last = np.float32(np.inf)
    for hit in hits:
        last = min(np.float32(hit.score), np.nextafter(last, np.float32(-np.inf)))
        yield hit.id, float(last)


def _rows(embeddings: Any) -> np.ndarray:
    return np.atleast_2d(np.asarray(embeddings, np.float32))

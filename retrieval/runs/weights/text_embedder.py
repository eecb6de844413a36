"""Trained embedders, whoever trained them, for texts into files: work directories, exports and published folders."""

import array
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import hosts, model_folder
from retrieval.config import experiment
from retrieval.data.labelled import grouping
from retrieval.data.sets.candidate import Candidate
from retrieval.data.tokenizers import vocabularies
from retrieval.models.encoders import family
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.parameters import local_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import exported_towers, module_fields
from retrieval.runs.weights.exported_towers import LoadedTowers
from retrieval.runs.weights.trained_model import TRAINED, PublishedKind, TrainedKind
from retrieval.runs.weights.trained_run import load_towers, of_towers
from retrieval.search import encoding

QUERIES, DOCUMENTS = "queries", "documents"
_PAIRS = 8192  # that are multiplied at a time


T = TypeVar("T")


class Distinct(Generic[T]):
    """Different texts, in the order in which they come first: 16 bytes for each, and 1 for each time."""

    def __init__(self, texts: Callable[[], Iterable[T]], key: Callable[[T], int]):
        """Args give the texts, each time anew, and a number of 64 bits that stands for one."""
        self._texts, self._key = texts, key
        keys = np.asarray(array.array("Q", map(key, texts())), np.uint64)
        self._keys, places = np.unique(keys, return_index=True)
        self._numbers = np.argsort(np.argsort(places))
        self._is_first = np.isin(np.arange(len(keys)), places)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[T]:
        return itertools.compress(self._texts(), self._is_first)

    def __contains__(self, text: T) -> bool:
        return bool(self._keys[self._place(text) % len(self._keys)] == self._key(text))

    def number(self, text: T) -> int:
        """The place of one of the texts."""
        return int(self._numbers[self._place(text)])

    def _place(self, text: T) -> int:
        return int(np.searchsorted(self._keys, np.uint64(self._key(text))))


class TextEmbedder:
    """Towers on the devices of this host. Of long documents the beginning is embedded, as in training."""

    def __init__(self, towers: LoadedTowers, embedder: Embedder | None = None):
        """`embedder` is of towers that differ by parameters and prompts alone; by default it is made."""
        texts, mesh = (towers.config, towers.vocabulary), local_mesh(towers.config)
        embedder = embedder or Embedder(*texts, mesh)
        self._towers = {QUERIES: embedder.queries(towers.params), DOCUMENTS: embedder.documents(towers.params)}
        self._rows = {QUERIES: lambda items: [[ids] for ids in query_tokens(*texts, items)]}
        self._rows[DOCUMENTS] = functools.partial(candidate_windows, *texts)
        self._embed_rows, self._shard_size = embedder.embed_rows, towers.config.encode.shard_size
        self._sizes: dict[str, Any] = {"longest": longest_text(towers.config), "multiple": mesh.size}
        self._sizes["batch_tokens"] = towers.config.encode.batch_tokens

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Embeddings of queries, float32 [Q, E], in memory."""
        return self._embed(QUERIES, texts)

    def documents(self, items: Sequence[Candidate]) -> np.ndarray:
        """The same of documents; of long ones that of the beginning."""
        return self._embed(DOCUMENTS, items)

    def write(
        self, folder: Path, name: str, side: str, texts: Iterable[tuple[str, Any]], total: int, **options: Any
    ) -> None:
        """Embeds texts with their ids into files, as `encoding.encode` does; those that are there are kept.

        Args:
          side: QUERIES or DOCUMENTS, whose tower embeds them.
          options: `form` and `older` of `encoding.encode`.
        """
        options |= {**self._sizes, "shard_size": self._shard_size}
        encoding.encode(folder, name, texts, total, self._rows[side], self._towers[side], **options)

    def score_all(
        self, folder: Path, queries: Sequence[str], pairs: Callable[[], Iterable[tuple[int, Candidate]]], total: int
    ) -> tuple[np.ndarray, float | None]:
        """As `PairScorer.score_all`: the inner products [P]; embeddings lie in files.

        A document is embedded once, whatever the number of its pairs, and one host multiplies.
        """
        began = time.perf_counter()
        documents = Distinct(lambda: (document for _, document in pairs()), grouping.number)
        self.write(folder, QUERIES, QUERIES, numbered(queries), len(queries))
        self.write(folder, DOCUMENTS, DOCUMENTS, numbered(documents), len(documents))
        hosts.on_first(lambda: None)  # from here on the files of all hosts are there
        stored = [encoding.StoredRows(folder, name) for name in (QUERIES, DOCUMENTS)]
        scores_P, remaining = np.empty(total, np.float32), iter(pairs())
        for start in range(0, total, _PAIRS):
            some = [(place, documents.number(of)) for place, of in itertools.islice(remaining, _PAIRS)]
            query_PE, document_PE = (rows[np.array(rows_P)] for rows, rows_P in zip(stored, zip(*some)))
            scores_P[start : start + _PAIRS] = np.einsum("pe,pe->p", query_PE, document_PE)
        return scores_P, (time.perf_counter() - began) / max(1, total)

    def _embed(self, side: str, texts: Sequence[Any]) -> np.ndarray:
        return self._embed_rows(self._towers[side], [rows[0] for rows in self._rows[side](texts)])


def numbered(texts: Iterable[T]) -> Iterator[tuple[str, T]]:
    """Texts with their places as ids."""
    return ((str(place), text) for place, text in enumerate(texts))


class _Embedders(PublishedKind):
    """Work directories of two towers, and folders of sentence-transformers and transformers."""

    def check_folder(self, run: Run, folder: Path, field: str) -> Sequence[Path]:
        """As `PublishedKind.check_folder`."""
        if reads_pairs(folder):
            raise UserError(f"{field}={folder}: a cross-encoder, which embeds nothing; name an embedder")
        exported_towers.set_sizes(folder, experiment.defaults())
        towers = dict.fromkeys(module_fields.open_towers(folder))
        weights = [path for tower in towers for path in tower.bert.files]
        vocabulary = vocabularies.files(vocabularies.find(next(iter(towers)).bert.path))
        return [*weights, *model_folder.module_files(folder), *vocabulary]

    def towers(self, run: Run, value: str, field: str) -> LoadedTowers:
        """The towers as they were trained or published; mesh and sizes of batches are those of `run`."""
        self.check(run, value, field)
        if folder := self.published(value, field):
            towers = exported_towers.read(folder, experiment.defaults())
        else:
            trainer = self.trainer(run, value, field)
            vocabulary = trainer.load_vocabulary()
            config = of_towers(trainer).copy_and_resolve_references()
            towers = LoadedTowers(config, vocabulary, parameters_of(load_towers(trainer, len(vocabulary))))
        towers.config.update({"mesh": run.config.mesh, "encode": run.config.encode})
        towers.config.encode.windows = 1
        return towers

    def open(self, run: Run, value: str, field: str) -> TextEmbedder:
        """As `TrainedKind.open`; dtype and a folder's longest texts are those of `run` too."""
        towers = self.towers(run, value, field)
        towers.config.model.dtype = run.config.model.dtype
        for name in ("query_length", "document_length") if self.published(value, field) else ():
            towers.config.data[name] = min(towers.config.data[name], run.config.data[name])
        return TextEmbedder(towers)


_OTHERWISE = ", or a folder that sentence-transformers or transformers saved"
EMBEDDERS = _Embedders("embedder", lambda recipe: recipe.has_towers, _OTHERWISE)


def reads_pairs(folder: Path) -> bool:
    """Whether a folder of weights is of a cross-encoder, or of a language model that judges pairs by yes and no."""
    if model_folder.has_modules(folder):
        return model_folder.modules(folder)[-1].kind == "LogitScore"
    config = files.read_json(family.config_of(folder)) if model_folder.base_of(folder) is None else {}
    names = config.get("architectures") if isinstance(config, dict) else ()
    kinds = ("ForSequenceClassification", "ForCausalLM")
    return isinstance(names, list) and any(str(name).endswith(kinds) for name in names)


def kind_of(value: str, field: str, run: Run) -> TrainedKind:
    """Which kind of model a folder, a name on the hub or a work directory is: an embedder, or a reranker."""
    folder = EMBEDDERS.published(value, field)
    judges = reads_pairs(folder) if folder else recipe_of(EMBEDDERS.trainer(run, value, field).config).reranks
    return TRAINED["reranker"] if judges else EMBEDDERS

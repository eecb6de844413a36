"""Models that encode texts of one's own, and search among them: two towers, or late interaction and sparse vectors."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from ml_collections import ConfigDict

from retrieval.api.stored_index import Arrays
from retrieval.common.errors import UserError
from retrieval.common.runtime.model_folder import DOCUMENT, QUERY
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import prompts
from retrieval.recipes import towers
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.parameters import local_mesh
from retrieval.recipes.towers import Embedder
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import indexes
from retrieval.runs.ranking.collection import CORPUS, Collection, open_collection
from retrieval.runs.weights import prompted
from retrieval.runs.weights.exported_towers import LoadedTowers
from retrieval.runs.weights.trained_model import TextEncoder, TrainedKind
from retrieval.search import encoding, text_batches, vector_codes
from retrieval.search.index_kind import DENSE, EXACT, IndexKind, Options
from retrieval.search.side_by_side import Search
from retrieval.search.windows import Index

EMBEDDER = "embedder"  # the kind of a model that makes one vector of a text

_FEW = 32  # queries that are compiled for


class TextRows(NamedTuple):
    """Texts as one of a model's towers takes them.

    Attributes:
      ids: the token ids of each, special tokens included.
      tower: embeds such rows; those of one tower may be embedded together. Of a model without towers it is the side.
    """

    ids: Sequence[Sequence[int]]
    tower: Any


class Card(NamedTuple):
    """Attributes:
    sizes: the dimensions that embeddings may be cut to, and last those that they have.
    lengths: tokens of a query and of a document; texts are cut there.
    default_prompt: the name of the prompt of a text of which nobody says what it is.
    """

    sizes: tuple[int, ...]
    lengths: Mapping[str, int]
    pooling: str
    dtype: str
    default_prompt: str


class TowerEncoder:
    """Threads may encode together.

    Attributes:
      config: of the towers.
      kind: of model.
      without: what the run lacks where none of its passages have embeddings, for an error.
    """

    kind = EMBEDDER
    without = "run the stages encode and index with config.encode.corpus=True"

    def __init__(self, encoder: LoadedTowers):
        self.config, self.vocabulary = encoder.config, encoder.vocabulary
        # Where prompts are not pooled, those of other sizes are other programs with the same parameters.
        self._params = encoder.params if any(self.config.model.pool_from) else None
        self._embedders = {tuple(self.config.model.pool_from): self._embedder(self.config, encoder.params)}
        self._devices = local_mesh(self.config).size

    @property
    def similarity(self) -> str:
        """Of a query and a document: the inner product, which of embeddings of length 1 is the cosine."""
        return "cosine" if self.config.model.normalize else "dot"

    def compile_queries(self, most: int) -> Iterator[None]:
        """Compiles what embeds up to so many queries at once, a program at each turn: first those of one query."""
        lengths = text_batches.lengths_up_to(self.config.data.query_length)
        for count in (1 << power for power in range((min(most, _FEW) - 1).bit_length() + 1)):
            for length in lengths:
                encoding.encode_few([[0] * length] * count, self._tower(QUERY), length, self._devices)
                yield

    def encode_query(self, texts: Sequence[str], *prompt: str | None) -> Any:
        """Embeddings, float32 [Q, E]; `prompt` is a name, or None, and perhaps the text, as of `Model`."""
        return self.embed(self.rows(QUERY, texts, *prompt))

    def encode_document(self, items: Sequence[Candidate], *prompt: str | None) -> Any:
        """Embeddings, float32 [N, E]; of long ones that of the beginning."""
        return self.embed(self.rows(DOCUMENT, items, *prompt))

    def rows(self, side: str, items: Sequence[Any], *prompt: str | None, room: int = 0) -> TextRows:
        """Queries or documents as token ids; as `Model.rows`."""
        text = prompts.chosen(self.config.data, side, *prompt)
        config = prompted.with_prompts(self.config, self.vocabulary, **{side: text})
        rows = towers.rows_of(config, self.vocabulary, side, items, room)
        return TextRows(rows, self._tower(side, config))

    def embed(self, rows: TextRows) -> np.ndarray:
        """Embeddings of texts, float32 [N, E]."""
        if not rows.ids:
            return np.zeros((0, self.embed(TextRows([[0]], rows.tower)).shape[1]), np.float32)
        longest, batch_tokens = longest_text(self.config), self.config.encode.batch_tokens
        return encoding.encode_any(rows.ids, rows.tower, batch_tokens, longest, self._devices)

    def card(self, trained: Sequence[int]) -> Card:
        """What the towers are; `trained` are the sizes that they were trained to be cut to."""
        form, config = towers.form_of(self.config), self.config
        sizes = tuple(sorted({*(size for size in trained if size < form.dim), form.dim}))
        return Card(sizes, _lengths(config), config.model.pooling, config.model.dtype, config.data.default_prompt)

    def check_embeddings(self, collection: Collection) -> None:
        """Checks that stored embeddings are such as the towers give.

        Raises:
          UserError: they are of another size, length or precision.
        """
        vector_codes.check(collection.embeddings(), "candidates", towers.form_of(self.config))

    def check_kind(self, kind: IndexKind) -> None:
        """Checks that an index of a kind can be used here."""
        if not kind.available():
            raise UserError(f"the index '{kind.name}' cannot be used on this machine; take 'exact'")

    def stored(self, texts: Sequence[Candidate]) -> Arrays:
        """What an index of texts keeps: embeddings of all windows, of long ones several, and whose these are."""
        rows = towers.candidate_windows(self.config, self.vocabulary, texts)
        owners_W = np.repeat(np.arange(len(rows), dtype=np.int32), list(map(len, rows)))
        windows = TextRows(list(itertools.chain.from_iterable(rows)), self._tower(DOCUMENT))
        return {"embeddings": self.embed(windows), "owners": owners_W}

    def over_stored(self, kind: IndexKind, arrays: Arrays, options: Options) -> Search:
        """A search by an index of a kind among texts, of what `stored` made of them."""
        embeddings_WE, owners_W = arrays["embeddings"], arrays["owners"]
        return self.over(indexes.finished(kind.build(embeddings_WE, options), options, lambda: embeddings_WE, owners_W))

    def over(self, index: Index) -> Search:
        """A search by an index of embeddings; takes the name of a prompt, too."""
        return lambda queries, k, *prompt: index.search(self.encode_query(queries, *prompt), k)

    def over_passages(self, kind: IndexKind, run: Run, options: Options) -> Search | None:
        """A search among the passages of a run by an index of a kind; None where there is none."""
        collection = open_collection(run, CORPUS)
        is_built_now = kind.name in DENSE and not kind.is_saved and collection.has_embeddings()
        if not (is_built_now or collection.index(kind.name).exists()):
            return None
        self.check_embeddings(collection)
        kind.check(options)
        return self.over(indexes.open_dense(kind, collection, options))

    def _tower(self, side: str, config: ConfigDict | None = None) -> Callable[[np.ndarray], np.ndarray]:
        """What embeds the rows of a side, pooled from where a config says, by default the model's own."""
        config = config or self.config
        places = tuple(config.model.pool_from)
        if places not in self._embedders:
            self._embedders[places] = self._embedder(config, self._params)
        return self._embedders[places][side]

    def _embedder(self, config: ConfigDict, params: Any) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        embedder = Embedder(config, self.vocabulary, local_mesh(config))
        return {QUERY: embedder.queries(params), DOCUMENT: embedder.documents(params)}


class VectorEncoder:
    """As `TowerEncoder`: exact search compares what is encoded; there is no other index.

    Attributes:
      config: of the model.
      kind: of model, as `TRAINED` names it.
      similarity: of a query and a document.
    """

    def __init__(self, encoder: TextEncoder, kind: TrainedKind):
        self.config, self.vocabulary, self._encoder, self._kind = encoder.config, encoder.vocabulary, encoder, kind
        self.similarity, self.kind = encoder.similarity, kind.name

    @property
    def without(self) -> str:
        """What the run lacks where none of its passages are encoded, for an error."""
        return f"run the stage {self._kind.stage} with config.encode.corpus=True"

    def encode_query(self, texts: Sequence[str], *prompt: str | None) -> Any:
        """What `TextEncoder.encode_query` gives."""
        self._check_prompt(*prompt)
        return self._encoder.encode_query(texts)

    def encode_document(self, items: Sequence[Candidate], *prompt: str | None) -> Any:
        """What `TextEncoder.encode_document` gives."""
        self._check_prompt(*prompt)
        return self._encoder.encode_document(items)

    def rows(self, side: str, items: Sequence[Any], *prompt: str | None, room: int = 0) -> TextRows:
        """As `TowerEncoder.rows`; a side has one prompt, of its name."""
        self._check_prompt(*(name for name in prompt if name != side))
        return TextRows(self._encoder.rows(side, items, room), side)

    def embed(self, rows: TextRows) -> list[Any]:
        """The vectors of the tokens of each text, float32 [T, E]; or the terms of each with their weights, two [K]."""
        made = self._encoder.embed(rows.tower, rows.ids)
        if isinstance(made, list):
            return made
        return list(zip(*(np.split(each, made.indptr[1:-1]) for each in (made.indices, made.data))))

    def card(self, trained: Sequence[int]) -> Card:
        """As `TowerEncoder.card`: there are no embeddings, and so no sizes."""
        return Card((), _lengths(self.config), "", self.config.model.dtype, DOCUMENT)

    def check_kind(self, kind: IndexKind) -> None:
        """Checks that the index is exact search."""
        if kind.name != EXACT:
            why = f"a model of the kind '{self._kind.name}' makes none: take 'exact', one of words, or 'hybrid'"
            raise UserError(f"the index '{kind.name}' is of embeddings, and {why}")

    def stored(self, texts: Sequence[Candidate]) -> Arrays:
        """What an index of texts keeps: the vectors of all tokens and how many each text has, or a sparse matrix."""
        vectors: Any = self._encoder.encode_document(texts)
        if isinstance(vectors, list):
            return {"vectors": np.concatenate(vectors), "lengths": np.array(list(map(len, vectors)))}
        return {"data": vectors.data, "indices": vectors.indices, "indptr": vectors.indptr}

    def over_stored(self, kind: IndexKind, arrays: Arrays, options: Options) -> Search:
        """A search among texts, of what `stored` made of them."""
        if "vectors" in arrays:
            vectors: Any = np.split(arrays["vectors"], np.cumsum(arrays["lengths"])[:-1])
        else:
            shape = len(arrays["indptr"]) - 1, len(self.vocabulary)
            vectors = scipy.sparse.csr_array((arrays["data"], arrays["indices"], arrays["indptr"]), shape)
        search = self._encoder.over(vectors)
        return lambda queries, k: search(self._encoder.encode_query(queries), k)

    def over_passages(self, kind: IndexKind, run: Run, options: Options) -> Search | None:
        """A search among the passages of a run; None where they are not encoded."""
        self.check_kind(kind)
        opened = self._kind.over_passages(run, {})
        return opened[1] if opened else None

    def _check_prompt(self, *prompt: str | None) -> None:
        if any(text is not None for text in prompt):
            raise UserError(f"a model of the kind '{self._kind.name}' has its own markers: leave prompts out")


def _lengths(config: ConfigDict) -> dict[str, int]:
    """The tokens of a text of each side, at most."""
    return {QUERY: config.data.query_length, DOCUMENT: config.data.document_length}


Encoder = TowerEncoder | VectorEncoder

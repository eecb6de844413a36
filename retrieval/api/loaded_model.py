"""A trained model to encode and to search with: what `retrieval.load` returns."""

import functools
import numbers
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from retrieval.api import answering, document_texts, stored_index
from retrieval.api.answering import Answer, Answerer
from retrieval.api.document_index import DocumentIndex, Hit, candidates_of, check_count, hits_of_documents
from retrieval.api.document_texts import Document, candidates, check_query, checked_queries, is_list
from retrieval.api.stored_index import USUAL, StoredIndex
from retrieval.api.text_encoders import Card, Encoder, TextRows, TowerEncoder
from retrieval.common import terminal
from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime import hub
from retrieval.common.runtime.model_folder import QUERY
from retrieval.common.runtime.store import is_url
from retrieval.config.fields import check_value, declared
from retrieval.data.tokenizers import prompts
from retrieval.recipes.recipe import recipe_of
from retrieval.runs.pipeline import downloads, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking import fused, indexes
from retrieval.runs.ranking.collection import CORPUS, open_collection
from retrieval.runs.weights.pair_scorer import PairScorer
from retrieval.runs.weights.trained_model import TRAINED, is_place
from retrieval.search.index_kind import EXACT, INDEXES, NO_OPTIONS, IndexKind, Options, Texts
from retrieval.search.side_by_side import HYBRID, Search

_READS_THE_INDEXES = "search"  # a stage that reads what is copied down of a run on a store
_RERANKER = "config.rerank.model"
_SHOWN = 256  # texts between two states of a bar


class Model:
    """What encodes texts, a reranker, a reader, or several of these.

    They answer alike in any thread, and keep the order of what they get.
    """

    def __init__(self, encoder: Encoder | None, place: str, run: Run | None = None, chosen: tuple[Any, ...] = USUAL):
        """Args:
        encoder: None where there is a reranker or a reader alone.
        place: where the model is, for people.
        run: whose passages, reranker and reader these are; None for an export.
        chosen: the further arguments of `retrieval.load`.
        """
        self._run, self._place, self._loaded, self._chosen = run, place, encoder, chosen

    def __repr__(self) -> str:
        return f"Model({self._place})"

    @property
    def similarity_fn_name(self) -> str:
        """What compares a query and a document: 'cosine', 'dot' or 'MaxSim'.

        Raises:
          UserError: the model encodes nothing.
        """
        return self._encoder.similarity

    def similarity(self, queries: Any, documents: Any) -> np.ndarray:
        """The scores of queries and documents, float32 [Q, N], as search ranks by them.

        Args:
          queries, documents: what `encode_query` and `encode_document` give; one of towers may be a vector.
        """
        if self.similarity_fn_name == "MaxSim":
            queries, documents = ([each] if isinstance(each, np.ndarray) else each for each in (queries, documents))
            scores = [
                [(query @ document.T).max(axis=1, initial=-np.inf).sum() for document in documents] for query in queries
            ]
            return np.array(scores, np.float32).reshape(len(queries), len(documents))
        if scipy.sparse.issparse(queries):
            return (queries @ documents.T).toarray().astype(np.float32)
        one, other = (np.atleast_2d(np.asarray(each, np.float32)) for each in (queries, documents))
        if self.similarity_fn_name == "cosine":
            one, other = map(_normalised, (one, other))
        return one @ other.T

    @property
    def towers(self) -> TowerEncoder:
        """What embeds each text as one vector.

        Raises:
          UserError: nothing does.
        """
        if not isinstance(self._encoder, TowerEncoder):
            raise UserError(f"{self._place}: the model embeds no text as one vector: search its index")
        return self._encoder

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name: 'query' and 'document', be they empty, and others that it has."""
        return prompts.table(self._encoder.config.data)

    def encode_query(
        self,
        queries: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int = 0,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Embeddings of queries, float32 [Q, E]; of one text a vector, [E].

        Of late interaction the vectors of the tokens of each, a list of float32 [T, E]; of a model of sparse vectors a
        matrix [Q, V] of SciPy.

        Args:
          prompt_name: the name of the one of `prompts` that stands before each; by default it is 'query'.
          prompt: what stands before each instead, '' for nothing.
          batch_size: texts that are encoded at a time; by default `encode.batch_tokens` says how many.
          normalize_embeddings: whether embeddings get the length 1, after they are cut.
          truncate_dim: dimensions that are kept, the first ones.

        Raises:
          UserError: there is no such prompt, or it leaves no room for a text.
        """
        is_one = isinstance(queries, str)
        encode, texts = self._encoder.encode_query, checked_queries([queries] if is_one else queries)
        made = _in_parts(lambda part: encode(part, prompt_name, prompt), texts, batch_size, show_progress_bar)
        return self._finished(made, is_one, normalize_embeddings, truncate_dim)

    def encode_document(
        self,
        documents: Document | Sequence[Document],
        prompt_name: str | None = None,
        prompt: str | None = None,
        *,
        batch_size: int = 0,
        show_progress_bar: bool = False,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
    ) -> Any:
        """Embeddings of documents, float32 [N, E], or what `encode_query` gives; of long ones of the beginning.

        Args:
          documents: texts, or records with a 'text' and a 'title'; or one.
          prompt_name, prompt, and the others: as of `encode_query`; by default the prompt is 'document'.

        Raises:
          UserError: as `encode_query`, or a document is none.
        """
        is_one = isinstance(documents, str | Mapping)
        encode, texts = self._encoder.encode_document, candidates([documents] if is_one else documents)
        made = _in_parts(lambda part: encode(part, prompt_name, prompt), texts, batch_size, show_progress_bar)
        return self._finished(made, is_one, normalize_embeddings, truncate_dim)

    def _finished(self, made: Any, is_one: bool, normalizes: bool, truncate_dim: int | None) -> Any:
        """Embeddings as they were asked for."""
        if normalizes or truncate_dim:
            check_count(truncate_dim or 0, "truncate_dim", 0)
            if not isinstance(made, np.ndarray):
                raise UserError(f"{self._place} makes no embedding of a text: leave out truncate_dim and the norm")
            made = made[:, : truncate_dim or None]
            made = _normalised(made) if normalizes else made
        return made[0] if is_one and not scipy.sparse.issparse(made) else made

    def rows(self, side: str, texts: Sequence[Any], prompt_name: str | None = None, room: int = 0) -> TextRows:
        """Queries or documents as token ids, for `embed`: what `encode_query` and `encode_document` begin with.

        Args:
          side: which of the two they are, 'query' or 'document'.
          room: tokens that a row may have beyond those that the tower takes. A text is cut where it has another row
            with room.

        Raises:
          UserError: as of these, or there are no towers.
        """
        items = checked_queries(texts) if side == QUERY else candidates(texts)
        return self._encoder.rows(side, items, prompt_name, room=room)

    def embed(self, rows: TextRows) -> Any:
        """Embeddings of texts, float32 [N, E], or what else the model's kind makes of each."""
        return self._encoder.embed(rows)

    @property
    def kind(self) -> str:
        """'embedder', 'late_interaction' or 'splade'.

        Raises:
          UserError: the model encodes nothing.
        """
        return self._encoder.kind

    @property
    def card(self) -> Card:
        """What the model is, for those who ask for embeddings."""
        return self._encoder.card((self._run.owner("train") if self._run else self._encoder).config.train.matryoshka)

    def index(
        self,
        documents: Sequence[Document] | str | Path | None = None,
        kind: str = EXACT,
        weight: float | None = None,
        **options: Any,
    ) -> DocumentIndex:
        """An index of documents that can be searched.

        Args:
          documents: texts or records; or a file or a folder, whose documents are cut into passages. By default the
            passages that the run itself has indexed.
          kind: of index: 'exact', 'quantised' and 'scann' are of embeddings, 'bm25' is of words. 'hybrid' merges the
            run's first index of words with exact search.
          weight: of the embeddings in a hybrid; by default what the run's dev set has chosen, else `fuse.dense_weight`.
          options: of the index, by default those of the run's `index`: of 'quantised' the `precision`, such as 'int8'
            or 'binary'; of that and of 'scann' `rescore`, how many results for each that is asked for the embeddings
            score again.

        Raises:
          UserError: there is no document, two have one id, there is no such kind, or no such option of it or value.
        """
        encoder = self._encoder
        if kind not in (*INDEXES, HYBRID):
            raise unknown_name("kind of index", str(kind), [*INDEXES, HYBRID])
        if weight is not None and not (kind == HYBRID and isinstance(weight, numbers.Real) and 0 <= weight <= 1):
            raise UserError(f"weight={weight!r}: a number from 0 to 1 is needed, and kind='hybrid'")
        usual = fused.weight_of(self._run, self._run.chain).dense if self._run else encoder.config.fuse.dense_weight
        of_dense = float(usual if weight is None else weight)
        of_index = self._run.owner("index").config if self._run and documents is None else encoder.config
        kinds = [INDEXES[name] for name in ((of_index.index.words[0], EXACT) if kind == HYBRID else (kind,))]
        changes = {f"index.{name}": value for name, value in options.items() if value is not None}
        for name, value in changes.items():
            if name not in kinds[-1].options:
                option = f"{name.removeprefix('index.')}={value!r}"
                raise UserError(f"{option}: an index of kind '{kind}' has none; leave it out")
            check_value(name, value, declared()[name].kind)
        if documents is None:
            return self._of_run(kinds, of_dense, changes)
        metadata: Sequence[Mapping[str, Any]] = ()
        if isinstance(documents, str | Path):
            if not str(documents):
                raise UserError("the path of the documents is empty; write '.' for the current folder")
            prepared = self._run.owner("prepare").config if self._run else encoder.config
            texts = list(document_texts.read_passages(Path(documents).expanduser(), encoder.vocabulary, prepared))
        else:
            documents = list(documents) if is_list(documents) else documents
            texts, metadata = candidates(documents, are_distinct=True), stored_index.metadata_of(documents)
        if not texts:
            raise UserError("there is no document to index")
        for each in kinds:
            self._check_options(each, changes)
        arrays = {} if kinds[-1].of_words else encoder.stored(texts)
        names = [each.name for each in kinds]
        place = self._place if is_url(self._place) or hub.is_name(self._place) else str(Path(self._place).absolute())
        made = StoredIndex(place, names, of_dense, changes, texts, metadata or [{}] * len(texts), arrays, self._chosen)
        return self.over_stored(made)

    def over_stored(self, stored: StoredIndex, is_checked: bool = True) -> DocumentIndex:
        """An index of what is stored of it.

        Args:
          is_checked: whether this model is known to have made it.

        Raises:
          UserError: another model has.
        """
        if stored.arrays and not is_checked:
            if (chosen := tuple(stored.chosen)) != self._chosen:
                raise UserError(f"the index is of a model that was loaded with {chosen}, not {tuple(self._chosen)}")
            stored_index.check_model(stored, self._encoder.stored(stored.documents[:1]), self._place)
        built = {name: self._built(INDEXES[name], stored) for name in stored.kinds}
        return DocumentIndex(stored.documents, built, stored.weight, self._merged, stored)

    def _check_options(self, kind: IndexKind, changes: Options) -> None:
        """Checks that an index of a kind can be built with the options, before texts are encoded for it."""
        options = {**indexes.options_of(kind, self._encoder.config), **changes}
        kind.check(options)
        kind.inputs(options)
        if not kind.of_words:
            self._encoder.check_kind(kind)

    def _built(self, kind: IndexKind, stored: StoredIndex) -> Search:
        """An index of a kind, in memory."""
        encoder = self._encoder
        options = {**indexes.options_of(kind, encoder.config), **stored.options}
        if not kind.of_words:
            return encoder.over_stored(kind, stored.arrays, options)
        folds = functools.partial(getattr, encoder.vocabulary, "folds_accents")
        return kind.build(Texts("documents", lambda: iter(stored.documents), folds), options).search

    def rerank(self, query: str, documents: Sequence[Document | Hit]) -> list[Hit]:
        """Documents in the order of the reranker's scores, best first.

        Args:
          documents: hits of a search, texts, or records with a 'text' and a 'title'.

        Raises:
          UserError: the run has no reranker, or a document is none.
        """
        check_query(query)
        passages = hits_of_documents(documents)
        scores = self._reranker.scores_of(query, candidates_of(passages)).tolist()
        order = sorted(range(len(passages)), key=lambda place: -scores[place])
        return [passages[place]._replace(score=scores[place]) for place in order]

    def answer(self, question: str, passages: Sequence[Document | Hit] | None = None, k: int = 1) -> list[Answer]:
        """The best `k` answers to a question, best first; fewer where there are fewer.

        Args:
          passages: what is read: hits of a search, texts, or records with a 'text' and a 'title', of which the first
            `config.answer.paragraphs` count. By default the run's own passages are searched.

        Raises:
          UserError: the run has no reader, or no index of passages of its own where none are given; or k is below 1.
        """
        check_query(question)
        check_count(k)
        answerer = self._answerer
        own = passages is None
        hits = self._own_passages.search(question, answerer.paragraphs) if own else hits_of_documents(passages)
        return answerer.answers(question, hits, k)

    @functools.cached_property
    def _answerer(self) -> Answerer:
        if self._run:
            answering.fetch(self._run)
        answerer = answering.open_answerer(self._run) if self._run else None
        if not answerer:
            raise self._without("reader", answering.MODEL)
        return answerer

    def _without(self, kind: str, field: str) -> UserError:
        where = f"a run that trains one (config.recipe={kind}), or that names one in {field}"
        return UserError(f"{self._place}: there is no {kind}: load the work directory of {where}")

    @functools.cached_property
    def _own_passages(self) -> DocumentIndex:
        assert self._run, "a model with a reader has one"
        words = self._run.owner("index").config.index.words[:1]
        if not (words or self._loaded):
            raise UserError(f"{self._place}: the run has no index of its passages: give passages to read")
        kinds = [INDEXES[name] for name in (*words, *([EXACT] if self._loaded else []))]
        return self._of_run(kinds, fused.weight_of(self._run, self._run.chain).dense)

    @functools.cached_property
    def _reranker(self) -> PairScorer:
        run, kind = self._run, TRAINED["reranker"]
        is_own = run and recipe_of(run.owner("train").config).reranks
        model = run.config.rerank.model if run and not is_own else ""
        if not run or not (is_own or is_place(model)):
            raise self._without("reranker", _RERANKER)
        kind.fetch(run, model, _RERANKER)
        return kind.open(run, model, _RERANKER)

    @property
    def _encoder(self) -> Encoder:
        if self._loaded is None:
            raise UserError(f"{self._place}: the model embeds nothing: call rerank or answer, or load a run of towers")
        return self._loaded

    def _of_run(self, kinds: Sequence[IndexKind], weight: float, changes: Options = NO_OPTIONS) -> DocumentIndex:
        """The indexes that a run has made of its own passages."""
        if (run := self._run) is None:
            raise UserError(f"{self._place}: an export, which has no passages of its own: give documents to index")
        downloads.bring(run, [_READS_THE_INDEXES])
        runner.check_read(run, _READS_THE_INDEXES)
        collection, opened = open_collection(run, CORPUS), dict[str, Search]()
        for each in kinds:
            if each.of_words:
                way = "add it to config.index.words, and run the stage index with config.encode.corpus=True"
                is_there = collection.index(each.name).exists()
                search = indexes.open_words(each, collection).search if is_there else None
            else:
                options, way = {**indexes.options_of(each, self._encoder.config), **changes}, self._encoder.without
                search = self._encoder.over_passages(each, run, options)
            if search is None:
                lack = f"the run has no index '{each.name}' of its corpus"
                raise UserError(f"{self._place}: {lack}: {way}, or give documents to index")
            opened[each.name] = search
        return DocumentIndex(document_texts.own_passages(run, collection), opened, weight, self._merged)

    @property
    def _merged(self) -> int:
        """How many results of each list a hybrid merges: as many as the stage `search` does."""
        return (self._run.config if self._run else self._encoder.config).evaluate.depth


def _in_parts(encode: Callable[[Sequence[Any]], Any], texts: Sequence[Any], batch_size: int, shows: bool) -> Any:
    """What an encoder makes of texts, so many at a time."""
    check_count(batch_size or 0, "batch_size", 0)
    size = batch_size or (_SHOWN if shows else 0) or max(1, len(texts))
    parts: Any = [texts[start : start + size] for start in range(0, max(1, len(texts)), size)]
    made = list(map(encode, terminal.progress(parts, desc="encode") if shows else parts))
    if isinstance(made[0], list):
        return [vectors for part in made for vectors in part]
    return scipy.sparse.vstack(made, "csr") if scipy.sparse.issparse(made[0]) else np.concatenate(made)


def _normalised(embeddings_NE: np.ndarray) -> np.ndarray:
    return embeddings_NE / np.maximum(np.linalg.norm(embeddings_NE, axis=1, keepdims=True), 1e-12)

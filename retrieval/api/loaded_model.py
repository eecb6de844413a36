"""A trained model to encode and to search with: what `retrieval.load` returns."""

import functools
import itertools
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.api import answering
from retrieval.api.answering import Answer, Answerer
from retrieval.api.document_index import DocumentIndex, Hit, check_count, hit_of
from retrieval.api.document_texts import (
    Document,
    candidates,
    check_fields,
    check_ids,
    check_list,
    checked_text,
    is_list,
    own_passages,
    read_passages,
)
from retrieval.api.text_rows import Card, TextRows, with_room
from retrieval.config import experiment
from retrieval.config.fields import check_value, declared
from retrieval.data.corpora.passages import Limits
from retrieval.data.sets.beir import Candidate
from retrieval.data.tokenizers import prompts
from retrieval.errors import UserError, hub_hint, unknown_name
from retrieval.models.encoder_folder import is_encoder
from retrieval.pipeline import downloads, preflight, records, runner
from retrieval.pipeline.run import Run
from retrieval.recipes import exported_towers, initial_parameters, prompted, towers
from retrieval.recipes.encoder_sizes import longest_text
from retrieval.recipes.exported_towers import Chosen, ExportedTowers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.towers import Embedder
from retrieval.recipes.trained_model import TRAINED, PairScorer, is_place
from retrieval.runtime import artefacts, hub
from retrieval.runtime.model_folder import DOCUMENT, QUERY
from retrieval.runtime.store import is_url
from retrieval.search import encoding, text_batches, vector_codes
from retrieval.search.index_kind import DENSE, EXACT, INDEXES, NO_OPTIONS, OF_WORDS, IndexKind, Options, Texts
from retrieval.search.side_by_side import HYBRID, Search
from retrieval.stages import indexes
from retrieval.stages.collection import CORPUS, Collection, open_collection

# Stages that read what is copied down of a run on a store.
_READS_THE_MODEL, _READS_THE_INDEXES = "export", "search"
_RERANKER = "config.rerank.model"
_FEW = 32  # texts that are embedded as one batch


def load(path: str | Path, query_prompt: str = "", document_prompt: str = "", truncate_dim: int = 0) -> "Model":
    """The model of a finished run, or the towers of an export or of another published model.

    Args:
      path: the work directory of a run, which may be on an object store; or the folder that the stage `export`,
        sentence-transformers or transformers wrote, or its name on Hugging Face's hub, such as 'hf:me/towers'.
      query_prompt, document_prompt: names of two of the prompts of a published model, where it has several; by default
        those of queries and of documents.
      truncate_dim: how many dimensions its embeddings keep, the first ones; by default as many as it says.

    Raises:
      UserError: there is none, or a part of it is not understood, or the training has not ended.
    """
    chosen = Chosen(query_prompt, document_prompt, truncate_dim)
    path = os.path.expanduser(path)
    copy = artefacts.copy_of(path) if is_url(path) else None
    folder = copy.folder if copy else hub.path(path)
    if is_encoder(folder):
        return Model(exported_towers.read(folder, experiment.defaults(), chosen), path)
    if not (folder / preflight.CONFIG).exists():
        raise UserError(
            f"{path}: neither the work directory of a run nor a model; name the --workdir of a run, or a folder that "
            f"sentence-transformers or transformers saved{hub_hint(path)}"
        )
    if any(chosen[:2]):
        raise UserError(
            f"{path}: a run has the prefixes that it was trained with, config.data.query_prefix and "
            "config.data.document_prefix: leave them out; encode_queries and encode_documents take a prompt_name"
        )
    config = preflight.read_config(folder)
    experiment.load_plugins(config.plugins)
    run = Run(config, folder, Path(), copy=copy)
    downloads.bring(run, [_READS_THE_MODEL])
    trained = run.holder("train")
    if "train" in trained.config.stages and not records.is_done(trained, "train"):
        raise UserError(
            f"{trained.place}: the training has not ended: `python -m retrieval.main --workdir={trained.place}` "
            "goes on with it"
        )
    return of_run(run, truncate_dim)


def of_run(run: Run, truncate_dim: int = 0) -> "Model":
    """The model of a run whose files are here.

    Args:
      truncate_dim: dimensions of an embedding that are kept; by default as many as the run's own have.

    Raises:
      UserError: it has trained nothing that encodes, reranks or reads; or has fewer dimensions.
    """
    trained = recipe_of(run.holder("train").config)
    if any(kind.is_of(trained) for kind in TRAINED.values()):
        return Model(None, run.place, run)
    config = towers.truncated(initial_parameters.of_towers(run), truncate_dim, "truncate_dim")
    vocabulary = run.load_vocabulary()
    params = parameters_of(initial_parameters.load_towers(run, len(vocabulary)))
    return Model(ExportedTowers(config.copy_and_resolve_references(), vocabulary, params), run.place, run)


class Model:
    """Two trained towers, a reranker, a reader, or several of these.

    They answer alike in any thread, and keep the order of what they get.
    """

    def __init__(self, towers: ExportedTowers | None, place: str, run: Run | None = None):
        """Args:
        towers: None where there is a reranker or a reader alone.
        place: where the model is, for people.
        run: whose passages, reranker and reader these are; None for an export.
        """
        self._run, self._place, self._has_towers = run, place, towers is not None
        if towers is None:
            return
        self._config, self._vocabulary = towers.config, towers.vocabulary
        # Where prompts are not pooled, those of other sizes are other programs with the same parameters.
        self._params = towers.params if any(self._config.model.pool_from) else None
        self._embedders = {tuple(self._config.model.pool_from): self._embedder(self._config, towers.params)}
        self._devices = local_mesh(self._config).size

    def __repr__(self) -> str:
        return f"Model({self._place})"

    @property
    def normalizes(self) -> bool:
        """Whether embeddings have length 1, so that their inner products are cosines.

        Raises:
          UserError: the model embeds nothing.
        """
        self._check_towers()
        return self._config.model.normalize

    def compile_queries(self, most: int) -> None:
        """Compiles what embeds up to so many queries at once: otherwise the first of every shape wait for it."""
        rows = [1 << power for power in range(min(most, _FEW).bit_length() + 1)]
        for length in text_batches.lengths_up_to(self._config.data.query_length):
            for count in (row for row in rows if row < 2 * min(most, _FEW)):
                encoding.encode_few([[0] * length] * count, self._tower(QUERY), length, self._devices)

    @property
    def prompts(self) -> dict[str, str]:
        """The model's prompts by name: 'query' and 'document', be they empty, and others that it has."""
        self._check_towers()
        return prompts.table(self._config.data)

    def encode_queries(
        self, queries: Sequence[str], prompt_name: str | None = None, prompt: str | None = None
    ) -> np.ndarray:
        """Embeddings of queries, float32 [Q, E].

        Args:
          prompt_name: the name of the one of `prompts` that stands before each; by default it is 'query'.
          prompt: what stands before each instead, '' for nothing.

        Raises:
          UserError: both are given, there is no such prompt, or it leaves no room for a text.
        """
        return self.embed(self.query_rows(queries, prompt_name, prompt))

    def encode_documents(
        self, documents: Sequence[Document], prompt_name: str | None = None, prompt: str | None = None
    ) -> np.ndarray:
        """Embeddings of documents, float32 [N, E]; of long ones that of the beginning.

        Args:
          documents: texts, or records with a 'text' and a 'title'.
          prompt_name, prompt: as in `encode_queries`; by default the prompt is 'document'.

        Raises:
          UserError: as `encode_queries`, or a document is none.
        """
        return self.embed(self.document_rows(documents, prompt_name, prompt))

    def query_rows(
        self, queries: Sequence[str], prompt_name: str | None = None, prompt: str | None = None, room: int = 0
    ) -> TextRows:
        """Queries as token ids, for `embed`: what `encode_queries` begins with.

        Args:
          room: tokens that a row may have beyond those that the tower takes. A text is cut where it has another row
            with room.

        Raises:
          UserError: as `encode_queries`.
        """
        self._check_towers()
        if not is_list(queries):
            raise UserError(
                "encode_queries takes a list of texts; write [query], or of a table table['query'].tolist()"
            )
        texts = [checked_text(query, f"query {place}") for place, query in enumerate(queries)]
        config = self._config_of(QUERY, prompt_name, prompt)
        rows = towers.query_tokens(with_room(config, room), self._vocabulary, texts)
        return TextRows(rows, self._tower(QUERY, config))

    def document_rows(
        self, documents: Sequence[Document], prompt_name: str | None = None, prompt: str | None = None, room: int = 0
    ) -> TextRows:
        """Documents as token ids, as `query_rows`.

        Raises:
          UserError: as `encode_documents`.
        """
        self._check_towers()
        config = self._config_of(DOCUMENT, prompt_name, prompt)
        rows = towers.candidate_windows(with_room(config, room), self._vocabulary, candidates(documents))
        return TextRows([windows[0] for windows in rows], self._tower(DOCUMENT, config))

    def embed(self, rows: TextRows) -> np.ndarray:
        """Embeddings of texts, float32 [N, E]."""
        return self._embed(rows.tower, rows.ids)

    @property
    def card(self) -> Card:
        """What the towers are, for those who ask for embeddings."""
        self._check_towers()
        form, config = towers.form_of(self._config), self._config
        trained = self._run.holder("train").config.train.matryoshka if self._run else ()
        sizes = tuple(sorted({*(size for size in trained if size < form.dim), form.dim}))
        lengths = {QUERY: config.data.query_length, DOCUMENT: config.data.document_length}
        return Card(sizes, lengths, config.model.pooling, config.model.dtype, config.data.default_prompt)

    def index(
        self,
        documents: Sequence[Document] | str | Path | None = None,
        kind: str = EXACT,
        weight: float | None = None,
        fields: Mapping[str, str] | None = None,
        precision: str | None = None,
        rescore: int | None = None,
    ) -> DocumentIndex:
        """An index of documents that can be searched.

        Args:
          documents: texts or records; or a file or a folder, whose documents are cut into passages. By default the
            passages that the run itself has indexed.
          kind: of index: 'exact', 'quantised' and 'scann' are of embeddings, 'bm25' is of words. 'hybrid' merges the
            run's first index of words with exact search.
          weight: of the embeddings in a hybrid; by default `fuse.dense_weight` of the run.
          fields: what the records of a file call 'id', 'title', 'text' and 'url'. These win over `documents` of the
            run, which has the names of the others.
          precision: of 'quantised', such as 'int8' or 'binary'; by default `index.precision` of the run.
          rescore: of 'quantised' and 'scann', how many results for each that is asked for the embeddings score again;
            by default `index.rescore` of the run.

        Raises:
          UserError: there is no document, two have one id, there is no such kind, or `fields` without a path; or
            `precision` or `rescore` with another kind, or of no such value.
        """
        self._check_towers()
        if kind not in (*INDEXES, HYBRID):
            raise unknown_name("kind of index", str(kind), [*INDEXES, HYBRID])
        if weight is not None and not (isinstance(weight, numbers.Real) and 0 <= weight <= 1):
            raise UserError(f"weight={weight!r}: a number from 0 to 1 is needed")
        of_dense: float = self._config.fuse.dense_weight if weight is None else weight
        of_index = self._run.holder("index").config if self._run and documents is None else self._config
        kinds = [INDEXES[name] for name in ((of_index.index.words[0], EXACT) if kind == HYBRID else (kind,))]
        given = {"index.precision": precision, "index.rescore": rescore}
        given = {name: value for name, value in given.items() if value is not None}
        for name, value in given.items():
            if name not in kinds[-1].options:
                raise UserError(
                    f"{name.removeprefix('index.')}={value!r}: an index of kind '{kind}' has none; leave it out"
                )
            check_value(name, value, declared()[name].kind)
        if fields is not None:
            check_fields(fields)
        if fields and not isinstance(documents, str | Path):
            raise UserError("fields names the columns of a file, and no path is given: records have 'id' and 'text'")
        if documents is None:
            return self._of_run(self._run, kinds, of_dense, given)
        if isinstance(documents, str | Path):
            if not str(documents):
                raise UserError("the path of the documents is empty; write '.' for the current folder")
            path, names = Path(documents).expanduser(), {**self._of_prepare.documents, **(fields or {})}
            texts = list(read_passages(path, self._vocabulary, self._limits(), names))
        else:
            texts = candidates(documents)
            check_ids(texts)
        if not texts:
            raise UserError("there is no document to index")
        built = {each.name: self._built(each, texts, given) for each in kinds}
        return DocumentIndex(texts, built, of_dense, self._merged)

    def rerank(self, query: str, documents: Sequence[Document | Hit]) -> list[Hit]:
        """Documents in the order of the reranker's scores, best first.

        Args:
          documents: hits of a search, texts, or records with a 'text' and a 'title'.

        Raises:
          UserError: the run has no reranker, or a document is none.
        """
        if not checked_text(query, "the query").strip():
            raise UserError("the query is empty")
        passages = _candidates(_listed(documents))
        scores = self._reranker.scores_of(query, passages).tolist()
        order = sorted(range(len(passages)), key=lambda place: -scores[place])
        return [hit_of(passages[place], scores[place]) for place in order]

    def answer(self, question: str, passages: Sequence[Document | Hit] | None = None, k: int = 1) -> list[Answer]:
        """The best `k` answers to a question, best first; fewer where there are fewer.

        Args:
          passages: what is read: hits of a search, texts, or records with a 'text' and a 'title', of which the first
            `config.answer.paragraphs` count. By default the run's own passages are searched. Beside their scores the
            reader's has the weight that `config.answer.validation` chose, beside given ones `config.answer.weight`.

        Raises:
          UserError: the run has no reader, or no index of passages of its own where none are given; or k is below 1.
        """
        if not checked_text(question, "the question").strip():
            raise UserError("the question is empty")
        check_count(k)
        answerer = self._answerer
        if passages is None:
            hits, system = self._own_passages.search(question, answerer.paragraphs), self._own_passages.system
        else:
            passages, system = _listed(passages), ""
            scores = [each.score if isinstance(each, Hit) else 0.0 for each in passages]
            hits = list(map(hit_of, _candidates(passages), scores))
        return answerer.answers(question, hits, k, system)

    @functools.cached_property
    def _answerer(self) -> Answerer:
        if self._run:
            answering.fetch(self._run)
        answerer = answering.open_answerer(self._run) if self._run else None
        if not answerer:
            raise UserError(
                f"{self._place}: there is no reader: load the work directory of a run that trains one "
                "(config.recipe=reader), or that names one in config.answer.model"
            )
        return answerer

    @functools.cached_property
    def _own_passages(self) -> DocumentIndex:
        assert self._run, "a model with a reader has one"
        words = [INDEXES[name] for name in self._run.holder("index").config.index.words[:1]]
        if not (words or self._has_towers):
            raise UserError(f"{self._place}: the run has no index of its passages: give passages to read")
        kinds = [*words, *([INDEXES[EXACT]] if self._has_towers else [])]
        return self._of_run(self._run, kinds, self._run.config.fuse.dense_weight)

    @functools.cached_property
    def _reranker(self) -> PairScorer:
        run, value = self._run, ""
        if run and not recipe_of(run.holder("train").config).reranks:
            value = run.config.rerank.model
            run = run if is_place(value) else None
        if run is None:
            raise UserError(
                f"{self._place}: there is no reranker: load the work directory of a run that trains one "
                "(config.recipe=reranker), or that names one in config.rerank.model"
            )
        TRAINED["reranker"].fetch(run, value, _RERANKER)
        return TRAINED["reranker"].open(run, value, _RERANKER)

    def _config_of(self, side: str, prompt_name: str | None, prompt: str | None) -> ConfigDict:
        text = prompts.chosen(self._config.data, side, prompt_name, prompt)
        return prompted.with_prompts(self._config, self._vocabulary, **{side: text})

    def _check_towers(self) -> None:
        if not self._has_towers:
            raise UserError(f"{self._place}: the model embeds nothing: call rerank or answer, or load a run of towers")

    def check_embeddings(self, collection: Collection) -> None:
        """Checks that stored embeddings are such as the model gives.

        Raises:
          UserError: they are of another size, length or precision.
        """
        vector_codes.check(collection.embeddings(), "candidates", towers.form_of(self._config))

    def _of_run(
        self, run: Run | None, kinds: Sequence[IndexKind], weight: float, given: Options = NO_OPTIONS
    ) -> DocumentIndex:
        if run is None:
            raise UserError(f"{self._place}: an export, which has no passages of its own: give documents to index")
        downloads.bring(run, [_READS_THE_INDEXES])
        runner.check_read(run, _READS_THE_INDEXES)
        collection = open_collection(run, CORPUS)
        for each in kinds:
            is_built_now = each.name in DENSE and not each.is_saved and collection.has_embeddings()
            if not (is_built_now or collection.index(each.name).exists()):
                way = (
                    "add it to config.index.words, and run the stage" if each.of_words else "run the stages encode and"
                )
                raise UserError(
                    f"{self._place}: the run has no index '{each.name}' of its corpus: {way} index with "
                    "config.encode.corpus=True, or give documents to index"
                )
        opened: dict[str, Search] = {}
        for each in kinds:
            if each.of_words:
                opened[each.name] = indexes.open_words(each, collection).search
            else:
                self.check_embeddings(collection)
                options = {**indexes.options_of(each, self._config), **given}
                each.check(options)
                opened[each.name] = self._of_texts(indexes.open_dense(each, collection, options).search)
        return DocumentIndex(own_passages(run, collection), opened, weight, self._merged)

    @property
    def _merged(self) -> int:
        """How many results of each list a hybrid merges: as many as the stage `search` does."""
        return (self._run.config if self._run else self._config).evaluate.depth

    def _built(self, kind: IndexKind, texts: Sequence[Candidate], given: Options) -> Search:
        options = {**indexes.options_of(kind, self._config), **given}
        kind.check(options)
        kind.inputs(options)
        if kind.name in OF_WORDS:
            folds_accents = functools.partial(getattr, self._vocabulary, "folds_accents")
            return kind.build(Texts("documents", lambda: iter(texts), folds_accents), options).search
        if not kind.available():
            raise UserError(f"the index '{kind.name}' cannot be used on this machine; take 'exact'")
        rows = towers.candidate_windows(self._config, self._vocabulary, texts)
        owners_W = np.repeat(np.arange(len(rows), dtype=np.int32), list(map(len, rows)))
        embeddings_WE = self._embed(self._tower(DOCUMENT), list(itertools.chain.from_iterable(rows)))
        index = indexes.finished(kind.build(embeddings_WE, options), options, lambda: embeddings_WE, owners_W)
        return self._of_texts(index.search)

    def _of_texts(self, search: Callable[[np.ndarray, int], Any]) -> Search:
        return lambda queries, k: search(self.encode_queries(queries), k)

    def _tower(self, side: str, config: ConfigDict | None = None) -> Callable[[np.ndarray], np.ndarray]:
        """What embeds the rows of a side, pooled from where a config says, by default the model's own."""
        config = config or self._config
        places = tuple(config.model.pool_from)
        if places not in self._embedders:
            self._embedders[places] = self._embedder(config, self._params)
        return self._embedders[places][side]

    def _embedder(self, config: ConfigDict, params: Any) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
        embedder = Embedder(config, self._vocabulary, local_mesh(config))
        return {QUERY: embedder.queries(params), DOCUMENT: embedder.documents(params)}

    def _embed(self, tower: Callable[[np.ndarray], np.ndarray], tokens: Sequence[Sequence[int]]) -> np.ndarray:
        if not tokens:
            return np.zeros((0, self._embed(tower, [[0]]).shape[1]), np.float32)
        longest = longest_text(self._config)
        if len(tokens) <= _FEW:
            return encoding.encode_few(tokens, tower, longest, self._devices)
        return encoding.encode_rows(tokens, tower, self._config.encode.batch_tokens, longest, self._devices)

    @property
    def _of_prepare(self) -> ConfigDict:
        return self._run.holder("prepare").config if self._run else self._config

    def _limits(self) -> Limits:
        prepare = self._of_prepare.prepare
        names = ("longest_passage", "shortest_paragraph", "least_passage", "across_sections")
        return Limits(*(prepare[name] for name in names))


def _listed(documents: Sequence[Document | Hit]) -> list[Document | Hit]:
    check_list(documents)
    return list(documents)


def _candidates(documents: Sequence[Document | Hit]) -> list[Candidate]:
    """Hits, texts and records as candidates."""
    return candidates([each._asdict() if isinstance(each, Hit) else each for each in documents])

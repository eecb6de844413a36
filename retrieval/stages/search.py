"""The stage `search`: a query of one's own against the corpus, or the passages of labelled examples."""

import functools
from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from retrieval import terminal
from retrieval.config.fields import Field, declare, whole
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.initial_parameters import check_towers, load_towers, of_towers
from retrieval.recipes.placement import local_mesh, parameters_of
from retrieval.recipes.towers import Embedder, query_tokens
from retrieval.search import fusion
from retrieval.search.index_kind import EXACT, INDEXES, IndexKind, Options
from retrieval.search.windows import Index
from retrieval.stage_outputs import Run
from retrieval.stages import indexes
from retrieval.stages.collection import CORPUS, Collection, of_pairs, open_collection

_WIDTH = 160

declare("search", k=Field(5, whole(1), "hits that --stage=search shows"))


def check(config: ConfigDict) -> None:
    """Checks the number of hits.

    Raises:
      UserError: it is more than are looked for.
    """
    if config.search.k > config.evaluate.depth:
        raise UserError(
            f"config.search.k={config.search.k}: no more than config.evaluate.depth={config.evaluate.depth} hits are "
            "looked for; lower the first or raise the second"
        )


def search(run: Run) -> None:
    """Prints the first hits of the dense index, of those of words and of both merged, each with its id, title and text.

    Raises:
      UserError: there is no query, or the corpus has not been indexed.
    """
    if not run.query.strip():
        raise UserError("--stage=search needs a query: --query='how do I read a zip archive'")
    if not (run.prepares or run.passages):
        raise UserError(
            f"--stage=search looks among the passages of a prepared corpus or of labelled examples, and {run.place} "
            "has none: add 'prepare' to config.stages with a dump in config.corpus, set config.pairs.files, or set "
            "config.base to a run that has one; in an evaluation set --stage=evaluate searches for its own queries"
        )
    collection, depth = open_collection(run, CORPUS), run.config.evaluate.depth
    of_words = indexes.kinds_of_words_of(collection, run.config.index.words)
    if not of_words:
        raise UserError(
            f"{run.folder} has no index of the corpus: run the stages encode and index with encode.corpus=True"
        )
    lists = {kind.title: indexes.open_words(kind, collection).search([run.query], depth) for kind in of_words}
    if collection.has_embeddings():
        words = lists[of_words[0].title]
        options_of = functools.partial(indexes.options_of, config=run.holder("index").config)
        dense = _dense_index(collection, options_of, depth).search(_embed(run), depth)
        lists = {"dense": dense} | lists | {"merged": fusion.hybrid(words, dense, fusion.DENSE_WEIGHT, depth)}
    shown = min(run.config.search.k, depth)
    wanted = {row for _, rows in lists.values() for row in rows[0, :shown].tolist()}
    passages = {row: text for row, text in enumerate(collection.candidates()) if row in wanted}
    for system, (scores, rows) in lists.items():
        print(f"\n{system}")
        for rank in range(shown):
            if rows[0, rank] >= 0:
                print(hit(rank + 1, scores[0, rank], passages[rows[0, rank]]))


def hit(rank: int, score: float, passage: Candidate) -> str:
    """Two lines for a terminal; what the passage holds cannot do anything to it."""
    id, title, text = (terminal.one_line(part) for part in (passage.id, passage.title, passage.text))
    text = text if len(text) <= _WIDTH else text[:_WIDTH].rsplit(" ", 1)[0] + " ..."
    return f"{rank:3}. {score:9.4f}  [{id}]{title and '  '}{title}\n     {text}"


def _dense_index(collection: Collection, options_of: Callable[[IndexKind], Options], depth: int) -> Index:
    """The dense index that there is, or exact search where there is none."""
    kind = next(iter(indexes.dense_kinds_of(collection)), INDEXES[EXACT])
    return indexes.open_dense(kind, collection, options_of(kind), depth)


def _embed(run: Run) -> np.ndarray:
    config, vocabulary = of_towers(run).copy_and_resolve_references(), run.load_vocabulary()
    config.encode.batch_tokens = 1  # there is one query, and no batch to fill
    params = parameters_of(load_towers(run, len(vocabulary)))
    embedder = Embedder(config, vocabulary, local_mesh(config))
    return embedder.embed_rows(embedder.queries(params), query_tokens(config, vocabulary, [run.query]))


STAGES.register(
    "search",
    Stage(
        search,
        check_settings=(check,),
        check=(check_towers,),
        reads="indexes of the corpus, or of labelled examples",
        writes="prints hits for `--query`",
        uses=("seed", "model", "data.query_length", "data.document_length", "evaluate.depth"),
        needs=("index", "prepare", "sets"),
        also=of_pairs,
        needs_if_made=("encode", "train"),
        texts_of=("prepare",),
        inputs=Run.vocabulary_inputs,
        always=True,
    ),
)

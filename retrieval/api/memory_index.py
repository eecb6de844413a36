"""An index of documents in memory, which can change."""

import functools
from collections.abc import Callable, Sequence

import numpy as np

from retrieval.api import changing_documents
from retrieval.api.changing_documents import ChangingDocuments, Kinds
from retrieval.api.document_index import Opened
from retrieval.api.document_texts import Document, document_of, whole_with_ids
from retrieval.api.tower_encoder import TowerEncoder
from retrieval.api.vector_encoder import VectorEncoder
from retrieval.data.sets.beir import Candidate
from retrieval.search import bm25_kind
from retrieval.search.bm25_kind import Bm25
from retrieval.search.index_kind import INDEXES, IndexKind, Options, Texts
from retrieval.search.side_by_side import Search
from retrieval.segments.changing import InMemory
from retrieval.segments.segment import Segment
from retrieval.stages import indexes


def build(
    passages: Sequence[Candidate],
    kinds: Kinds,
    encoder: TowerEncoder | VectorEncoder,
    with_ids: Callable[[Sequence[Document]], dict[str, list[Candidate]]],
) -> tuple[Opened, ChangingDocuments]:
    """What is searched, and what changes it.

    Args:
      passages: of the first documents.
      kinds: of index.
      with_ids: records to documents by their ids, with their passages, which `passages` were made as.

    Raises:
      UserError: the options of a kind do not fit, it cannot be used here, or no passage has a word.
    """
    folds = functools.partial(getattr, encoder.vocabulary, "folds_accents")
    texts = Texts("documents", lambda: iter(passages), folds)
    towers = encoder if isinstance(encoder, TowerEncoder) else None
    embed = functools.cache(lambda towers: towers.embed_windows(passages))  # once for all that need it

    def built(kind: IndexKind, options: Options) -> Search:
        kind.check(options)
        kind.inputs(options)
        if kind.of_words:
            return kind.build(texts, options).search
        if isinstance(encoder, TowerEncoder):
            return encoder.over_windows(kind, embed(encoder), options)
        return encoder.over_texts(kind, passages, options)

    def first() -> Segment:
        document = str if with_ids is whole_with_ids else document_of
        vectors, owner_W = embed(towers) if recipe.embed else (None, np.arange(len(passages), dtype=np.int32))
        return changing_documents.first_segment(passages, document, vectors, owner_W, recipe)

    of = bm25_kind.words(texts, indexes.options_of(INDEXES[Bm25.name], encoder.config))
    recipe = changing_documents.recipe_of(kinds, of, towers)
    opened = Opened(passages, {name: built(INDEXES[name], options) for name, options in kinds.items()})
    refusal = changing_documents.why_fixed(kinds, towers)
    return opened, ChangingDocuments(InMemory(), recipe, kinds, towers, first, with_ids, refusal=refusal)

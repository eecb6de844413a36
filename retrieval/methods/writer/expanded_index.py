"""The index 'doc2query': BM25 over passages and the queries that a model wrote of them (Nogueira et al. 2019)."""

from collections.abc import Sequence
from pathlib import Path

from retrieval.common.errors import UserError
from retrieval.methods.writer.examples import read
from retrieval.search import passage_files
from retrieval.search.bm25 import Bm25Index, Bm25Kind, words_of
from retrieval.search.index_kind import Options, Texts, register

MOST = 40  # queries of a passage that are appended, the first ones


@register
class Doc2Query(Bm25Kind):
    """The index 'doc2query' (Nogueira et al. 2019): BM25 over title, text and written queries of each passage."""

    name, title, system = "doc2query", "BM25 over expanded passages", "doc2query"
    options = (*Bm25Kind.options, "index.expansions")

    def inputs(self, options: Options) -> Sequence[Path]:
        named = options["index.expansions"]
        return passage_files.inputs("config.index.expansions", named) if named else []

    def preview(self, options: Options) -> None:
        for path in self.inputs(options):
            next(read(path), None)

    def stages(self, options: Options) -> Sequence[str]:
        return () if options["index.expansions"] else ("generate",)

    def build(self, contents: Texts, options: Options) -> Bm25Index:
        value = options["index.expansions"]
        path = passage_files.path_of(value, contents.name) if value else contents.generated
        if path is None:
            raise UserError("doc2query: no queries were written of these texts; name a file in config.index.expansions")
        lines = ((line.document, line.text) for line in read(path))
        queries, counts = passage_files.by_passage(path, lines, contents)
        texts = (" ".join([self.text(passage), *queries[passage.id][:MOST]]) for passage in contents.passages())
        document = f"title + text + up to {MOST} written queries ({counts})"
        return Bm25Index.build(texts, document, *self.parameters(options), words_of(contents, options))

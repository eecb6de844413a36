"""The format of evaluation sets 'pydocs': known items, held out of the corpus 'pydocs'.

Training reads no sentence of theirs (`holdout`). An item whose query stands within a longer sentence of the corpus, as
in a list of a module's functions, is left out.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

from retrieval.data.corpora import pydocs, sources
from retrieval.data.corpora.articles import Article
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.sets.occurrences import Occurrences, words
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError


@register
class KnownItems(SetFormat):
    """The functions that `prepare` held out."""

    name = "pydocs"
    what = "held-out docstrings of the installed packages"
    setting = "--config.sets.pydocs=True"
    example = "def f(): ..."
    options = ("corpus", "prepare.held_out")
    holds_out = True

    def read(self, value: bool, given: Given) -> Iterator[RetrievalSet]:
        def items() -> Iterator[Any]:
            return itertools.chain.from_iterable(map(sources.read_articles, sources.article_files(given.corpus)))

        yield _asked_alone(pydocs.known_items(items()), (item for item in items() if isinstance(item, Article)))

    def sources(self, value: Any) -> list[str]:
        return []

    def check(self, value: bool, options: Options, has_corpus: bool) -> None:
        if options["corpus"] != "pydocs":
            raise UserError(
                "config.sets.pydocs is held out of the corpus 'pydocs': set config.corpus=pydocs, or turn it off with "
                "--config.sets.pydocs=False"
            )
        if not options["prepare.held_out"]:
            raise UserError(
                "config.sets.pydocs needs functions that are held out: set config.prepare.held_out, such as 0.2"
            )


def _asked_alone(value: RetrievalSet, articles: Iterable[Article]) -> RetrievalSet:
    """The set without the items whose query an article has."""
    occurrences = Occurrences(map(words, value.queries.values()))
    texts = (p.text for article in articles for section in article.sections for p in section.paragraphs)
    shared = {found for text in texts for found in occurrences.inside(words(text))}
    queries = {id: query for id, query in value.queries.items() if words(query) not in shared}
    candidates = [candidate for candidate in value.candidates if candidate.id in queries]
    return dataclasses.replace(
        value, queries=queries, candidates=candidates, qrels={"test": {id: {id: 1} for id in queries}}
    )

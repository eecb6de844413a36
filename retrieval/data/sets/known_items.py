"""The format of evaluation sets 'pydocs': known items, held out of the corpus 'pydocs'."""

from collections.abc import Iterator
from typing import Any

from retrieval.config.fields import SWITCH
from retrieval.data.corpora import pydocs, sources
from retrieval.data.sets.beir import RetrievalSet
from retrieval.data.sets.set_format import Given, Options, SetFormat, register
from retrieval.errors import UserError


@register
class KnownItems(SetFormat):
    """The functions that `prepare` held out."""

    name = "pydocs"
    what = "held-out docstrings of the installed packages"
    setting = "--config.sets.pydocs=True"
    example = "def f(): ..."
    default = False
    kind = SWITCH
    options = ("corpus", "prepare.held_out")
    goes_with = ("corpus", "pydocs")

    def read(self, value: bool, given: Given) -> Iterator[RetrievalSet]:
        paths = sources.article_files(given.corpus)
        yield pydocs.known_items(item for path in paths for item in sources.read_articles(path))

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

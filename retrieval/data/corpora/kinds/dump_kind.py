"""MediaWiki exports as a corpus."""

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import document_format, source_paths, wikipedia, wikitext
from retrieval.data.corpora.corpus_kind import CorpusKind, Options, register
from retrieval.data.corpora.wikipedia import Page
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

_SUFFIXES = (".xml", ".xml.bz2", ".xml.gz", ".bz2")


@register
class Dumps(CorpusKind):
    """Articles with sections, links and redirects."""

    name = "dump"
    what = "MediaWiki exports: .xml, .xml.bz2 or .xml.gz"
    setting = "--config.corpus=pages-articles.xml.bz2,…"

    def takes(self, part: str) -> bool:
        """By the ending of the name."""
        return part.lower().endswith(_SUFFIXES)

    def check(self, parts: Sequence[str], options: Options) -> None:
        """Looks at the first page of each file."""
        for path in source_paths.checked("config.corpus", parts, words=["pydocs"]):
            try:
                wikipedia.read_pages(path)
            except UserError as error:
                if self.takes(str(path)):
                    raise
                raise UserError(f"{error}, or documents, whose names end in {document_format.endings()}") from error

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files."""
        return source_paths.existing(_each_once(parts))

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """The pages of all files. Two dumps may use one id for two pages: ids of the second file begin with '1-'."""
        paths = _each_once(parts)
        if again := len(parts) - len(paths):
            _log.warning("the corpus: %d dumps are named again; each is read once", again)
        for number, path in enumerate(paths):
            for page in wikipedia.read_pages(path):
                yield dataclasses.replace(page, id=f"{number}-{page.id}") if number and isinstance(page, Page) else page

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """An article of wikitext."""
        return wikitext.parse(page)


def _each_once(parts: Sequence[str]) -> list[Path]:
    """The files, each by the first of its paths."""
    first: dict[Path, Path] = {}
    for path in map(Path, parts):
        first.setdefault(path.resolve(), path)
    return list(first.values())

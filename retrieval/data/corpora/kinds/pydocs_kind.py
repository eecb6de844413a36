"""The corpus 'pydocs': the docstrings of the installed packages."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import pydocs, source_paths
from retrieval.data.corpora.corpus_kind import CorpusKind, Options, register
from retrieval.errors import UserError

_HELD_OUT = "prepare.held_out"


@register
class Pydocs(CorpusKind):
    """Needs no data: a first run takes it."""

    name = "pydocs"
    what = "the docstrings of the installed packages"
    setting = "--config.corpus=pydocs"
    options = (_HELD_OUT,)

    def takes(self, part: str) -> bool:
        """The word alone."""
        return part == self.name

    def check(self, parts: Sequence[str], options: Options) -> None:
        """It is there once."""
        if len(parts) > 1:
            raise UserError(f"config.corpus={','.join(parts)}: 'pydocs' is one corpus; name it once")

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The file that pins the packages."""
        return source_paths.existing([lock])

    def size(self, parts: Sequence[str], lock: Path) -> None:
        """Not that of the file."""
        return None

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """The modules."""
        return pydocs.read_pages(lock)

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """A module's article, and its functions that are held out."""
        return pydocs.parse(page, options[_HELD_OUT])

"""The kinds of corpora that `config.corpus` takes. A kind is one file of `kinds/`, or of a plugin."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora.articles import Article, Dropped, KnownItem, Redirect
from retrieval.errors import UserError
from retrieval.registry import Table

Options = Mapping[str, Any]


class CorpusKind:
    """A kind of corpus: a cheap sequential reader of pages, and the dear function that makes articles of them.

    Methods take the parts of `config.corpus`, which stand between commas, and the values of the kind's own fields.

    Attributes:
      name: of the kind.
      what: what people call it.
      setting: the setting that takes it, in words.
      options: fields of the config that it reads, as dotted names.
    """

    name: str
    what: str
    setting: str
    options: Sequence[str] = ()

    def takes(self, part: str) -> bool:
        """Whether a part of `config.corpus` is of this kind."""
        raise NotImplementedError

    def check(self, parts: Sequence[str], options: Options) -> None:
        """Looks at the beginning of what there is.

        Raises:
          UserError: something is missing, or is not what it should be.
        """

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files that are read: the corpus is another one when they change.

        Args:
          lock: the file that pins the installed packages.

        Raises:
          UserError: one is missing.
        """
        return ()

    def size(self, parts: Sequence[str], lock: Path) -> int | None:
        """Bytes of the corpus, as its files have them; None where they say nothing about it."""
        return sum(path.stat().st_size for path in self.inputs(parts, lock)) or None

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """The pages, one after the other; `Redirect`, `Dropped` and `Broken` among them are passed on.

        Raises:
          UserError: nothing can be read.
        """
        raise NotImplementedError

    def parse(self, page: Any, options: Options) -> Sequence[Article | Redirect | KnownItem | Dropped]:
        """What a page holds. Worker processes call it."""
        raise NotImplementedError


CORPORA: Table[CorpusKind] = Table("kind of corpus", "retrieval.data.corpora.kinds")
_REST = "dump"  # what no kind takes is looked at as a dump, which says what is expected


def register(kind: type[CorpusKind]) -> type[CorpusKind]:
    """Adds a kind to CORPORA. To be used as a decorator."""
    CORPORA.register(kind.name, kind())
    return kind


def kind_of(corpus: str) -> tuple[CorpusKind, Sequence[str]]:
    """The kind of a corpus, and its parts."""
    return kind_of_parts([part for part in corpus.split(",") if part])


def kind_of_parts(parts: Sequence[str]) -> tuple[CorpusKind, Sequence[str]]:
    """The same of its parts, which may have commas in them."""
    if not parts:
        settings = "; ".join(f"{kind.setting} ({kind.what})" for kind in CORPORA.values())
        raise UserError(f"config.corpus is not set. It takes {settings}")
    kinds = {part: _kind_of(part) for part in parts}
    first = kinds[parts[0]]
    for part, kind in kinds.items():
        if kind is not first:
            raise UserError(
                f"config.corpus={','.join(parts)}: {parts[0]} is read as {first.what}, and {part} as {kind.what}; "
                "prepare one kind in a run"
            )
    return first, parts


def _kind_of(part: str) -> CorpusKind:
    return next((kind for kind in CORPORA.values() if kind.takes(part)), CORPORA[_REST])

"""The kinds of corpora that `config.corpus` takes. A kind stands in one file of this package, or of a plugin."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.common.parsing.foreign_text import TooSlowError, time_limit
from retrieval.data.corpora import articles
from retrieval.data.corpora.articles import Article, Broken, Dropped, KnownItem, Redirect
from retrieval.data.formats import Format, Formats, Options
from retrieval.data.shards import shard_steps

DROPPED = "pages dropped: "  # before the reason
# For a page, and for each of its characters: six times what Markdown takes, the slowest format.
_SECONDS, _SECONDS_PER_CHARACTER = 10, 60e-6


class Context(NamedTuple):
    """What a run gives to a kind: the values of its fields, and the file that pins the installed packages."""

    options: Options
    lock: Path = Path()


class CorpusKind(Format[Sequence[str], Context, Any]):
    """A kind of corpus: a cheap sequential reader of pages, and the dear function that makes articles of them.

    Methods take the parts of `config.corpus`, which stand between commas. Among the pages that `read` gives,
    `Redirect`, `Dropped` and `Broken` are passed on.
    """

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

    def parse(self, page: Any, options: Options) -> Sequence[Article | Redirect | KnownItem | Dropped]:
        """What a page holds. Worker processes call it."""
        raise NotImplementedError


CORPORA: Formats[CorpusKind] = Formats("kind of corpus", "retrieval.data.corpora", "corpus")
register = CORPORA.add
_REST = "dump"  # what no kind takes is looked at as a dump, which says what is expected


def kind_of(corpus: str) -> tuple[CorpusKind, Sequence[str]]:
    """The kind of a corpus, and its parts."""
    return kind_of_parts([part for part in corpus.split(",") if part])


def kind_of_parts(parts: Sequence[str]) -> tuple[CorpusKind, Sequence[str]]:
    """The same of its parts, which may have commas in them."""
    if not parts:
        settings = "; ".join(f"{kind.setting} ({kind.what})" for kind in CORPORA.values())
        raise UserError(f"config.corpus is not set. It takes {settings}")
    kinds = {part: next((kind for kind in CORPORA.values() if kind.takes(part)), CORPORA[_REST]) for part in parts}
    first = kinds[parts[0]]
    for part, kind in kinds.items():
        if kind is not first:
            raise UserError(f"config.corpus: {parts[0]} is {first.what}, {part} is {kind.what}; name one kind")
    return first, parts


class Source(NamedTuple):
    """A corpus: what reads its pages one after the other, and what makes articles of one."""

    read: Callable[[], Iterator[Any]]
    parse: Callable[[Any], Sequence[Article | Redirect | KnownItem | Dropped]]


def open_source(corpus: str, options: Options, lock: Path) -> Source:
    """The pages of what `config.corpus` names."""
    kind, parts = kind_of(corpus)
    read = functools.partial(kind.read, parts, Context(options, lock))
    return Source(read, functools.partial(kind.parse, options=options))


def parse_pages(pages: Iterable[Any], parse: Callable) -> Iterator[tuple[str, Any, Any]]:
    """Articles, redirects and known items as `("article", "", json)`, everything else as counts.

    Of what is dropped for a reason there are examples, too.
    """
    for page in pages:
        results = [page] if isinstance(page, Redirect | Dropped | Broken) else _parsed(page, parse)
        for result in results:
            if isinstance(result, Dropped):
                yield shard_steps.COUNT, f"{DROPPED}{result.reason}", 1
                yield shard_steps.EXAMPLE, f"{DROPPED}{result.reason}", result.title
            elif isinstance(result, Broken):
                yield shard_steps.COUNT, f"broken: {result.message}", 1
            else:
                yield "article", "", articles.to_json(result)
                what = {Redirect: "redirects", KnownItem: "held out for evaluation"}.get(type(result))
                yield from [(shard_steps.COUNT, what, 1)] if what else []
        if not isinstance(page, Broken):
            yield shard_steps.COUNT, "pages read", 1


def _parsed(page: Any, parse: Callable) -> Sequence[Any]:
    """What a page holds, or that it took too long."""
    name = getattr(page, "id", "")
    seconds = _SECONDS + _SECONDS_PER_CHARACTER * getattr(page, "size", 0)
    try:
        with time_limit(seconds, f"{name}: left out, for it is not parsed after {seconds:.0f} seconds"):
            return parse(page)
    except TooSlowError as error:
        return [Dropped(name, "too slow"), Broken(str(error))]


def article_files(folder: Path) -> list[Path]:
    """The files of articles, in order."""
    return sorted((folder / "articles").glob("*.jsonl"))


def read_articles(path: Path) -> Iterator[Article | Redirect | KnownItem]:
    """What one file of articles holds.

    Raises:
      UserError: it cannot be read, or a line of it is damaged; with the line.
    """
    lines = enumerate(text_files.byte_lines(path), 1)
    return (articles.from_json(line, f"{path}, line {number}") for number, line in lines)

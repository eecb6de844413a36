"""A corpus as pages, and as the articles that are made of them."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import articles, corpus_kind
from retrieval.data.corpora.articles import Article, Broken, Dropped, KnownItem, Redirect
from retrieval.data.corpora.corpus_kind import Options
from retrieval.data.shards import shard_steps
from retrieval.parsing import text_files
from retrieval.parsing.time_limit import TooSlowError, time_limit

DROPPED = "pages dropped: "  # before the reason

# For a page, and for each of its characters: six times what Markdown takes, the slowest format.
_SECONDS, _SECONDS_PER_CHARACTER = 10, 60e-6


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus: a cheap sequential reader of pages, and the dear function that makes articles of them."""

    read: Callable[[], Iterator[Any]]
    parse: Callable[[Any], Sequence[Article | Redirect | KnownItem | Dropped]]


def open_source(corpus: str, options: Options, lock: Path) -> Source:
    """The pages of what `config.corpus` names.

    Args:
      options: the values of the fields that its kind reads.
      lock: the file that pins the installed packages.

    Raises:
      UserError: it names nothing, or corpora of several kinds.
    """
    kind, parts = corpus_kind.kind_of(corpus)
    return Source(functools.partial(kind.read, parts, options, lock), functools.partial(kind.parse, options=options))


def parse_pages(pages: Iterable[Any], parse: Callable) -> Iterator[tuple[str, Any, Any]]:
    """Articles, redirects and known items as `("article", "", json)`, everything else as counts.

    Of what is dropped for a reason there are examples, too.
    """
    for page in pages:
        results = [page] if isinstance(page, Redirect | Dropped | Broken) else _parsed(page, parse)
        for result in results:
            if isinstance(result, Article | Redirect | KnownItem):
                yield "article", "", articles.to_json(result)
            if isinstance(result, Redirect | KnownItem):
                yield shard_steps.COUNT, "redirects" if isinstance(result, Redirect) else "held out for evaluation", 1
            elif isinstance(result, Dropped):
                yield shard_steps.COUNT, f"{DROPPED}{result.reason}", 1
                yield shard_steps.EXAMPLE, f"{DROPPED}{result.reason}", result.title
            elif isinstance(result, Broken):
                yield shard_steps.COUNT, f"broken: {result.message}", 1
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
    for number, line in enumerate(text_files.byte_lines(path), 1):
        yield articles.from_json(line, f"{path}, line {number}")

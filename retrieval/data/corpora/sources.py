"""A corpus as pages, and as the articles that are made of them."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import articles, pydocs, tfds_source, wikipedia, wikitext
from retrieval.data.corpora.articles import Article, Broken, Dropped, KnownItem, Redirect
from retrieval.data.corpora.wikipedia import Page
from retrieval.data.sets import text_files
from retrieval.data.shards import shard_steps


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus: a cheap sequential reader of pages, and the dear function that makes articles of them."""

    read: Callable[[], Iterator[Any]]
    parse: Callable[[Any], Sequence[Article | Redirect | KnownItem | Dropped]]


def open_source(corpus: str, lock: Path, held_out: float) -> Source:
    """`corpus` is 'pydocs', a Wikipedia of TFDS ('tfds:wikipedia/...') or paths of MediaWiki exports, with commas."""
    if corpus == "pydocs":
        return Source(functools.partial(pydocs.read_pages, lock), functools.partial(pydocs.parse, held_out=held_out))
    if tfds_source.is_source(corpus):
        tfds_source.check_wikipedia(corpus)
        return Source(functools.partial(tfds_source.read_pages, corpus), tfds_source.parse_page)
    paths = [Path(path) for path in corpus.split(",") if path]
    return Source(functools.partial(_read_dumps, paths), wikitext.parse)


def parse_pages(pages: Iterable[Any], parse: Callable) -> Iterator[tuple[str, Any, Any]]:
    """Articles, redirects and known items as `("article", "", json)`, everything else as counts."""
    for page in pages:
        results = [page] if isinstance(page, Redirect | Dropped | Broken) else parse(page)
        for result in results:
            if isinstance(result, Article | Redirect | KnownItem):
                yield "article", "", articles.to_json(result)
            if isinstance(result, Redirect | KnownItem):
                yield shard_steps.COUNT, "redirects" if isinstance(result, Redirect) else "held out for evaluation", 1
            elif isinstance(result, Dropped):
                yield shard_steps.COUNT, f"pages dropped: {result.reason}", 1
            elif isinstance(result, Broken):
                yield shard_steps.COUNT, f"broken: {result.message}", 1
        if not isinstance(page, Broken):
            yield shard_steps.COUNT, "pages read", 1


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


def _read_dumps(paths: list[Path]) -> Iterator[Any]:
    """The pages of all files. Two dumps may use one id for two pages: ids of the second file begin with '1-'."""
    for number, path in enumerate(paths):
        for page in wikipedia.read_pages(path):
            yield dataclasses.replace(page, id=f"{number}-{page.id}") if number and isinstance(page, Page) else page

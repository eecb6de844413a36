"""A corpus to tokenised shards: articles, then the vocabulary, then passages with their links.

    corpus/articles/*.jsonl          one article, redirect or known item (held out for evaluation) a line
    corpus/vocab.txt                 the WordPiece vocabulary; tokenizer.json for one of byte pairs
    corpus/passages-*.tfrecord       a passage, its title and (outside the lead itself) the lead of its article
    corpus/links-*.tfrecord          a passage and the lead of an article that it links to (WLP)
    corpus/passages-*.jsonl          the text of the passages
    corpus/stats.json                what was read, kept and dropped, and the numbers of Table 1

The work is the same functions under two runners: a process pool on this machine (`local_runner`), or Apache Beam
(`beam_pipeline`) wherever Beam runs. Both write the same bytes.
"""

import collections
import dataclasses
import functools
import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.data import articles, beir, local_runner, pydocs, shards, tfds_source, vocabularies, wikipedia, wikitext
from retrieval.data.articles import Article, Broken, Dropped, KnownItem, Redirect
from retrieval.data.passages import Limits
from retrieval.data.vocab import WordPiece
from retrieval.data.wikipedia import Page
from retrieval.errors import UserError

LOCAL = "local"
# What a redirect or a dropped page, which have no text, add to a chunk: a wiki may have millions in a row.
_SMALL = 256


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides the contents of the shards, and how they are made.

    Attributes:
      vocabulary: path of a vocabulary, or None to train one of `vocab_size` tokens on the corpus.
      num_shards: files of each kind; a multiple of `data.lanes`.
      held_out: fraction of functions that pydocs keeps for evaluation.
      runner: 'local', or the name of a Beam runner.
      beam_options: further flags for Beam, such as `--region=...`.
      chunk_bytes: how much of the source one task parses; the unit of resuming.
    """

    vocabulary: Path | None
    vocab_size: int
    num_shards: int
    limits: Limits
    held_out: float = 0.0
    runner: str = LOCAL
    beam_options: tuple[str, ...] = ()
    workers: int = 2
    chunk_bytes: int = 4 << 20


@dataclasses.dataclass(frozen=True)
class Source:
    """A corpus: a cheap sequential reader of pages, and the dear function that makes articles of them."""

    read: Callable[[], Iterator[Any]]
    parse: Callable[[Any], list[Article | Redirect | KnownItem | Dropped]]


def open_source(corpus: str, lock: Path, held_out: float) -> Source:
    """`corpus` is 'pydocs', a Wikipedia of TFDS ('tfds:wikipedia/...') or paths of MediaWiki exports, with commas."""
    if corpus == "pydocs":
        return Source(functools.partial(pydocs.read_pages, lock), functools.partial(pydocs.parse, held_out=held_out))
    if tfds_source.is_source(corpus):
        tfds_source.check_wikipedia(corpus)
        return Source(functools.partial(tfds_source.read_pages, corpus), tfds_source.parse_page)
    paths = [Path(path) for path in corpus.split(",")]
    return Source(functools.partial(_read_dumps, paths), wikitext.parse)


def prepare(source: Source, folder: Path, settings: Settings) -> dict[str, Any]:
    """Writes the corpus below `folder` and returns its statistics; goes on where an earlier call was cut off.

    Raises:
      UserError: the source cannot be read, or holds no passage.
    """
    files.remove_temporaries(folder)
    work = folder / "work"
    _remove_articles_of(folder, "beam-*" if settings.runner == LOCAL else "[0-9]*")
    if settings.runner == LOCAL:
        counts = _articles(source, folder, settings)
        _vocabulary(folder, settings)
        counts += _shards(folder, work, settings)
    else:
        from retrieval.data import beam_pipeline  # Beam takes a second to import, and only this branch needs it

        counts = beam_pipeline.write_articles(source, folder, settings)
        _vocabulary(folder, settings)
        counts += beam_pipeline.write_shards(folder, settings)
    if not counts["passages"]:
        raise UserError(f"no passage came out of the corpus: {dict(counts)}")
    shutil.rmtree(work, ignore_errors=True)
    statistics = _statistics(counts)
    files.write_json(folder / "stats.json", statistics)
    return statistics


def _remove_articles_of(folder: Path, names: str) -> None:
    """Deletes what an earlier call with another runner has begun: the same articles in files of other names."""
    if articles_there := list((folder / "articles").glob(names)):
        for path in (*articles_there, folder / "work"):
            files.remove(path)


def parse_pages(pages: Iterable[Any], parse: Callable) -> Iterator[tuple[str, Any, Any]]:
    """Articles, redirects and known items as `("article", "", json)`, everything else as counts."""
    for page in pages:
        results = [page] if isinstance(page, Redirect | Dropped | Broken) else parse(page)
        for result in results:
            if isinstance(result, Article | Redirect | KnownItem):
                yield "article", "", articles.to_json(result)
            if isinstance(result, Redirect | KnownItem):
                yield shards.COUNT, "redirects" if isinstance(result, Redirect) else "held out for evaluation", 1
            elif isinstance(result, Dropped):
                yield shards.COUNT, f"pages dropped: {result.reason}", 1
            elif isinstance(result, Broken):
                yield shards.COUNT, f"broken: {result.message}", 1
        if not isinstance(page, Broken):
            yield shards.COUNT, "pages read", 1


def article_files(folder: Path) -> list[Path]:
    """The files of articles, in order."""
    return sorted((folder / "articles").glob("*.jsonl"))


def read_articles(path: Path) -> Iterator[Article | Redirect | KnownItem]:
    """What one file of articles holds.

    Raises:
      UserError: it cannot be read, or a line of it is damaged; with the line.
    """
    for number, line in enumerate(beir.byte_lines(path), 1):
        yield articles.from_json(line, f"{path}, line {number}")


def _read_dumps(paths: list[Path]) -> Iterator[Any]:
    """The pages of all files. Two dumps may use one id for two pages: ids of the second file begin with '1-'."""
    for number, path in enumerate(paths):
        for page in wikipedia.read_pages(path):
            yield dataclasses.replace(page, id=f"{number}-{page.id}") if number and isinstance(page, Page) else page


def _articles(source: Source, folder: Path, settings: Settings) -> collections.Counter:
    chunks = enumerate(_chunks(source.read(), settings.chunk_bytes))
    output = folder / "articles"
    tasks = ((output / f"{i:06d}.counts", (output / f"{i:06d}.jsonl", pages, source.parse)) for i, pages in chunks)
    local_runner.run_tasks("parse", tasks, _parse_task, settings.workers)
    return _sum_counts([output])


def _parse_task(output: Path, article_file: Path, pages: list, parse: Callable) -> None:
    items = list(parse_pages(pages, parse))
    lines = [line for tag, _, line in items if tag != shards.COUNT]
    files.write_text(article_file, "".join(f"{line}\n" for line in lines))
    _write_items(output, (item for item in items if item[0] == shards.COUNT), num_buckets=1)


def _chunks(pages: Iterable[Any], chunk_bytes: int) -> Iterator[list]:
    chunk, size = [], 0
    for page in pages:
        chunk.append(page)
        size += getattr(page, "size", _SMALL)
        if size >= chunk_bytes:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _vocabulary(folder: Path, settings: Settings) -> None:
    if settings.vocabulary is not None:
        vocabulary = vocabularies.load(settings.vocabulary)
    elif not vocabularies.find(folder):
        vocabulary = WordPiece.train(_sample_texts(folder, budget=16 << 20), settings.vocab_size)
    else:
        return
    vocabulary.save(folder / vocabulary.FILE)


def _sample_texts(folder: Path, budget: int) -> Iterator[str]:
    """Paragraphs of every n-th article, about `budget` characters in all: enough to count word pieces by."""
    every = max(1, sum(path.stat().st_size for path in article_files(folder)) // budget)
    lines = itertools.chain.from_iterable(map(read_articles, article_files(folder)))
    for article in itertools.islice((item for item in lines if isinstance(item, Article)), 0, None, every):
        for section in article.sections:
            yield from (paragraph.text for paragraph in section.paragraphs)


def _shards(folder: Path, work: Path, settings: Settings) -> collections.Counter:
    """The steps of `shards`, each a phase of the local runner."""
    buckets = range(settings.num_shards)
    run = functools.partial(local_runner.run_tasks, workers=settings.workers)
    sources = article_files(folder)
    run(
        "cut",
        [(work / "cut" / f"{p.stem}.items", (p, folder, settings)) for p in sources],
        _cut_task,
        total=len(sources),
    )
    for name, task in {"resolve": _resolve_task, "attach": _attach_task, "write": _write_task}.items():
        tasks = [(work / name / f"{b:05d}.items", (b, work, folder, settings)) for b in buckets]
        run(name, tasks, task, total=len(buckets))
    return _sum_counts(work.iterdir())


def _cut_task(output: Path, article_file: Path, folder: Path, settings: Settings) -> None:
    vocabulary = vocabularies.load(folder)
    items = (
        item
        for article in read_articles(article_file)
        for item in shards.cut_article(article, vocabulary, settings.limits, settings.num_shards)
    )
    _write_items(output, items, settings.num_shards)


def _resolve_task(output: Path, bucket: int, work: Path, folder: Path, settings: Settings) -> None:
    groups = local_runner.read_groups([work / "cut"], [shards.REDIRECT, shards.REQUEST], bucket, work)
    items = (item for title, values in groups for item in shards.resolve(title, *values))
    _write_items(output, items, settings.num_shards)


def _attach_task(output: Path, bucket: int, work: Path, folder: Path, settings: Settings) -> None:
    groups = local_runner.read_groups([work / "cut", work / "resolve"], [shards.LEAD, shards.RESOLVED], bucket, work)
    items = (item for title, values in groups for item in shards.attach(title, *values, settings.num_shards))
    _write_items(output, items, settings.num_shards)


def _write_task(output: Path, bucket: int, work: Path, folder: Path, settings: Settings) -> None:
    passages, neighbours = (
        (value for _, value in local_runner.read_items([work / phase], tag, bucket))
        for phase, tag in (("cut", shards.PASSAGE), ("attach", shards.NEIGHBOUR))
    )
    items = shards.write_shard(bucket, passages, neighbours, folder, settings.num_shards)
    _write_items(output, items, settings.num_shards)


def _write_items(output: Path, items: Iterable[shards.Item], num_buckets: int) -> None:
    """Writes what a task yields, with one sum for each name in place of its counts."""
    counts: collections.Counter = collections.Counter()

    def others() -> Iterator[shards.Item]:
        for tag, key, value in items:
            if tag == shards.COUNT:
                counts[key] += value
            else:
                yield tag, key, value
        yield from ((shards.COUNT, name, count) for name, count in counts.items())

    local_runner.write_items(output, others(), num_buckets)


def _sum_counts(folders: Iterable[Path]) -> collections.Counter:
    counts: collections.Counter = collections.Counter()
    for name, count in local_runner.read_items(folders, shards.COUNT):
        counts[name] += count
    return counts


def _statistics(counts: collections.Counter) -> dict[str, Any]:
    """Counts by name, Table 1 by task, and what broke."""
    tasks = {}
    for task in ("ict", "bfs", "wlp", "mlm"):
        pairs, query, document = (counts.pop(f"{task} {k}", 0) for k in ("pairs", "query tokens", "document tokens"))
        tasks[task] = {
            "pairs": pairs,
            "tokens": round(query + document),
            "query_tokens": round(query / max(pairs, 1), 2),
            "document_tokens": round(document / max(pairs, 1), 2),
        }
    problems = sorted(name.removeprefix("broken: ") for name in counts if name.startswith("broken: "))
    plain = {name: count for name, count in sorted(counts.items()) if not name.startswith("broken: ")}
    return {"counts": plain, "tasks": tasks, "problems": problems}

"""`prepare` on this machine: the steps of `shard_steps` as tasks of worker processes, one phase after the other."""

import collections
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.data.corpora import corpus_kind
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.shards import local_runner, shard_steps
from retrieval.data.shards.shard_steps import Settings, Step
from retrieval.data.tokenizers import vocabularies

# What a redirect or a dropped page, which have no text, add to a chunk: a wiki may have millions in a row.
_SMALL = 256


def write_articles(source: Source, folder: Path, settings: Settings) -> tuple[collections.Counter, dict[str, str]]:
    """Source to `articles/*.jsonl`; returns the counts, and examples of what was dropped."""
    chunks, output = enumerate(_chunks(source.read(), settings.chunk_bytes)), folder / "articles"
    tasks = ((output / f"{i:06d}.counts", (output / f"{i:06d}.jsonl", pages, source.parse)) for i, pages in chunks)
    local_runner.run_tasks("parse", tasks, _parse_task, settings.workers)
    examples = sorted(local_runner.read_items([output], shard_steps.EXAMPLE), reverse=True)
    return _sum_counts([output]), dict(examples)  # of each name the last, which is the first in order


def write_shards(folder: Path, settings: Settings) -> collections.Counter:
    """`articles/*.jsonl` to TFRecord shards; returns the counts."""
    work = folder / shard_steps.WORK
    articles = corpus_kind.article_files(folder)
    tasks = [(work / shard_steps.CUT / f"{path.stem}.items", (path, folder, settings)) for path in articles]
    local_runner.run_tasks(shard_steps.CUT, tasks, _cut_task, settings.workers, len(tasks))
    for step in shard_steps.steps(folder, settings):
        buckets = range(settings.num_shards)
        tasks = [(work / step.name / f"{i:05d}.items", (i, work, step, settings.num_shards)) for i in buckets]
        local_runner.run_tasks(step.name, tasks, _step_task, settings.workers, len(tasks))
    return _sum_counts(work.iterdir())


def _parse_task(output: Path, article_file: Path, pages: list, parse: Callable) -> None:
    items = list(corpus_kind.parse_pages(pages, parse))
    files.write_text(article_file, "".join(f"{line}\n" for tag, _, line in items if tag == "article"))
    examples = dict(sorted((item[1:] for item in items if item[0] == shard_steps.EXAMPLE), reverse=True))
    counts = [item for item in items if item[0] == shard_steps.COUNT]
    local_runner.write_items(output, _summed([*counts, *((shard_steps.EXAMPLE, *e) for e in examples.items())]), 1)


def _chunks(pages: Iterable[Any], chunk_bytes: int) -> Iterator[list]:
    chunk, size = [], 0
    for page in pages:
        chunk.append(page)
        size += getattr(page, "size", _SMALL)
        if size >= chunk_bytes:
            yield chunk
            chunk, size = [], 0
    yield from [chunk] if chunk else []


# A worker cuts many files, and the words that the vocabulary has met stay known.
_worker_vocabulary = functools.cache(vocabularies.load)


def _cut_task(output: Path, article_file: Path, folder: Path, settings: Settings) -> None:
    vocabulary = _worker_vocabulary(folder)
    of_cut = (vocabulary, settings.limits, settings.num_shards)
    parts = (shard_steps.cut_article(article, *of_cut) for article in corpus_kind.read_articles(article_file))
    local_runner.write_items(output, _summed(itertools.chain.from_iterable(parts)), settings.num_shards)


def _step_task(output: Path, bucket: int, work: Path, step: Step, num_buckets: int) -> None:
    inputs = [(work / phase, tag) for phase, tag in step.inputs]
    groups = local_runner.read_groups(inputs, bucket, work)
    if step.name == shard_steps.WRITE:  # its one key is the bucket, whose values need not fit in memory
        pairs = (local_runner.read_items([path], tag, bucket) for path, tag in inputs)
        groups = [(bucket, [map(operator.itemgetter(1), each) for each in pairs])]
    items = (item for key, values in groups for item in step.run(key, *values))
    local_runner.write_items(output, _summed(items), num_buckets)


def _summed(items: Iterable[shard_steps.Item]) -> Iterator[shard_steps.Item]:
    """What a task yields, with one sum for each name in place of its counts."""
    counts: collections.Counter = collections.Counter()
    for tag, key, value in items:
        if tag == shard_steps.COUNT:
            counts[key] += value
        else:
            yield tag, key, value
    yield from ((shard_steps.COUNT, name, count) for name, count in counts.items())


def _sum_counts(folders: Iterable[Path]) -> collections.Counter:
    counts = _summed((shard_steps.COUNT, *item) for item in local_runner.read_items(folders, shard_steps.COUNT))
    return collections.Counter({name: count for _, name, count in counts})

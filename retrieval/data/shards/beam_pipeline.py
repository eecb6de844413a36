"""`prepare` on Apache Beam: the functions of `shards`, with CoGroupByKey between them."""

import collections
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import DoOutputsTuple, PCollection, TaggedOutput

from retrieval.data.corpora import articles, sources
from retrieval.data.corpora.sources import Source
from retrieval.data.shards import shard_steps
from retrieval.data.shards.shard_steps import Settings
from retrieval.data.tokenizers import vocabularies

_ARTICLE = "article"


def write_articles(source: Source, folder: Path, settings: Settings) -> tuple[collections.Counter, dict[str, str]]:
    """Source to `articles/*.jsonl`; returns the counts, and examples of what was dropped."""
    counts, examples = (folder / shard_steps.WORK / name for name in ("articles-counts", "articles-examples"))
    with _pipeline(settings) as pipeline:
        items: Any = (  # Beam says nothing of the types that its operators give
            pipeline
            | beam.Create([None])
            | "read" >> beam.FlatMap(lambda _: source.read())
            | beam.Reshuffle()
            | "parse"
            >> beam.FlatMap(lambda page: _tagged(sources.parse_pages([page], source.parse))).with_outputs(
                _ARTICLE, shard_steps.COUNT, shard_steps.EXAMPLE
            )
        )
        lines = items[_ARTICLE] | "lines" >> beam.Values()
        prefix = str(folder / "articles" / "beam")
        _ = lines | "write lines" >> WriteToText(prefix, ".jsonl", num_shards=settings.num_shards)
        _write_counts([items], counts)
        _ = (
            items[shard_steps.EXAMPLE]
            | beam.CombinePerKey(min)
            | beam.Map(json.dumps)
            | "write examples" >> WriteToText(str(examples), num_shards=1)
        )
    lines = (line for path in examples.parent.glob(f"{examples.name}*") for line in path.open(encoding="utf-8"))
    return _read_counts(counts), dict(map(json.loads, lines))


def write_shards(folder: Path, settings: Settings) -> collections.Counter:
    """`articles/*.jsonl` to TFRecord shards; returns the counts."""
    n = settings.num_shards
    with _pipeline(settings) as pipeline:
        cut: Any = (
            pipeline
            | ReadFromText(str(folder / "articles" / "*.jsonl"))
            | "cut" >> beam.ParDo(_Cut(folder, settings)).with_outputs()
        )
        shared = _grouped(
            "share",
            lambda digest, places: shard_steps.share(digest, places, n),
            {shard_steps.SENTENCE: cut[shard_steps.SENTENCE]},
        )
        resolved = _grouped(
            "resolve", shard_steps.resolve, {tag: cut[tag] for tag in (shard_steps.REDIRECT, shard_steps.REQUEST)}
        )
        attached = _grouped(
            "attach",
            lambda title, leads, requests, shared: shard_steps.attach(title, leads, requests, shared, n),
            {
                shard_steps.LEAD: cut[shard_steps.LEAD],
                shard_steps.RESOLVED: resolved[shard_steps.RESOLVED],
                shard_steps.SHARED_LEAD: shared[shard_steps.SHARED_LEAD],
            },
        )
        every_shard = pipeline | "every shard" >> beam.Create([(i, None) for i in range(n)])
        written = _grouped(
            "write",
            lambda shard, items, neighbours, shared, _: shard_steps.write_shard(
                shard, items, neighbours, shared, folder, n
            ),
            {
                shard_steps.PASSAGE: cut[shard_steps.PASSAGE],
                shard_steps.NEIGHBOUR: attached[shard_steps.NEIGHBOUR],
                shard_steps.SHARED: shared[shard_steps.SHARED],
                "every": every_shard,  # a shard without a passage is written too
            },
        )
        _write_counts([cut, attached, written], folder / shard_steps.WORK / "shards-counts")
    return _read_counts(folder / shard_steps.WORK / "shards-counts")


class _Cut(beam.DoFn):
    def __init__(self, folder: Path, settings: Settings):
        self._folder, self._settings = folder, settings

    def setup(self) -> None:
        self._vocabulary = vocabularies.load(self._folder)

    def process(self, line: str) -> Iterator[TaggedOutput]:
        item, settings = articles.from_json(line, f"articles beside {self._folder}"), self._settings
        yield from _tagged(shard_steps.cut_article(item, self._vocabulary, settings.limits, settings.num_shards))


def _grouped(name: str, step: Any, collections_by_tag: dict[str, PCollection]) -> DoOutputsTuple:
    """CoGroupByKey, then `step(key, values of the first tag, values of the second ...)`."""
    tags = list(collections_by_tag)
    return (
        collections_by_tag
        | f"group to {name}" >> beam.CoGroupByKey()
        | name >> beam.FlatMap(lambda group: _tagged(step(group[0], *(group[1][tag] for tag in tags)))).with_outputs()
    )


def _tagged(items: Iterable[tuple[str, Any, Any]]) -> Iterator[TaggedOutput]:
    for tag, key, value in items:
        yield TaggedOutput(tag, (key, value))


def _write_counts(outputs: Iterable[Any], prefix: Path) -> None:
    counts: Any = [output[shard_steps.COUNT] for output in outputs]
    _ = (
        counts
        | beam.Flatten()
        | beam.CombinePerKey(sum)
        | beam.Map(lambda pair: f"{pair[1]!r}\t{pair[0]}")
        | "write counts" >> WriteToText(str(prefix), num_shards=1)
    )


def _read_counts(prefix: Path) -> collections.Counter:
    counts: Any = collections.Counter()  # tokens may be fractions, and a `Counter` is declared to have none
    for path in prefix.parent.glob(f"{prefix.name}*"):
        for line in path.read_text(encoding="utf-8").splitlines():
            value, name = line.split("\t", 1)
            counts[name] += float(value) if "." in value else int(value)
    return counts


def _pipeline(settings: Settings) -> beam.Pipeline:
    options = PipelineOptions([f"--runner={settings.runner}", *settings.beam_options], save_main_session=False)
    return beam.Pipeline(options=options)

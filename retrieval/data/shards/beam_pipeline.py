"""`prepare` on Apache Beam: the steps of `shard_steps`, with CoGroupByKey between them."""

import collections
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io import ReadFromText, WriteToText
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.pvalue import DoOutputsTuple, PCollection, TaggedOutput

from retrieval.data.corpora import articles, corpus_kind
from retrieval.data.corpora.corpus_kind import Source
from retrieval.data.shards import shard_steps
from retrieval.data.shards.shard_steps import COUNT, EXAMPLE, Settings, Step
from retrieval.data.tokenizers import vocabularies

_ARTICLE = "article"


def write_articles(source: Source, folder: Path, settings: Settings) -> tuple[collections.Counter, dict[str, str]]:
    """Source to `articles/*.jsonl`; returns the counts, and examples of what was dropped."""
    with _pipeline(settings) as pipeline:
        items: Any = (  # Beam says nothing of the types that its operators give
            pipeline
            | beam.Create([None])
            | "read" >> beam.FlatMap(lambda _: source.read())
            | beam.Reshuffle()
            | "parse"
            >> beam.FlatMap(lambda page: _tagged(corpus_kind.parse_pages([page], source.parse))).with_outputs()
        )
        lines = items[_ARTICLE] | "lines" >> beam.Values()
        prefix = str(folder / "articles" / "beam")
        _ = lines | "write lines" >> WriteToText(prefix, ".jsonl", num_shards=settings.num_shards)
        _write(items[COUNT], sum, folder / shard_steps.WORK / "articles-counts")
        _write(items[EXAMPLE], min, folder / shard_steps.WORK / "articles-examples")
    counts, examples = (_read(folder / shard_steps.WORK / name) for name in ("articles-counts", "articles-examples"))
    return collections.Counter(counts), examples


def write_shards(folder: Path, settings: Settings) -> collections.Counter:
    """`articles/*.jsonl` to TFRecord shards; returns the counts."""
    with _pipeline(settings) as pipeline:
        lines: Any = pipeline | ReadFromText(str(folder / "articles" / "*.jsonl"))
        cut = beam.ParDo(_Cut(folder, settings)).with_outputs()
        outputs: dict[str, Any] = {shard_steps.CUT: lines | "cut" >> cut}
        every_shard: Any = pipeline | "every shard" >> beam.Create([(i, None) for i in range(settings.num_shards)])
        for step in shard_steps.steps(folder, settings):
            inputs = {tag: outputs[phase][tag] for phase, tag in step.inputs}
            if step.name == shard_steps.WRITE:  # a shard without a passage is written too
                inputs["every"] = every_shard
            outputs[step.name] = _grouped(step, inputs)
        counts: Any = [output[COUNT] for output in outputs.values()]
        _write(counts | beam.Flatten(), sum, folder / shard_steps.WORK / "shards-counts")
    return collections.Counter(_read(folder / shard_steps.WORK / "shards-counts"))


class _Cut(beam.DoFn):
    def __init__(self, folder: Path, settings: Settings):
        self._folder, self._settings = folder, settings

    def setup(self) -> None:
        self._vocabulary = vocabularies.load(self._folder)

    def process(self, line: str) -> Iterator[TaggedOutput]:
        item, settings = articles.from_json(line, f"articles beside {self._folder}"), self._settings
        yield from _tagged(shard_steps.cut_article(item, self._vocabulary, settings.limits, settings.num_shards))


def _grouped(step: Step, inputs: dict[str, PCollection]) -> DoOutputsTuple:
    tags, run = [tag for _, tag in step.inputs], step.run
    return (
        inputs
        | f"group to {step.name}" >> beam.CoGroupByKey()
        | step.name >> beam.FlatMap(lambda g: _tagged(run(g[0], *(g[1][tag] for tag in tags)))).with_outputs()
    )


def _tagged(items: Iterable[tuple[str, Any, Any]]) -> Iterator[TaggedOutput]:
    for tag, key, value in items:
        yield TaggedOutput(tag, (key, value))


def _write(pairs: Any, combine: Any, prefix: Path) -> None:
    """Writes pairs of a name and a value, with one value for each name."""
    label = prefix.name
    lines = pairs | f"combine {label}" >> beam.CombinePerKey(combine) | f"to JSON {label}" >> beam.Map(json.dumps)
    _ = lines | f"write {label}" >> WriteToText(str(prefix), num_shards=1)


def _read(prefix: Path) -> dict[str, Any]:
    lines = (line for path in prefix.parent.glob(f"{prefix.name}*") for line in path.open(encoding="utf-8"))
    return dict(map(json.loads, lines))


def _pipeline(settings: Settings) -> beam.Pipeline:
    options = PipelineOptions([f"--runner={settings.runner}", *settings.beam_options], save_main_session=False)
    return beam.Pipeline(options=options)

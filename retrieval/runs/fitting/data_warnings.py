"""Counts of texts that are to be trained on, and warnings of those that are likely to be mistakes."""

import functools
import itertools
import logging
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.candidate import Candidate
from retrieval.data.shards.shard_steps import WITHOUT_PAIR
from retrieval.data.tokenizers.prefixes import TextSizes
from retrieval.runs.pipeline.run import Run
from retrieval.runs.ranking.collection import CORPUS, open_collection
from retrieval.search.hit_texts import are_near, shingles

_log = logging.getLogger(__name__)

IN_A_RUN = 2000  # texts or queries that a run looks at before it trains: some tenths of a second

_CUT, _SAME, _FEW = 0.1, 0.05, 0.5  # shares from which on there is a warning

_shortened = functools.partial(textwrap.shorten, width=60, placeholder=" …")


class DataCount(NamedTuple):
    """One line of the table.

    Attributes:
      about: what was looked at.
      what: was counted.
      count: how many there are, `of` how many; None where the number is not a part of another.
      is_warning: whether it is likely to be a mistake, or to cost much.
      example: one of those that are counted, or the reason of a warning; '' where there is neither.
    """

    about: str
    what: str
    count: int
    of: int | None = None
    is_warning: bool = False
    example: str = ""


def warn(stage: str, counts: Iterable[DataCount]) -> None:
    """Warns in the log of those that are likely to be a mistake."""
    for count in counts:
        if count.is_warning:
            share = f" of {count.of:,}" if count.of else ""
            example = f" ({count.example})" if count.example else ""
            _log.warning("%s: %s: %s: %s%s%s", stage, count.about, count.what, f"{count.count:,}", share, example)


def warn_of_corpus(run: Run, statistics: Mapping[str, Any], tasks: Collection[str]) -> None:
    """Warns of what is likely to be a mistake in the passages that these tasks of a run will draw from."""
    texts = list(itertools.islice(open_collection(run, CORPUS).candidates(), IN_A_RUN))
    sizes = TextSizes.of(run.config.data, run.load_vocabulary())
    warn("prepare", of_corpus(statistics, texts, sizes, tasks))


def of_corpus(
    statistics: Mapping[str, Any] | None,
    texts: Sequence[Candidate],
    sizes: TextSizes | None,
    tasks: Collection[str] = (),
) -> Iterator[DataCount]:
    """Of a prepared corpus.

    Args:
      statistics: what `prepare` counted.
      texts: its first passages.
      sizes: counts their tokens; None where there is no vocabulary.
      tasks: whose pairs are counted; all where there are none.
    """
    if statistics:
        yield from _prepared(statistics, tasks)
    if texts:
        yield from _texts(texts)
    if sizes:
        yield from cut_off("passages", sizes.of_documents(texts), sizes.document_length, [text.id for text in texts])


def _prepared(statistics: Mapping[str, Any], tasks: Collection[str]) -> Iterator[DataCount]:
    """Pairs by task, with what passages without one mostly lack, and what the cutting into passages lost."""
    counts = statistics["counts"]
    passages = counts.get("passages", 0)
    for task, of_task in statistics["tasks"].items():
        if tasks and task not in tasks:
            continue
        is_few = of_task["pairs"] < _FEW * passages
        reasons = [name for name in counts if name.startswith(f"{WITHOUT_PAIR} of {task.upper()}: ")]
        most = max(reasons, key=lambda name: counts[name], default="").partition(": ")[2]
        reason = f"fewer than {_FEW:.0%}" + f", mostly {most}" * bool(most) if is_few else ""
        yield DataCount("corpus", f"pairs of {task.upper()}", of_task["pairs"], passages, is_few, reason)
    for what in sorted(name for name in counts if name.startswith("tokens lost")):
        is_much = counts[what] > _CUT * counts["tokens"]
        yield DataCount("corpus", what, counts[what], counts["tokens"], is_much, f"more than {_CUT:.0%}" * is_much)


def _texts(texts: Sequence[Candidate]) -> Iterator[DataCount]:
    """Empty passages, and those that are there twice."""
    number, first = len(texts), dict[bytes, str]()
    yield DataCount("passages", "looked at", number)
    empty = [text.id for text in texts if not text.text.strip()]
    yield DataCount("passages", "empty", len(empty), number, bool(empty), next(iter(empty), ""))
    pairs = [(text.id, first.setdefault(grouping.digest(text), text.id)) for text in texts]
    same = [f"{id}, as {other}" for id, other in pairs if id != other]
    is_much = len(same) > _SAME * number
    yield DataCount("passages", "the same as an earlier one", len(same), number, is_much, next(iter(same), ""))


def cut_off(about: str, sizes: Sequence[int], longest: int, examples: Sequence[str]) -> Iterator[DataCount]:
    """How many texts of these many tokens are cut to a length, and how many tokens that loses.

    Args:
      examples: what to call each of the texts.
    """
    if not sizes:
        return
    cut, lost = sum(size > longest for size in sizes), sum(max(0, size - longest) for size in sizes)
    most = max(range(len(sizes)), key=sizes.__getitem__)
    example = f"{_shortened(examples[most])}: {sizes[most]:,} tokens" if cut else ""
    yield DataCount(about, f"cut to {longest} tokens", cut, len(sizes), cut > _CUT * len(sizes), example)
    yield DataCount(about, f"tokens behind the first {longest}", lost, sum(sizes), lost > _CUT * sum(sizes), example)


def of_labelled(examples: Sequence[Example], sizes: TextSizes | None) -> Iterator[DataCount]:
    """Labelled queries, their texts, and negatives that are likely to be positives.

    Args:
      sizes: counts their tokens; None where there is no vocabulary.
    """
    about, queries = "labelled examples", [example.query for example in examples]
    negatives = sum(len(example.negatives) for example in examples)
    yield DataCount(about, "queries looked at", len(examples))
    yield DataCount(about, "pairs of a query and a positive", sum(len(example.positives) for example in examples))
    yield DataCount(about, "hard negatives", negatives)
    if negatives:
        likely = list(map(_likely_positives, examples))
        example = next((_shortened(example.query) for example, count in zip(examples, likely) if count), "")
        what = "hard negatives nearly the same as a positive of their query: likely no negatives"
        yield DataCount(about, what, sum(likely), negatives, any(likely), example)
    if sizes:
        yield from cut_off("labelled queries", sizes.of_queries(queries), sizes.query_length, queries)
        documents = [text for example in examples for text in example.positives]
        names = [text.id or text.title or text.text for text in documents]
        yield from cut_off("labelled positives", sizes.of_documents(documents), sizes.document_length, names)


def _likely_positives(example: Example) -> int:
    positives = [shingles(text.text) for text in example.positives]
    negatives = (shingles(text.text) for text in example.negatives)
    return sum(any(are_near(negative, positive) for positive in positives) for negative in negatives)

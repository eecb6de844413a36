"""What is found in texts that are to be trained on. What is likely to be a mistake is told in the log."""

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.data.corpora import sources
from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.shard_steps import WITHOUT_PAIR
from retrieval.search import languages, near_duplicates
from retrieval.search.alike import are_alike, shingles
from retrieval.stages.text_sizes import TextSizes

_log = logging.getLogger(__name__)

IN_A_RUN = 2000  # texts that a run looks at before it trains: some tenths of a second
_CUT, _ALIKE, _FEW = 0.1, 0.05, 0.5  # shares from which on something is told as a warning


class Finding(NamedTuple):
    """One line of the table.

    Attributes:
      about: what was looked at.
      what: was counted.
      count: how many there are, `of` how many; None where the number is not a part of another.
      is_warning: whether it is likely to be a mistake, or to cost much.
    """

    about: str
    what: str
    count: int
    of: int | None = None
    is_warning: bool = False


def warn(stage: str, findings: Iterable[Finding]) -> None:
    """Tells the log of those that are likely to be a mistake."""
    for finding in findings:
        if finding.is_warning:
            share = f" of {finding.of:,}" if finding.of else ""
            _log.warning("%s: %s: %s: %s%s", stage, finding.about, finding.what, f"{finding.count:,}", share)


def of_corpus(
    statistics: Mapping[str, Any] | None,
    texts: Sequence[Candidate],
    sizes: TextSizes | None,
    seed: int,
    tasks: Collection[str] = (),
) -> Iterator[Finding]:
    """Of a prepared corpus.

    Args:
      statistics: what `prepare` counted.
      texts: its first passages.
      sizes: counts their tokens; None where there is no vocabulary.
      tasks: whose pairs are counted; all where there are none.
    """
    yield from _prepared(statistics, tasks)
    yield from _texts("passages", texts, seed)
    if sizes:
        yield from cut_off("passages", sizes.of_documents(texts), sizes.document_length)


def _prepared(statistics: Mapping[str, Any] | None, tasks: Collection[str]) -> Iterator[Finding]:
    """Pairs by task, what passages without one lack, and what the cutting into passages lost."""
    if not statistics:
        return
    counts = statistics["counts"]
    passages = counts.get("passages", 0)
    for task, of_task in statistics["tasks"].items():
        if tasks and task not in tasks:
            continue
        what = f"pairs of {task.upper()}, of {passages:,} passages"
        yield Finding("corpus", what, of_task["pairs"], None, of_task["pairs"] < _FEW * passages)
    if holes := counts.get(sources.HOLES_IN_ALL):
        most = ", ".join(f"{name} {count:,}" for name, count in statistics[sources.HOLES_IN_ALL].items())
        yield Finding("corpus", f"templates within sentences whose words are lost: {most}", holes, counts["sentences"])
    for what in sorted(counts):
        if what.startswith(WITHOUT_PAIR):
            yield Finding("corpus", what, counts[what], passages)
        elif what.startswith("tokens lost"):
            yield Finding("corpus", what, counts[what], counts["tokens"], counts[what] > _CUT * counts["tokens"])


def _texts(about: str, texts: Sequence[Candidate], seed: int) -> Iterator[Finding]:
    """Empty texts, those that are there twice, those that are nearly the same, and languages."""
    if not texts:
        return
    number, bodies = len(texts), [text.text for text in texts]
    yield Finding(about, "looked at", number)
    empty = sum(not body.strip() for body in bodies)
    yield Finding(about, "empty", empty, number, empty > 0)
    same = number - len({grouping.digest(text) for text in texts})
    yield Finding(about, "the same as an earlier one", same, number, same > _ALIKE * number)
    firsts = near_duplicates.first_alike(bodies, seed=seed)
    alike = sum(first != place for place, first in enumerate(firsts)) - same
    what = "nearly the same as an earlier one (4 of 5 runs of three words)"
    yield Finding(about, what, max(0, alike), number, alike > _ALIKE * number)
    yield from _languages(about, bodies)


def _languages(about: str, texts: Sequence[str]) -> Iterator[Finding]:
    for name, count in Counter(map(languages.language, texts)).most_common():
        yield Finding(about, f"language, guessed by script and stop words: {name}", count, len(texts))


def cut_off(about: str, sizes: Sequence[int], longest: int) -> Iterator[Finding]:
    """How many texts of these many tokens are cut to a length, and how many tokens that loses."""
    if not sizes:
        return
    cut, lost = sum(size > longest for size in sizes), sum(max(0, size - longest) for size in sizes)
    yield Finding(about, f"cut to {longest} tokens", cut, len(sizes), cut > _CUT * len(sizes))
    yield Finding(about, f"tokens behind the first {longest}", lost, sum(sizes), lost > _CUT * sum(sizes))


def of_labelled(examples: Sequence[Example], sizes: TextSizes | None) -> Iterator[Finding]:
    """Labelled queries, their texts, and negatives that are likely to be positives.

    Args:
      sizes: counts their tokens; None where there is no vocabulary.
    """
    about = "labelled examples"
    positives = sum(len(example.positives) for example in examples)
    negatives = sum(len(example.negatives) for example in examples)
    yield Finding(about, "queries looked at", len(examples))
    yield Finding(about, "pairs of a query and a positive", positives)
    yield Finding(about, "hard negatives", negatives)
    if negatives:
        likely = sum(map(_likely_positives, examples))
        what = "hard negatives nearly the same as a positive of their query: likely no negatives"
        yield Finding(about, what, likely, negatives, likely > 0)
    if sizes:
        queries = sizes.of_queries(example.query for example in examples)
        yield from cut_off("labelled queries", queries, sizes.query_length)
        documents = sizes.of_documents(text for example in examples for text in example.positives)
        yield from cut_off("labelled positives", documents, sizes.document_length)
    yield from _languages("labelled queries", [example.query for example in examples])


def _likely_positives(example: Example) -> int:
    positives = [shingles(text.text) for text in example.positives]
    return sum(any(are_alike(shingles(text.text), positive) for positive in positives) for text in example.negatives)

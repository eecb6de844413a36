"""What is found in texts that are to be trained on. What is likely to be a mistake is told in the log."""

import logging
import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrieval.data.labelled import grouping
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.beir import Candidate
from retrieval.data.shards.shard_steps import WITHOUT_PAIR
from retrieval.search.near_duplicates import are_near, shingles
from retrieval.stages.text_sizes import TextSizes

_log = logging.getLogger(__name__)

IN_A_RUN = 2000  # texts that a run looks at before it trains: some tenths of a second
_SHOWN = 60  # characters of an example
_CUT, _ALIKE, _FEW = 0.1, 0.05, 0.5  # shares from which on something is told as a warning


class Finding(NamedTuple):
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


def warn(stage: str, findings: Iterable[Finding]) -> None:
    """Tells the log of those that are likely to be a mistake."""
    for finding in findings:
        if finding.is_warning:
            share = f" of {finding.of:,}" if finding.of else ""
            example = f" ({finding.example})" if finding.example else ""
            _log.warning("%s: %s: %s: %s%s%s", stage, finding.about, finding.what, f"{finding.count:,}", share, example)


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
        yield from cut_off("passages", sizes.of_documents(texts), sizes.document_length, [text.id for text in texts])


def _prepared(statistics: Mapping[str, Any] | None, tasks: Collection[str]) -> Iterator[Finding]:
    """What was left out, pairs by task, what passages without one lack, and what the cutting into passages lost."""
    if not statistics:
        return
    counts = statistics["counts"]
    passages = counts.get("passages", 0)
    for what, example in statistics.get("examples", {}).items():
        yield Finding("corpus", what, counts[what], counts["pages read"], example=example)
    for task, of_task in statistics["tasks"].items():
        if tasks and task not in tasks:
            continue
        what = f"pairs of {task.upper()}, of {passages:,} passages"
        is_few = of_task["pairs"] < _FEW * passages
        reasons = [name for name in counts if name.startswith(f"{WITHOUT_PAIR} of {task.upper()}: ")]
        most = max(reasons, key=lambda name: counts[name], default="").partition(": ")[2]
        reason = f"fewer than {_FEW:.0%}" + f", mostly {most}" * bool(most) if is_few else ""
        yield Finding("corpus", what, of_task["pairs"], None, is_few, reason)
    for what in sorted(counts):
        if what.startswith(WITHOUT_PAIR):
            yield Finding("corpus", what, counts[what], passages)
        elif what.startswith("tokens lost"):
            is_much = counts[what] > _CUT * counts["tokens"]
            yield Finding("corpus", what, counts[what], counts["tokens"], is_much, f"more than {_CUT:.0%}" * is_much)


def _texts(about: str, texts: Sequence[Candidate], seed: int) -> Iterator[Finding]:
    """Empty texts, and those that are there twice."""
    if not texts:
        return
    number, ids = len(texts), [text.id for text in texts]
    yield Finding(about, "looked at", number)
    empty = [text.id for text in texts if not text.text.strip()]
    yield Finding(about, "empty", len(empty), number, bool(empty), next(iter(empty), ""))
    places: dict[bytes, int] = {}
    same = [(place, places.setdefault(grouping.digest(text), place)) for place, text in enumerate(texts)]
    same = [pair for pair in same if len(set(pair)) == 2]
    yield Finding(about, "the same as an earlier one", len(same), number, len(same) > _ALIKE * number, _pair(same, ids))


def _pair(pairs: Sequence[tuple[int, int]], ids: Sequence[str]) -> str:
    """Two texts that are alike, of the document that has the most such texts."""
    if not pairs:
        return ""
    documents = [ids[place].rpartition(":")[0] for place, _ in pairs]
    ((document, count),) = Counter(documents).most_common(1)
    place, first = pairs[documents.index(document)]
    return f"{ids[place]}, as {ids[first]}" + (f" ({count:,} of {document})" if document and count > 1 else "")


def cut_off(about: str, sizes: Sequence[int], longest: int, examples: Sequence[str]) -> Iterator[Finding]:
    """How many texts of these many tokens are cut to a length, and how many tokens that loses.

    Args:
      examples: what to call each of the texts.
    """
    if not sizes:
        return
    cut, lost = sum(size > longest for size in sizes), sum(max(0, size - longest) for size in sizes)
    most = max(range(len(sizes)), key=sizes.__getitem__)
    example = f"{_short(examples[most])}: {sizes[most]:,} tokens" if cut else ""
    yield Finding(about, f"cut to {longest} tokens", cut, len(sizes), cut > _CUT * len(sizes), example)
    yield Finding(about, f"tokens behind the first {longest}", lost, sum(sizes), lost > _CUT * sum(sizes), example)


def _short(text: str) -> str:
    return textwrap.shorten(text, _SHOWN, placeholder=" …") if len(text) > _SHOWN else text


def of_labelled(examples: Sequence[Example], sizes: TextSizes | None) -> Iterator[Finding]:
    """Labelled queries, their texts, and negatives that are likely to be positives.

    Args:
      sizes: counts their tokens; None where there is no vocabulary.
    """
    about, queries = "labelled examples", [example.query for example in examples]
    positives = sum(len(example.positives) for example in examples)
    negatives = sum(len(example.negatives) for example in examples)
    yield Finding(about, "queries looked at", len(examples))
    yield Finding(about, "pairs of a query and a positive", positives)
    yield Finding(about, "hard negatives", negatives)
    if negatives:
        likely = list(map(_likely_positives, examples))
        example = next((_short(example.query) for example, count in zip(examples, likely) if count), "")
        what = "hard negatives nearly the same as a positive of their query: likely no negatives"
        yield Finding(about, what, sum(likely), negatives, any(likely), example)
    if sizes:
        yield from cut_off("labelled queries", sizes.of_queries(queries), sizes.query_length, queries)
        documents = [text for example in examples for text in example.positives]
        names = [text.id or text.title or text.text for text in documents]
        yield from cut_off("labelled positives", sizes.of_documents(documents), sizes.document_length, names)


def _likely_positives(example: Example) -> int:
    positives = [shingles(text.text) for text in example.positives]
    return sum(any(are_near(shingles(text.text), positive) for positive in positives) for text in example.negatives)

"""What a report shows of the texts of evaluation sets: how long they are, and a map of their embeddings."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from retrieval.data.sets import beir
from retrieval.evaluation import display, embedding_map
from retrieval.evaluation.embedding_map import Points
from retrieval.evaluation.report_page import Plot
from retrieval.evaluation.run_report import Table
from retrieval.search import encoding
from retrieval.stages.findings import IN_A_RUN
from retrieval.stages.text_sizes import TextSizes

_TICKS = 10  # of the lengths, at most
_QUERIES, _OTHERS = 150, 1000  # of a map: more hide each other


def lengths(folder: Path, tokens: TextSizes | None, longest: Sequence[int] = ()) -> Table:
    """How long the first queries and candidates of a set are.

    Args:
      folder: of the set, as BEIR's.
      tokens: counts them; None where there is no vocabulary, and words are counted.
      longest: what a model reads of a query and of a candidate, of which longer ones are cut; the second may lack.
    """
    queries = list(itertools.islice(beir.read_queries(folder / "queries.jsonl").values(), IN_A_RUN))
    texts = list(itertools.islice(beir.read_candidates(folder / "corpus.jsonl"), IN_A_RUN))
    unit = "tokens" if tokens else "words"
    of_words = [[len(text.split()) for text in queries], [len(f"{text.title} {text.text}".split()) for text in texts]]
    counted = [tokens.of_queries(queries), tokens.of_documents(texts)] if tokens else of_words
    sizes = {name: np.array(of_texts) for name, of_texts in zip(("queries", "candidates"), counted)}
    cuts = dict(zip(sizes, longest))
    sizes = {name: sizes_N for name, sizes_N in sizes.items() if len(sizes_N)}
    rows = [
        [
            name,
            len(sizes_N),
            *(f"{np.quantile(sizes_N, share):,.0f}" for share in (0.5, 0.95, 1.0)),
            f"{100 * (sizes_N > cuts[name]).mean():.1f} % to {cuts[name]:,}" if name in cuts else None,
        ]
        for name, sizes_N in sizes.items()
    ]
    header = ["texts", "looked at", f"{unit}: median", "95 % have at most", "longest", "cut"]
    note = f"The first {IN_A_RUN:,} queries and candidates at most."
    note += " The model does not read what is behind the cut." if cuts else ""
    return Table(f"Lengths of {folder.name}", header, rows, note, _lengths_plot(folder.name, unit, sizes, cuts))


def _lengths_plot(name: str, unit: str, sizes: dict[str, np.ndarray], cuts: dict[str, int]) -> Plot:
    """The share of texts that are at most so long, with a line where they are cut."""
    figure, axes = display.figure(f"{name}: lengths", unit, f"texts of at most so many {unit}, %")
    for (kind, sizes_N), color in zip(sizes.items(), ("C0", "C1")):
        ordered_N = np.sort(np.maximum(sizes_N, 1))
        axes.step(ordered_N, 100 * np.arange(1, len(ordered_N) + 1) / len(ordered_N), color=color, label=kind)
        if kind in cuts:
            axes.axvline(cuts[kind], color=color, linestyle=":", label=f"{kind} are cut at {cuts[kind]:,}")
    most = max([1, *cuts.values(), *(int(sizes_N.max()) for sizes_N in sizes.values())])
    powers = [1 << power for power in range(most.bit_length() + 1)]
    display.log_ticks(axes, powers[:: -(-len(powers) // _TICKS)])
    axes.set_ylim(0, 102)
    display.legend(figure)
    return Plot(f"lengths-{name}", figure)


def map_of(folder: Path, embedded: Path) -> Iterator[Table]:
    """A map of a set's embeddings, where there are queries with a right answer.

    Args:
      folder: of the set, as BEIR's.
      embedded: the folder of its embeddings.
    """
    judged = beir.read_judged(folder)
    answer_of = {
        query: max(grades, key=lambda candidate: grades[candidate])
        for of_rule in judged.qrels.values()
        for query, grades in of_rule.items()
        if max(grades.values(), default=0) > 0
    }
    queries_QE, ids = encoding.load(embedded, "queries")
    asked = [(row, answer_of[id]) for row, id in enumerate(ids) if id in answer_of]
    asked = [asked[place] for place in _evenly(len(asked), _QUERIES)]
    if not asked:
        return
    answer_vectors, others = {}, []
    wanted, start = {answer for _, answer in asked}, 0
    shown = np.array(list(_evenly(len(encoding.load_ids(embedded, "candidates")), _OTHERS)))
    for shard_ids, shard_NE in encoding.shards(embedded, "candidates"):
        for id, row_E in zip(shard_ids, shard_NE):
            if id in wanted:
                answer_vectors.setdefault(id, row_E)  # of several windows the first
        here = shown[(shown >= start) & (shown < start + len(shard_ids))] - start
        others.append(shard_NE[here])
        start += len(shard_ids)
    asked = [(row, answer) for row, answer in asked if answer in answer_vectors]
    points = Points(
        queries_QE[[row for row, _ in asked]],
        np.stack([answer_vectors[answer] for _, answer in asked]),
        np.concatenate(others),
    )
    plot = Plot(f"map-{folder.name}", embedding_map.figure(f"{folder.name}: embeddings", points))
    note = (
        f"The first two principal components of {len(points.others_NE):,} candidates, {len(asked):,} queries and a "
        "right answer of each, which a line joins. What is near here may be far in all dimensions."
    )
    yield Table(f"Map of {folder.name}", [], [], note, plot)


def _evenly(count: int, most: int) -> Iterator[int]:
    """At most so many of `count` numbers, at even distances."""
    return (count * place // min(count, most) for place in range(min(count, most)))

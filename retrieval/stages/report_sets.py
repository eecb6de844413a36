"""What a report shows of the texts of evaluation sets: how long they are."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from retrieval.data.sets import beir
from retrieval.evaluation import display
from retrieval.evaluation.report_page import Plot
from retrieval.evaluation.run_report import Table
from retrieval.stages.data_warnings import IN_A_RUN
from retrieval.stages.text_sizes import TextSizes

_TICKS = 10  # of the lengths, at most


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

"""What every benchmark shares: seconds, spreads and Markdown tables."""

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any


def timed(function: Callable[[], Any]) -> tuple[Any, float]:
    """What the function returns, and the seconds that it took."""
    began = time.perf_counter()
    result = function()
    return result, time.perf_counter() - began


def searched(search: Callable[[Any], Sequence[int]], queries: Sequence, exact: Sequence[Sequence[int]]) -> dict:
    """Queries a second, one after another, and the share of the exact first rows that `search` finds."""
    rows, seconds = timed(lambda: list(map(search, queries)))
    found = sum(len({*one} & {*best}) for one, best in zip(rows, exact))
    return {"queries/s": len(rows) / seconds, "recall@10": found / sum(map(len, exact))}


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median of the rounds, and their range."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table whose first column is text and whose others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return [f"| {' | '.join(header)} |", f"|{'|'.join(rule)}|", *(f"| {' | '.join(row)} |" for row in rows)]


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.4g}"

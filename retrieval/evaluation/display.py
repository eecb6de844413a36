"""Markdown tables, and figures saved as PNG. The report of a run and the report of a study share them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from retrieval.common import terminal
from retrieval.common.files import atomic
from retrieval.common.libraries import figures

_MARKDOWN = re.compile(r"[\\`*\[\]|~$]|(?<!\w)_|_(?!\w)")
_HTML = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}


class Markup(str):
    """Markdown that a report made itself; every other text is shown as it reads."""


def inline(text: str) -> str:
    """Markdown, on one line, that reads as `text` does. No part of it is a link, a tag or a cell."""
    if isinstance(text, Markup):
        return text
    escaped = terminal.one_line(text).translate(str.maketrans(_HTML))
    return _MARKDOWN.sub(r"\\\g<0>", escaped)


def p_value(value: float) -> str:
    """`p = 0.013`, `p < 0.001`, which is Markdown as it is: a `<` before a blank begins no tag."""
    return Markup("p < 0.001" if value < 0.001 else f"p = {value:.3f}")


def markdown(header: Sequence[str], rows: Sequence[Sequence[Any]], left: int = 1) -> str:
    """A Markdown table: the first `left` columns to the left, the others to the right.

    Columns of nothing but None are left out.
    """
    columns = [column for column in zip(header, *rows) if not rows or any(cell is not None for cell in column[1:])]
    lines = [" | ".join(cell(column[line]) for column in columns) for line in range(len(rows) + 1)]
    lines.insert(1, " | ".join([":---"] * left + ["---:"] * (len(columns) - left)))
    return "\n".join(f"| {line} |" for line in lines)


def cell(value: Any) -> str:
    """A value as a table has it: nothing of None, four digits of small numbers, and Markdown of a text."""
    if value is None:
        return ""
    if isinstance(value, float) and abs(value) < 1000:
        return f"{value:.4g}"
    if isinstance(value, int | float):
        return f"{value:,.0f}"
    return inline(value if isinstance(value, str) else str(value))


def figure(title: str, x: str, y: str, size: tuple[float, float] = (7, 4.3)) -> tuple[figures.Figure, Any]:
    """An empty figure of `size` inches, and its axes."""
    canvas = figures.Figure(figsize=size, layout="constrained")
    axes = canvas.add_subplot(title=label(title), xlabel=label(x), ylabel=label(y))
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return canvas, axes


def label(text: str) -> str:
    """`text` for a figure, in which dollars would make a formula of it."""
    return terminal.one_line(text).replace("$", r"\$")


def legend(canvas: figures.Figure) -> None:
    """The names of the lines, below the axes, where they hide none."""
    names = canvas.axes[0].get_legend_handles_labels()[1]
    canvas.legend(loc="outside lower center", frameon=False, ncols=1 + (max(map(len, names), default=0) < 35))


def file_name(title: str) -> str:
    """`title` as the name of a file, without ending."""
    return re.sub(r"[^\w.-]+", "-", title).strip("-")


def save(folder: Path, canvas: figures.Figure, title: str) -> str:
    """Saves a plot in `folder`/plots and returns the Markdown that shows it."""
    name = file_name(title)
    with atomic(folder / "plots" / f"{name}.png") as temporary:
        canvas.savefig(temporary, format="png", dpi=120, metadata={"Software": None})
    return f"![{name}](plots/{name}.png)"

"""report.html: the parts of a report as one page without assets from elsewhere, to look at in a browser."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from retrieval.common import terminal
from retrieval.common.libraries import figures

# The page runs no script and loads nothing, whatever a text of a user might get into it.
_HEAD = Path(__file__).with_name("report_head.html")


class Plot(NamedTuple):
    """A figure among the parts of a report.

    Attributes:
      name: of its file, without ending.
    """

    name: str
    figure: figures.Figure


def page(title: str, parts: Sequence[str | Plot], folded: Sequence[str | Plot] = ()) -> str:
    """The page.

    Args:
      title: of the browser's window.
      parts: paragraphs of Markdown, in which tags are shown as text, and plots.
      folded: what follows, in sections with headings of the second level: of these the headings alone are seen.
    """
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable("table").render
    shown, below = (
        "\n".join(_image(each) if isinstance(each, Plot) else render(each) for each in of) for of in (parts, folded)
    )
    sections = (section.partition("</h2>") for section in below.split("<h2>")[1:])
    shown += "".join(f"<details><summary>{heading}</summary>{text}</details>\n" for heading, _, text in sections)
    body = shown.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    head = _HEAD.read_text(encoding="utf-8").replace("{title}", html.escape(terminal.one_line(title)))
    return f"{head}{body}\n</html>\n"


def _image(plot: Plot) -> str:
    """A figure as a PNG within the page."""
    buffer = io.BytesIO()
    plot.figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(plot.name)}" src="data:image/png;base64,{data}">'

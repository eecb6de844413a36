"""report.html: the parts of a report as one page without assets from elsewhere, to look at in a browser."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from typing import NamedTuple

from retrieval.common import terminal
from retrieval.common.libraries import figures

# The page runs no script and loads nothing, whatever a text of a user might get into it.
_HEAD = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --paper: #fdfdfc; --ink: #1c1c1a; --soft: #63635e; --line: #dcdcd6; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --paper: #161615; --ink: #e9e9e4; --soft: #a3a39b; --line: #3a3a36; }}
}}
body {{ max-width: 64rem; margin: 0 auto; padding: 1rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }}
h2 {{ margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }}
p {{ color: var(--soft); max-width: 45rem; }}
h1 + p {{ color: inherit; }}
.table {{ overflow-x: auto; margin: 1rem 0; }}
table {{ border-collapse: collapse; font-size: .875rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .3rem .75rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: normal; max-width: 26rem; }}
td[style*="left"] {{ min-width: 8rem; }}
td[style*="right"] {{ white-space: nowrap; }}
img {{ display: block; max-width: 100%; margin: 1rem 0; }}
</style>
"""


class Plot(NamedTuple):
    """A figure among the parts of a report.

    Attributes:
      name: of its file, without ending.
    """

    name: str
    figure: figures.Figure


def page(title: str, parts: Sequence[str | Plot]) -> str:
    """The page.

    Args:
      title: of the browser's window.
      parts: paragraphs of Markdown, in which tags are shown as text, and plots.
    """
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable("table").render
    shown = [_image(part) if isinstance(part, Plot) else render(part) for part in parts]
    body = "\n".join(shown).replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    return f"{_HEAD.format(title=html.escape(terminal.one_line(title)))}{body}\n</html>\n"


def _image(plot: Plot) -> str:
    """A figure as a PNG within the page."""
    buffer = io.BytesIO()
    plot.figure.savefig(buffer, format="png", dpi=120, metadata={"Software": None})
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(plot.name)}" src="data:image/png;base64,{data}">'

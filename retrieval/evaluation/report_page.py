"""report.html: the parts of a report as one page without assets from elsewhere, to look at in a browser."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote

from retrieval.common import terminal

# The page runs no script and loads nothing, whatever a text of a user might get into it.
_HEAD = Path(__file__).with_name("report_head.html")
_PLOT = re.compile(r'(?<=<img src=")plots/[^"/]+\.png(?=")')


def page(folder: Path, title: str, parts: Sequence[str], folded: Sequence[str] = ()) -> str:
    """The page.

    Args:
      folder: with the plots, which the page has within itself.
      title: of the browser's window.
      parts: paragraphs of Markdown, in which tags are shown as text.
      folded: what follows, in sections with headings of the second level: of these the headings alone are seen.
    """
    from markdown_it import MarkdownIt

    render = MarkdownIt("commonmark", {"html": False}).enable("table").render
    shown, below = ("\n".join(map(render, of)) for of in (parts, folded))
    sections = (section.partition("</h2>") for section in below.split("<h2>")[1:])
    shown += "".join(f"<details><summary>{heading}</summary>{text}</details>\n" for heading, _, text in sections)
    body = shown.replace("<table>", '<div class="table"><table>').replace("</table>", "</table></div>")
    head = _HEAD.read_text(encoding="utf-8").replace("{title}", html.escape(terminal.one_line(title)))
    return f"{head}{_PLOT.sub(lambda place: _data(folder / unquote(place[0])), body)}\n</html>\n"


def _data(path: Path) -> str:
    """The address of a PNG that is within the page."""
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"

"""MkDocs' hook: the site has more pages than docs/, and its links are those of the repository.

- README.md and other files outside of docs/ become pages.
- Every package of `retrieval/` becomes a page, which mkdocstrings fills with its docstrings.
- A folder in the `nav` of mkdocs.yml stands for all of its pages.
- Links that lead to a page of the site follow it there. Links to other files become plain text.
"""

import posixpath
import re
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changes.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "benchmarks/README.md": "benchmarks.md",
    "third_party/README.md": "outside-data.md",
}
SOURCES = {page: source for source, page in OUTSIDE.items()}

LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#:]+)(#[^)\s]*)?\)")


def api_pages() -> dict[str, str]:
    """The text of each package's page, by its place on the site."""
    pages = {}
    for folder in sorted({path.parent for path in (REPOSITORY / "retrieval").rglob("*.py")}):
        package = ".".join(folder.relative_to(REPOSITORY).parts)
        modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        if modules:
            names = "".join(f"\n::: {package}.{module}\n" for module in modules)
            pages[f"api/{package}.md"] = f"# {package}\n{names}"
    return pages


def with_folders(nav: list, pages: list[str]) -> list:
    """The `nav`, with the pages of a folder where it names the folder: `index.md` first, the others by name."""
    entries = []
    for entry in nav:
        title, value = next(iter(entry.items())) if isinstance(entry, dict) else (None, entry)
        if isinstance(value, list):
            entries.append({title: with_folders(value, pages)})
        elif value.endswith("/"):
            found = sorted(
                (page for page in pages if page.startswith(value)), key=lambda page: (page != f"{value}index.md", page)
            )
            entries += [{title: found}] if title else found
        else:
            entries.append(entry)
    return entries


def with_links_of_the_site(markdown: str, page: str) -> str:
    """The text of a page with links as they are on the site.

    Args:
        markdown: the text, with links as they are in the repository.
        page: its place on the site, such as `guides/bert.md`.
    """
    source = SOURCES.get(page, f"docs/{page}")

    def replaced(match: re.Match) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path not in OUTSIDE and not path.startswith("docs/"):
            return text
        place = OUTSIDE.get(path, path.removeprefix("docs/"))
        return f"[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor})"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else LINK.sub(replaced, part) for part in parts)


def on_files(files, config):
    """MkDocs calls this with the files of docs/."""
    from mkdocs.structure.files import File

    for source, page in OUTSIDE.items():
        files.append(File.generated(config, page, content=(REPOSITORY / source).read_text(encoding="utf-8")))
    for page, text in api_pages().items():
        files.append(File.generated(config, page, content=text))
    config.nav = with_folders(config.nav, [file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown, page, config, files):
    """MkDocs calls this with the text of each page."""
    return with_links_of_the_site(markdown, page.file.src_uri)

"""The text of prepared articles. What it imports needs the standard library only: the peers' interpreters run it."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.data.corpora import articles


def sections(paths: Sequence[Path]) -> Iterator[list[str]]:
    """The paragraphs of every section that has some."""
    for path in paths:
        with path.open(encoding="utf-8") as lines:
            for item in (articles.from_json(line, str(path)) for line in lines):
                for section in item.sections if isinstance(item, articles.Article) else ():
                    if section.paragraphs:
                        yield [paragraph.text for paragraph in section.paragraphs]


def megabytes(paths: Sequence[Path]) -> float:
    """The UTF-8 text of all paragraphs."""
    return sum(len(text.encode()) for section in sections(paths) for text in section) / 1e6

"""One's own documents as a corpus: files, folders and patterns."""

import glob
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.data.corpora import source_paths
from retrieval.data.corpora.articles import Dropped
from retrieval.data.corpora.corpus_kind import CorpusKind, Options, register
from retrieval.data.corpora.document_format import DOCUMENTS, endings, format_of
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

_FIELDS = ("documents.id", "documents.title", "documents.text")


@register
class OwnDocuments(CorpusKind):
    """A document's id is its path below the corpus, or the id of its record."""

    name = "documents"
    what = "your own documents: text, Markdown, HTML, JSON lines, CSV, Parquet"
    setting = "--config.corpus=FOLDER,FILE.jsonl,'docs/*.md'"
    options = _FIELDS

    def takes(self, part: str) -> bool:
        """Folders, patterns, and files of a known format."""
        return Path(part).is_dir() or _is_pattern(part) or format_of(Path(part)) is not None

    def check(self, parts: Sequence[str], options: Options) -> None:
        """Each part has a file of a known format, and the first record of each file of records can be read."""
        source_paths.checked("config.corpus", [part for part in parts if not _is_pattern(part)], of_folders=None)
        for part in parts:
            if not _files([part])[0]:
                raise UserError(f"{part}: no document, in config.corpus; the names of documents end in {endings()}")
        for path in _files(parts)[0]:
            next(_documents(path, path.name, options), None)

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files of known formats."""
        source_paths.existing([Path(part) for part in parts if not _is_pattern(part)])
        return _files(parts)[0]

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """The documents of all files, in the order of their paths."""
        paths, others = _files(parts)
        kinds = Counter(path.suffix.lower() or "no ending" for path in others)
        if kinds:
            told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(10))
            _log.warning("the corpus: %d files of other kinds are left out: %s", len(others), told)
        yield from (Dropped(str(path), f"files of other kinds: {path.suffix.lower()}") for path in others)
        base = _base(paths)
        for path in paths:
            yield from _documents(path, path.absolute().relative_to(base).as_posix(), options)

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """The article of a document."""
        return list(DOCUMENTS[page.format].parse(page))


def _documents(path: Path, id: str, options: Options) -> Iterator[Any]:
    form = format_of(path)
    assert form, "`_files` gives those of known formats"
    fields: Mapping[str, str] = {name.rpartition(".")[2]: options[name] for name in _FIELDS}
    return form.read(path, id, fields)


def _files(parts: Sequence[str]) -> tuple[list[Path], list[Path]]:
    """The files of known formats, and those of others, each once and in order. Hidden ones are passed over."""
    places = [Path(place) for part in parts for place in (sorted(glob.glob(part, recursive=True)) or [part])]
    below = [path for place in places for path in (sorted(_below(place)) if place.is_dir() else [place])]
    there = [path for path in dict.fromkeys(below) if path.is_file()]
    known = [path for path in there if format_of(path)]
    return known, [path for path in there if not format_of(path)]


def _below(folder: Path) -> Iterator[Path]:
    for top, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(top, name) for name in names if not name.startswith("."))


def _base(paths: Sequence[Path]) -> Path:
    """The folder from which the ids of documents count: the deepest one that all of them are in."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def _is_pattern(part: str) -> bool:
    has_scheme = ":" in part.partition("/")[0]  # such as tfds:NAME?data_dir=FOLDER
    return glob.has_magic(part) and not has_scheme and not Path(part).exists()

"""One's own documents as a corpus: files, folders and patterns."""

import dataclasses
import glob
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from retrieval.data.corpora import source_paths
from retrieval.data.corpora.articles import Dropped
from retrieval.data.corpora.corpus_kind import CorpusKind, Options, register
from retrieval.data.corpora.document_format import NOT_IN_IDS, Document, endings, format_of
from retrieval.data.corpora.note_links import Notes
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

_FIELDS = ("documents.id", "documents.title", "documents.text", "documents.url")


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
            found = _files([part])
            if not found.known:
                leaving = (
                    f" but {len(found.leaving):,} links that leave it, which are not followed" if found.leaving else ""
                )
                raise UserError(
                    f"{part}: no document{leaving}, in config.corpus; the names of documents end in {endings()}"
                )
        for path in _files(parts).known:
            next(_documents(path, path.name, options), None)

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files of known formats."""
        source_paths.existing([Path(part) for part in parts if not _is_pattern(part)])
        return _files(parts).known

    def read(self, parts: Sequence[str], options: Options, lock: Path) -> Iterator[Any]:
        """The documents of all files, in the order of their paths."""
        paths, others, leaving, again = _files(parts)
        if again:
            _log.warning("the corpus: %d files are named or linked more than once; each is read once", again)
        for path in leaving:
            _log.warning(
                "%s: left out, for this link leaves the corpus; put what it leads to in its place", _shown(path)
            )
        yield from (Dropped(_shown(path), "links that leave the corpus") for path in leaving)
        broken = [path for path in others if not path.exists()]
        for path in broken:
            _log.warning("%s: left out, for this link leads nowhere; mend or remove it", _shown(path))
        yield from (Dropped(_shown(path), "links that lead nowhere") for path in broken)
        odd = [path for path in others if path.exists() and not _can_be_id(path)]
        for path in odd:
            _log.warning(
                "%s: left out, for its name is not UTF-8, or has a tab or a line break; give it another", _shown(path)
            )
        yield from (Dropped(_shown(path), "files whose name cannot be an id") for path in odd)
        others = [path for path in others if path.exists() and _can_be_id(path)]
        kinds = Counter(path.suffix.lower() or "no ending" for path in others)
        if kinds:
            told = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common(10))
            _log.warning("the corpus: %d files of other kinds are left out: %s", len(others), told)
        yield from (Dropped(str(path), f"files of other kinds: {path.suffix.lower()}") for path in others)
        base = _base(paths)
        ids = {path: normalize("NFC", path.absolute().relative_to(base).as_posix()) for path in paths}
        notes = Notes(id for path, id in ids.items() if _has_names(path))
        for path, id in ids.items():
            documents = _documents(path, id, options)
            yield from (_with_names(item, notes) for item in documents) if _has_names(path) else documents

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """The article of a document."""
        return list(page.format.parse(page))


def _has_names(path: Path) -> bool:
    return bool((form := format_of(path)) and form.has_names)


def _with_names(item: Document | Dropped, notes: Notes) -> Document | Dropped:
    """A document with the notes that it links to by name."""
    if isinstance(item, Dropped) or "[[" not in item.text:
        return item
    return dataclasses.replace(item, named=notes.named_in(item.text))


def _documents(path: Path, id: str, options: Options) -> Iterator[Any]:
    form = format_of(path)
    assert form, "`_files` gives those of known formats"
    fields: Mapping[str, str] = {name.rpartition(".")[2]: options[name] for name in _FIELDS}
    is_empty = True
    for item in form.read(path, id, fields):
        is_empty = False
        yield item
    if is_empty:
        yield Dropped(id, "files without a record")


class _Found(NamedTuple):
    """The files that the parts of a corpus name.

    Attributes:
      known: of known formats, in order.
      others: of other kinds, and broken links.
      leaving: links to what is in none of the folders that the parts name.
      again: how many were named or linked again.
    """

    known: list[Path]
    others: list[Path]
    leaving: list[Path]
    again: int


def _files(parts: Sequence[str]) -> _Found:
    """The files that the parts name, each once. Hidden ones are passed over."""
    roots = [root for part in parts for root in _roots(part)]
    named = [path for part in parts for path in dict.fromkeys(_of_part(part, roots))]
    places = _real_places(named)
    leaving = [path for path, place in places.items() if not _is_within(place, roots)]
    there, again = _each_once([path for path in named if _is_within(places[path], roots)], places)
    known = [path for path in there if path.is_file() and format_of(path) and _can_be_id(path)]
    return _Found(known, sorted(set(there).difference(known)), leaving, again)


def _roots(part: str) -> list[str]:
    """The folders, or the file, that a part names: what stands before the first sign of a pattern."""
    if not _is_pattern(part):
        return [os.path.realpath(part)]
    names = part.split("/")
    first = next(place for place, name in enumerate(names) if glob.has_magic(name))
    return [os.path.realpath("/".join([*names[:first], ""]) or os.curdir)]


def _is_within(place: str, roots: Sequence[str]) -> bool:
    return any(place == root or place.startswith(os.path.join(root, "")) for root in roots)


def _can_be_id(path: Path) -> bool:
    """Whether the name of a file is UTF-8 on one line: it becomes an id, and no record could hold another."""
    return _shown(path) == str(path) and not any(sign in str(path) for sign in NOT_IN_IDS)


def _shown(path: Path) -> str:
    """A path as it can be written: what is not UTF-8 in it becomes a sign."""
    return os.fsencode(path).decode("utf-8", errors="replace")


def _of_part(part: str, roots: Sequence[str]) -> Iterator[Path]:
    places = [part] if Path(part).exists() else sorted(set(matching(part, roots)))
    for place in map(Path, places or [part]):
        below = sorted(_below(place, roots)) if place.is_dir() else [place]
        yield from (path for path in below if path.is_file() or path.is_symlink())


def matching(pattern: str, roots: Sequence[str] = ()) -> Iterator[str]:
    """The files and folders that match. `**` is each folder once, where that of `glob` follows a link to a parent.

    Args:
      roots: the folders that links may lead to; by default the one that stands before the pattern.
    """
    names, roots = pattern.split("/"), roots or _roots(pattern)
    if "**" not in names:
        yield from glob.glob(pattern)
        return
    place = names.index("**")
    top, rest = "/".join([*names[:place], ""]), "/".join(names[place + 1 :])
    for start in glob.glob(top) if top else [os.curdir]:
        for folder, _ in _walk(start, roots) if rest else [(start, [])]:  # with no rest it is all that is below
            yield from matching(os.path.join(glob.escape(folder), rest), roots)


def _below(folder: Path, roots: Sequence[str]) -> Iterator[Path]:
    """All files."""
    return (Path(top, name) for top, names in _walk(str(folder), roots) for name in names)


def _walk(folder: str, roots: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """All folders and the names of their files, without those that are hidden.

    Links to folders are followed last, and a folder is read once: a link may lead to its own parent. Those that lead to
    a folder outside of the roots are among the names.
    """
    seen: set[str] = set()
    places = [folder]
    for place in places:  # which grows
        for top, folders, names in os.walk(place, onerror=_refuse):
            if (real := os.path.realpath(top)) in seen or not _is_within(real, roots):
                folders.clear()
                continue
            seen.add(real)
            folders[:] = [name for name in folders if not name.startswith(".")]
            links = [name for name in folders if os.path.islink(os.path.join(top, name))]
            leaving = [name for name in links if not _is_within(os.path.realpath(os.path.join(top, name)), roots)]
            places.extend(os.path.join(top, name) for name in links if name not in leaving)
            yield top, [name for name in (*names, *leaving) if not name.startswith(".")]


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read ({error.strerror}), and is in config.corpus; let it be read")


def _real_places(paths: Sequence[Path]) -> dict[Path, str]:
    """Each path without links; the last part of a link that leads nowhere stays."""
    folders = {folder: os.path.realpath(folder) for folder in {path.parent for path in paths}}
    return {
        path: os.path.realpath(path)
        if path.is_symlink() and path.exists()
        else os.path.join(folders[path.parent], path.name)
        for path in paths
    }


def _each_once(paths: Sequence[Path], places: Mapping[Path, str]) -> tuple[list[Path], int]:
    """One path of each file, the first that has no link in it if there is one; and how many files had several."""
    first: dict[str, Path] = {}
    again: set[str] = set()
    for path in sorted(paths, key=lambda path: (path.is_symlink(), places[path] != os.path.abspath(path))):
        again |= {places[path]} & first.keys()
        first.setdefault(places[path], path)
    kept = set(first.values())
    return [path for path in dict.fromkeys(paths) if path in kept], len(again)


def _base(paths: Sequence[Path]) -> Path:
    """The folder from which the ids of documents count: the deepest one that all of them are in."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def _is_pattern(part: str) -> bool:
    has_scheme = ":" in part.partition("/")[0]  # such as tfds:NAME?data_dir=FOLDER
    return glob.has_magic(part) and not has_scheme and not Path(part).exists()

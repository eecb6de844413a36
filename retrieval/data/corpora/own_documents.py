"""One's own documents as a corpus: files, folders and patterns."""

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

from retrieval.common.errors import UserError
from retrieval.data.corpora import corpus_kind, source_paths
from retrieval.data.corpora.articles import Dropped
from retrieval.data.corpora.corpus_kind import CorpusKind, register
from retrieval.data.corpora.document_format import NOT_IN_IDS, Context, endings, format_of
from retrieval.data.formats import Options

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
            if not _files([part])[0]:
                raise UserError(f"{part}: no document, in config.corpus; the names of documents end in {endings()}")
        for path in self.inputs(parts, Path()):
            next(_documents(path, path.name, options), None)

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The files of known formats."""
        source_paths.existing([Path(part) for part in parts if not _is_pattern(part)])
        return _files(parts)[0]

    def read(self, parts: Sequence[str], context: corpus_kind.Context) -> Iterator[Any]:
        """The documents of all files, after what is left out."""
        paths, left_out = _files(parts)
        yield from left_out
        base = os.path.commonpath([path.parent for path in paths])  # the ids count from the deepest common folder
        for path in paths:
            yield from _documents(path, normalize("NFC", path.relative_to(base).as_posix()), context.options)

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """The article of a document."""
        return list(page.format.parse(page))


def _documents(path: Path, id: str, options: Options) -> Iterator[Any]:
    form = format_of(path)
    assert form, "`_files` gives those of known formats"
    items = iter(form.read(path, Context(id, {name.rpartition(".")[2]: options[name] for name in _FIELDS})))
    yield next(items, Dropped(id, "files without a record"))
    yield from items


def _files(parts: Sequence[str]) -> tuple[list[Path], list[Dropped]]:
    """The files of known formats that the parts name, each once by its path without links; and what is left out.

    A link is followed to a file in one of the folders that the parts name. Links to folders are not followed: what
    they lead to is in one of those folders itself, or in none.
    """
    roots = tuple(os.path.join(os.path.realpath(_split_pattern(part)[0]), "") for part in parts)
    kept: dict[Path, None] = {}
    left_out: dict[Path, str] = {}
    for path in (path for part in parts for place in places(part) for path in sorted(_below(place))):
        real = Path(os.path.realpath(path))
        if not f"{real}/".startswith(roots):
            left_out[path] = "links that leave the corpus"
        elif real.is_dir():
            continue
        elif not real.exists():
            left_out[path] = "links that lead nowhere"
        elif os.fsencode(real).decode(errors="replace") != str(real) or set(NOT_IN_IDS) & set(str(real)):
            left_out[path] = "files whose name cannot be an id"
        elif not (real.is_file() and format_of(real)):
            left_out[path] = f"files of other kinds: {real.suffix.lower()}"
        else:
            kept[real] = None
    return list(kept), [Dropped(os.fsencode(path).decode(errors="replace"), why) for path, why in left_out.items()]


def places(part: str) -> list[Path]:
    """The files and folders that a part names. `**` follows no links, and hidden ones are for who writes a dot."""
    top, pattern = _split_pattern(part)
    folder = Path(os.path.realpath(top))
    if not pattern:
        return [folder] if folder.exists() else []
    paths = sorted(folder.glob(pattern))
    return [p for p in paths if "/." in f"/{pattern}" or "/." not in f"/{p.relative_to(folder)}"]


def _below(place: Path) -> Iterator[Path]:
    """All files below a folder, and links to folders, without those that are hidden; or the file itself."""
    if not place.is_dir() or place.is_symlink():
        yield place
        return
    for top, folders, names in os.walk(place, onerror=_refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        links = [name for name in folders if os.path.islink(os.path.join(top, name))]
        yield from (Path(top, name) for name in (*names, *links) if not name.startswith("."))


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename}: cannot be read ({error.strerror}), and is in config.corpus; let it be read")


def _split_pattern(part: str) -> tuple[str, str]:
    """The folder that stands before a pattern, and the pattern; for another part the part and ''."""
    if not _is_pattern(part):
        return part, ""
    names = part.split("/")
    first = next(number for number, name in enumerate(names) if glob.has_magic(name))
    return "/".join([*names[:first], ""]) or os.curdir, "/".join(names[first:])


def _is_pattern(part: str) -> bool:
    return glob.has_magic(part) and not Path(part).exists()

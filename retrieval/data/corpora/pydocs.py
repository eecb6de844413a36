"""The embedded corpus: docstrings of the standard library and of the pinned packages, read without importing them.

A module is an article. Its docstring is the lead, its classes, methods and functions are the sections. The names that
they mention are the links. A fraction of the docstrings can be held out as an evaluation set, known-item search. It
asks with the first sentence of a function's docstring for the rest of it.
"""

import ast
import collections
import functools
import hashlib
import importlib.metadata
import itertools
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.corpora import corpus_kind, docstrings, sentences, source_paths
from retrieval.data.corpora.articles import Article, Dropped, KnownItem, Paragraph, Redirect, Section
from retrieval.data.corpora.corpus_kind import CorpusKind, register
from retrieval.data.formats import Options
from retrieval.data.sets.beir import Candidate, RetrievalSet

_FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef
_MAX_BYTES = 4 << 20
_MAX_NAME = 200
_MIN_BODY_WORDS = 30
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_PIN = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*==\s*([^\s;#,\\]+)")

# Tests and their data, vendored packages, generated code, and packages that exist twice with nearly the same text: they
# would be false negatives of each other.
_LEFT_OUT = re.compile(
    r"""(?:^|[._])tests?(?:[._]|$) | testdata | (?:^|\.)(?:conftest|_?vendor\w*|turtledemo)(?:\.|$) | _pb2(?:[._]|$)
    | ^tensorflow\.(?:python\.keras|_api\.v2\.compat)(?:\.|$) | ^keras\.(?:_tf_keras|src\.legacy)(?:\.|$)
    | ^(?:pymongo|gridfs)\.asynchronous(?:\.|$) | ^huggingface_hub\.inference\._generated(?:\.|$)
    | ^jaxlib\.mlir\.dialects\._\w+_gen$ | ^scipy\._lib\.array_api | ^setuptools\._distutils(?:\.|$)""",
    re.VERBOSE,
)
# What docstrings, and the folders of TensorFlow, call some modules.
_ALIASES = {
    **{"np.": "numpy.", "jnp.": "jax.numpy.", "plt.": "matplotlib.pyplot.", "os.path.": "posixpath."},
    **{"tf.keras.": "keras.", "tf.": "tensorflow.", "tensorflow._api.v2.": "tensorflow."},
}
_DEFINITION = re.compile(r"^(?:(?:async )?def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
_IMPORT = re.compile(r"^from (\.*)([\w.]*) import (\([^)]*\)|.+)", re.MULTILINE)


class Page(NamedTuple):
    """A module; its package is in the folder `root`, and `size` is in bytes."""

    id: str
    title: str
    root: str
    path: str
    size: int


def read_pages(lock: Path) -> Iterator[Page | Dropped]:
    """Every module of the standard library and of the distributions pinned in `lock`, in the order of their names.

    Tests, vendored packages and copies are left out. So is a distribution that is not installed in its pinned version.

    Raises:
      UserError: there is no such file, or no line `name==version` in it.
    """
    standard = Path(_STANDARD_LIBRARY)
    files = [(standard, path.relative_to(standard)) for path in sorted(standard.rglob("*.py"))]
    for name, version in _pins(lock):
        distribution = next(iter(importlib.metadata.distributions(name=name)), None)
        if distribution is None or distribution.version != version:
            yield Dropped(name, "distribution not installed in its pinned version")
        else:
            root = Path(str(distribution.locate_file(""))).resolve()
            files += [(root, Path(file)) for file in distribution.files or () if file.suffix == ".py"]
    pages: dict[str, Page] = {}
    for root, file in files:
        title, path = _title(".".join(file.with_suffix("").parts)), root / file
        if title and title not in pages and path.is_file():
            pages[title] = Page(title, title, str(root), str(path), path.stat().st_size)
    yield from (pages[title] for title in sorted(pages))


def parse(page: Page, held_out: float = 0.0) -> list[Article | Redirect | KnownItem | Dropped]:
    """The article of a module, redirects from the names that it defines or exports, and its held-out functions.

    A hash of the first sentence of its docstring says whether a function is held out, not its name. So copies are held
    out together. A paragraph that begins with such a sentence in another docstring is left out as well. `held_out` is
    the fraction of all sentences.
    """
    if page.size > _MAX_BYTES:
        return [Dropped(page.title, "too large")]
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(Path(page.path).read_bytes())
        sections, items = _sections(page, tree, held_out)
    except OSError:
        return [Dropped(page.title, "unreadable")]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return [Dropped(page.title, "not valid Python, or nested too deeply")]
    rest = [*_redirects(page), *items]
    if not any(section.paragraphs for section in sections):
        return [Dropped(page.title, "no text"), *rest]
    return [Article(page.id, page.title, tuple(sections)), *rest]


def known_items(results: Iterable[Any]) -> RetrievalSet:
    """The evaluation set of the held-out functions among what `parse` returned; everything else is passed over.

    A query is the first sentence of a docstring. Its one right candidate is the rest, without a title: every other
    query repeats all words of the name. Of functions with the same docstring one is kept. None is kept where only the
    query or only the body is the same, or the body repeats the query.
    """
    named = {item.name: item for item in results if isinstance(item, KnownItem)}
    items = {(_key(item.query), _key(item.body)): item for item in named.values()}
    queries, bodies = (collections.Counter(pair[i] for pair in items) for i in (0, 1))
    kept = [item for (q, body), item in items.items() if queries[q] == bodies[body] == 1 and q not in body]
    kept.sort()
    texts, judged = {item.name: item.query for item in kept}, {item.name: {item.name: 1} for item in kept}
    return RetrievalSet("pydocs", texts, [Candidate(item.name, "", item.body) for item in kept], {"test": judged})


def _pins(lock: Path) -> list[tuple[str, str]]:
    matches = (_PIN.match(line) for _, line in text_files.lines(lock))
    if not (pins := [(match[1], match[2]) for match in matches if match]):
        raise UserError(f"{lock}: no line of the form name==version; write one with `pip freeze`")
    return pins


def _title(module: str) -> str | None:
    """The dotted name of a module's page, or None if there is none."""
    module = module.removesuffix(".__init__")
    is_left_out = _LEFT_OUT.search(module) or not all(part.isidentifier() for part in module.split("."))
    return None if is_left_out else _unalias(module)


def _unalias(name: str) -> str:
    alias = next(filter(name.startswith, _ALIASES), "")
    return _ALIASES.get(alias, "") + name.removeprefix(alias)


def _sections(page: Page, tree: ast.Module, held_out: float) -> tuple[list[Section], list[KnownItem]]:
    """The lead and the sections. A module without a docstring has that of its first class or function as the lead."""
    sections, items, known = [Section("", 1, ())], [], set()
    for name, node in [("", tree), *_definitions(tree.body)]:
        docstring = ast.get_docstring(node, clean=False) or ""
        paragraphs = list(docstrings.paragraphs(docstring, functools.partial(_resolve, page)))
        item = _known_item(f"{page.title}.{name}", paragraphs)
        if item and _is_held_out(item, held_out):
            is_whole = isinstance(node, _FUNCTION) and len(item.body.split()) >= _MIN_BODY_WORDS
            paragraphs = [] if is_whole else paragraphs[1:]
            items += [item] if is_whole and not re.search(r"(?:^|\.)_", name) else []
        fresh = tuple({p.text: p for p in paragraphs if p.text not in known}.values())
        known.update(p.text for p in fresh)
        if fresh and not sections[0].paragraphs:
            sections[0] = Section("", 1, fresh)
        elif fresh:
            sections.append(Section(name, 2 + name.count("."), fresh))
    return sections, items


def _definitions(body: Iterable[ast.AST], prefix: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Classes, methods and functions with their names in the module, also those below `if` and `try`."""
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.ExceptHandler):
            yield from _definitions(ast.iter_child_nodes(node), prefix)
        elif isinstance(node, ast.ClassDef | _FUNCTION):
            yield prefix + node.name, node
            yield from _definitions(node.body if isinstance(node, ast.ClassDef) else (), f"{prefix}{node.name}.")


def _known_item(name: str, paragraphs: list[Paragraph]) -> KnownItem | None:
    """A docstring cut after its first sentence, if that has at least four words and a full stop."""
    first, *rest = [paragraph.text for paragraph in paragraphs] or [""]
    end = next((end for _, end in sentences.split(first)), 0)
    query, body = first[:end], " ".join([first[end:], *rest]).strip()
    is_sentence = query[:1].isupper() and query.endswith(".") and len(query.split()) >= 4
    return KnownItem(name, query, body) if is_sentence else None


def _is_held_out(item: KnownItem, fraction: float) -> bool:
    digest = hashlib.blake2b(_key(item.query).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "big") < fraction * 2**32


def _key(text: str) -> str:
    """What is left when case, spacing and punctuation are no difference."""
    return " ".join(re.findall(r"\w+", text.casefold()))


# Names to titles.


def _redirects(page: Page) -> Iterator[Redirect]:
    """From the public names that a module defines, and that a package exports, to the modules that define them."""
    is_package = page.path.endswith("__init__.py")
    top = page.title.partition(".")[0]
    for name, origin in _exports(page.root, page.path, page.title).items():
        title = f"{page.title}.{name}"
        if name.startswith("_") or _locate(page.root, title):
            continue
        home = page.title if origin == title else _home(page.root, origin) if is_package else None
        if home and home != title and home.partition(".")[0] == top:
            yield Redirect(title, home)


def _resolve(page: Page, name: str, is_explicit: bool) -> str | None:
    """The title that `name` stands for in the docstrings of `page`, or None. A page does not link to itself.

    A dotted name is looked up as it is, then in the module and its packages. A short name goes the other way round. It
    is looked up as a module only where the docstring says that it is one.
    """
    name = _unalias(name)
    if name.startswith("_") or len(name) > _MAX_NAME:
        return None
    parts = page.title.split(".")
    nested = [".".join([*parts[:end], name]) for end in range(len(parts), 0, -1)]
    candidates = [name, *nested] if "." in name else [*nested, name] if is_explicit else nested
    home = next(filter(None, (_home(page.root, candidate) for candidate in candidates)), None)
    return home if home != page.title else None


@functools.cache
def _home(root: str, name: str, steps: int = 8) -> str | None:
    """The title of the module that defines a dotted name; re-exports are followed for at most `steps`."""
    prefixes = itertools.accumulate(name.split("."), "{}.{}".format)
    module = max((prefix for prefix in prefixes if _locate(root, prefix)), key=len, default=None)
    if module is None or module == name:
        return module and _title(module)
    first, _, rest = name.removeprefix(f"{module}.").partition(".")
    origin = _exports(root, _locate(root, module), module).get(first)
    if origin == f"{module}.{first}":
        return _title(module)
    return _home(root, f"{origin}.{rest}".rstrip("."), steps - 1) if origin and steps else None


@functools.cache
def _locate(root: str, module: str) -> str | None:
    """The file of a module below `root` or in the standard library."""
    paths = (f"{base}/{module.replace('.', '/')}" for base in (root, _STANDARD_LIBRARY))
    return next(filter(os.path.isfile, (path + end for path in paths for end in ("/__init__.py", ".py"))), None)


@functools.cache
def _exports(root: str, path: str, module: str, depth: int = 3) -> dict[str, str]:
    """What a module defines and imports by name: name -> dotted name. `import *` is followed `depth` times."""
    try:
        source = Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    package = module if path.endswith("__init__.py") else module.rpartition(".")[0]
    names: dict[str, str] = {}
    for dots, origin, imported in _IMPORT.findall(source):
        if dots:
            base = package.rsplit(".", len(dots) - 1)[0]
            origin = f"{base}.{origin}".rstrip(".")
        for words in map(str.split, re.sub(r"#.*", "", imported).strip("()").split(",")):
            if words == ["*"]:
                starred, top = _locate(root, origin), f"{origin.partition('.')[0]}."
                exported = _exports(root, starred, origin, depth - 1) if starred and depth else {}
                names |= {name: f"{origin}.{name}" for name, target in exported.items() if target.startswith(top)}
            elif words:
                names[words[-1]] = f"{origin}.{words[0]}"
    return names | {name: f"{module}.{name}" for name in map("".join, _DEFINITION.findall(source))}


_HELD_OUT = "prepare.held_out"


@register
class Pydocs(CorpusKind):
    """Needs no data: a first run takes it."""

    name = "pydocs"
    what = "the docstrings of the installed packages"
    setting = "--config.corpus=pydocs"
    options = (_HELD_OUT,)

    def takes(self, part: str) -> bool:
        """The word alone."""
        return part == self.name

    def inputs(self, parts: Sequence[str], lock: Path) -> Sequence[Path]:
        """The file that pins the packages."""
        return source_paths.existing([lock])

    def size(self, parts: Sequence[str], lock: Path) -> None:
        """Not that of the file."""
        return None

    def read(self, parts: Sequence[str], context: corpus_kind.Context) -> Iterator[Any]:
        """The modules."""
        return read_pages(context.lock)

    def parse(self, page: Any, options: Options) -> Sequence[Any]:
        """A module's article, and its functions that are held out."""
        return parse(page, options[_HELD_OUT])

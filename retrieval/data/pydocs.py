"""The embedded corpus: docstrings of the standard library and of the pinned packages, read without importing them.

A module is an article: its docstring is the lead, its classes, methods and functions are the sections, and the names
that they mention are the links. A fraction of the docstrings can be held out as an evaluation set, known-item search:
from the first sentence of a function's docstring to the rest of it.
"""

import ast
import collections
import dataclasses
import functools
import hashlib
import importlib.metadata
import inspect
import os
import re
import sysconfig
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from retrieval.data import sentences
from retrieval.data.articles import Article, Dropped, KnownItem, Link, Paragraph, Redirect, Section
from retrieval.data.beir import Candidate, RetrievalSet
from retrieval.errors import UserError

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
    "np.": "numpy.",
    "jnp.": "jax.numpy.",
    "tf.keras.": "keras.",
    "tf.": "tensorflow.",
    "tensorflow._api.v2.": "tensorflow.",
    "plt.": "matplotlib.pyplot.",
    "os.path.": "posixpath.",
}
_DEFINITION = re.compile(r"^(?:(?:async )?def|class) (\w+)|^(\w+)(?:: [^=\n]+)? = ", re.MULTILINE)
_IMPORT = re.compile(r"^from (\.*)([\w.]*) import (\([^)]*\)|.+)", re.MULTILINE)

# Docstring markup. Code, tables, comments and footnotes go, with the lines that belong to them.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_FENCED = re.compile(r"^ *(```|~~~).*(?:\n.*)*?(?:\n *\1 *$|\Z)", re.MULTILINE)
_DOCTEST = re.compile(r"^ *>>>.*(?:\n.*\S.*)*", re.MULTILINE)
_LITERAL = re.compile(r"^( *+)(.*):: *\n(?: *\n)+(?:\1 +\S.*\n| *\n)*", re.MULTILINE)
_DIRECTIVE = re.compile(r"^( *)\.\.(?: .*)?$(?:\n *$|\n\1 +\S.*)*", re.MULTILINE)
_RULE = re.compile(r"^ *+(?:[-=+|:~*#_ ]{3,}|\|.*)$", re.MULTILINE)
_ADMONITION = re.compile(
    r"^( *)\.\. (?:note|warning|important|tip|hint|caution|attention|danger|admonition|seealso|deprecated|versionadded"
    r"|versionchanged|rubric|topic):: *(?:v?[\d.]+\b)?",
    re.MULTILINE,
)
_UNDERLINED = re.compile(r"^( *)(\S.*)\n *([-=~^*#\"'+])\3{2,} *$", re.MULTILINE)
_HEADING = re.compile(
    r"^( *)(?:#{1,6} (\S.*)|((?:Keyword )?Arg(?:ument)?s|(?:Other |Input )?Parameters|Returns?|Yields?|Raises"
    r"|Attributes|Examples?|Usage|Notes?|References?|See [Aa]lso|Inputs?|Outputs?|Properties|Methods|Fields): *)$",
    re.MULTILINE,
)
_LISTS = re.compile(r"parameters|returns|yields|raises|warns|receives|attributes|see also|methods", re.IGNORECASE)
_BULLET = re.compile(r"^(?:[-*+•]|#\.|\d{1,2}[.)])\s+(?=\S)")
_FIELD = re.compile(r"[:@](\w+)([^:`]*):(?!`) *(.*)")
_ITEM = re.compile(r"^(\*{0,2}[`\w][\w.`, ]{0,60}?)(?: ?\([^()]*\))?: (?=\S)")
_URL = re.compile(r"\s?<?https?://[^\s<>`)\]]+>?")
_BRACKETS = re.compile(r"\[(`[^`]+`)\](?:\([^()]*\))?|\[([^\[\]]+)\]\([^()\s]*\)| ?\[[\w*]+\]_|%\([\w:]+\)s")
_EMPHASIS = re.compile(r"(?<![\w*`])(\*{1,2})(?=\S)([^*]+)(?<=\S)\1(?![\w*])")
_NAME = re.compile(
    r"(?P<role>:(?:[\w+-]+:){1,2})?(?P<ticks>`{1,2})(?P<code>[^`]+)(?P=ticks)_{0,2}(?:\\(?=\w))?"
    r"|(?<![\w.])[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|`+"
)
_BARE = re.compile(r"(?<![\w.`:~])[A-Za-z_][\w.]*(?![\w.`:])")
_TITLED = re.compile(r"(.*\S)\s+<([^<>]+)>")
_IDENTIFIER = re.compile(r"[~!.]*([A-Za-z_]\w*(?:\.\w+)*)(?:\(.*\))?")
_WORD = re.compile(r"[a-z][a-z'-]*")
_SYMBOL = re.compile(r"[=<>{}\[\]|\\_/*+^~#@;$%&]")
_COMMON = frozenset(
    "a an and are as at be but by can do does each for from has have if in into is it its may must no not of on only "
    "or see should such than that the their then there these they this to used using was we when where whether which "
    "will with you your".split()
)
_BOILERPLATE = re.compile(
    r"copyright|licen[cs]ed? under|all rights reserved|(?:auto|machine )generated|^Public API for tf\."
    r"|not intended for importation by downstream",
    re.IGNORECASE,
)


@dataclasses.dataclass(frozen=True)
class Page:
    """A module; its package is in the folder `root`, and `size` is in bytes."""

    id: str
    title: str
    root: str
    path: str
    size: int


def read_pages(lock: Path) -> Iterator[Page | Dropped]:
    """Every module of the standard library and of the distributions pinned in `lock`, in the order of their names.

    Tests, vendored packages and copies are left out; so is a distribution that is not installed in its pinned version.

    Raises:
      UserError: there is no such file, or no line `name==version` in it.
    """
    standard = Path(_STANDARD_LIBRARY)
    files = [(standard, path.relative_to(standard)) for path in sorted(standard.rglob("*.py"))]
    for name, version in _pins(lock):
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            distribution = None
        if distribution is None or distribution.version != version:
            yield Dropped(name, "distribution not installed in its pinned version")
        else:
            root = Path(distribution.locate_file("")).resolve()
            files += [(root, Path(file)) for file in distribution.files or () if file.suffix == ".py"]
    pages: dict[str, Page] = {}
    for root, file in files:
        title, path = _title(".".join(file.with_suffix("").parts)), root / file
        if title and title not in pages and path.is_file():
            pages[title] = Page(title, title, str(root), str(path), path.stat().st_size)
    yield from (pages[title] for title in sorted(pages))


def parse(page: Page, held_out: float = 0.0) -> list[Article | Redirect | KnownItem | Dropped]:
    """The article of a module, redirects from the names that it defines or exports, and its held-out functions.

    Whether a function is held out depends on a hash of the first sentence of its docstring, not on its name: so copies
    are held out together, and a paragraph that begins with such a sentence in another docstring is left out as well.
    `held_out` is the fraction of all sentences.
    """
    if page.size > _MAX_BYTES:
        return [Dropped(page.title, "too large")]
    try:
        source = Path(page.path).read_bytes()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
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

    A query is the first sentence of a docstring, its one right candidate the rest of it, without a title: every other
    query repeats all words of the name. Of functions with the same docstring one is kept; where only the query or only
    the body is the same, or the body repeats the query, none.
    """
    named = {item.name: item for item in results if isinstance(item, KnownItem)}
    items = {(_key(item.query), _key(item.body)): item for item in named.values()}
    queries, bodies = (collections.Counter(pair[i] for pair in items) for i in (0, 1))
    kept = [item for (q, body), item in items.items() if queries[q] == bodies[body] == 1 and q not in body]
    kept.sort(key=lambda item: item.name)
    return RetrievalSet(
        "pydocs",
        {item.name: item.query for item in kept},
        [Candidate(item.name, "", item.body) for item in kept],
        {"test": {item.name: {item.name: 1} for item in kept}},
    )


def _pins(lock: Path) -> list[tuple[str, str]]:
    try:
        lines = Path(lock).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{lock}: cannot be read ({error}); give a lock file with a line name==version each") from error
    pins = [match.groups() for match in map(_PIN.match, lines) if match]
    if not pins:
        raise UserError(f"{lock}: no line of the form name==version; write one with `pip freeze`")
    return pins


def _title(module: str) -> str | None:
    """The dotted name of a module's page, or None if there is none."""
    module = module.removesuffix(".__init__")
    if _LEFT_OUT.search(module) or not all(part.isidentifier() for part in module.split(".")):
        return None
    return _unalias(module)


def _unalias(name: str) -> str:
    for alias, meaning in _ALIASES.items():
        if name.startswith(alias):
            return meaning + name.removeprefix(alias)
    return name


def _sections(page: Page, tree: ast.Module, held_out: float) -> tuple[list[Section], list[KnownItem]]:
    """The lead and the sections. A module without a docstring has that of its first class or function as the lead."""
    sections, items, seen = [Section("", 1, ())], [], set()
    for name, node in [("", tree), *_definitions(tree.body)]:
        docstring = ast.get_docstring(node, clean=False)
        paragraphs = list(_paragraphs(docstring, functools.partial(_resolve, page))) if docstring else []
        item = _known_item(f"{page.title}.{name}", paragraphs)
        if item and _is_held_out(item, held_out):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            is_whole = is_function and len(item.body.split()) >= _MIN_BODY_WORDS
            paragraphs = [] if is_whole else paragraphs[1:]
            items += [item] if is_whole and not re.search(r"(?:^|\.)_", name) else []
        fresh = tuple({p.text: p for p in paragraphs if p.text not in seen}.values())
        seen.update(p.text for p in fresh)
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
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from _definitions(node.body, f"{prefix}{node.name}.")


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


# Docstring to paragraphs.


def _paragraphs(docstring: str, resolve: Callable[[str, bool], str | None]) -> Iterator[Paragraph]:
    """The prose of a docstring: a paragraph for each paragraph, list item and parameter."""
    for raw in _chunks(_without_code(inspect.cleandoc(_UNPRINTABLE.sub(" ", docstring)) + "\n")):
        paragraph = _plain(raw, resolve)
        if _is_prose(paragraph.text):
            yield paragraph


def _without_code(text: str) -> str:
    """Drops code, tables and comments; a heading becomes a line that starts with \\1 (underlined) or \\2."""
    text = _ADMONITION.sub(r"\1", text)
    text = _DOCTEST.sub("", _FENCED.sub("", text))
    text = _LITERAL.sub(r"\1\2:\n\n", text)
    text = _DIRECTIVE.sub("", text)
    text = _UNDERLINED.sub("\n\\1\1\\2\n", text)
    text = _HEADING.sub("\n\\1\2\\2\\3\n", text)
    return _RULE.sub("", text)


def _chunks(text: str) -> Iterator[str]:
    """Joins the lines of each paragraph, list item or parameter, still with inline markup."""
    heading, chunk = "", []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        if chunk and (not stripped or stripped[0] in "\1\2" or _begins(line, chunk[0], heading)):
            yield _join(chunk, heading)
            chunk = []
        if stripped[:1] in ("\1", "\2"):
            heading = line
        elif stripped and "reference" not in heading.lower():
            chunk.append(line)


def _begins(line: str, first: str, heading: str) -> bool:
    """Whether a line begins an item of its own, after the lines of a chunk that began with the line `first`."""
    if _is_list(heading) and _depth(line) <= _depth(heading):
        return True
    if _BULLET.match(line.strip()) or _FIELD.match(line.strip()):
        return True
    deeper, is_item = _depth(line) - _depth(first), bool(_ITEM.match(line.strip()))
    if _BULLET.match(first.strip()) or _ITEM.match(first.strip()):
        return deeper < 0 or (deeper == 0 and is_item)
    return deeper > 0 and is_item


def _is_list(heading: str) -> bool:
    """Whether the lines below a heading that are not indented further are names, as NumPy writes them."""
    return heading.lstrip().startswith("\1") and bool(_LISTS.search(heading))


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: list[str], heading: str) -> str:
    """The text of a chunk. Of parameters the names and descriptions stay, the types go: 'axis: The axis of the sum'."""
    first, *rest = [line.strip() for line in lines]
    first = _BULLET.sub("", first)
    is_name = _is_list(heading) and _depth(lines[0]) <= _depth(heading)
    field = _FIELD.match(first)
    if "see also" in heading.lower():
        names, colon, description = first.partition(" : ")
        if colon or is_name:
            names = _BARE.sub(r":obj:`\g<0>`", names)
        return " ".join([f"See also {names}{':' if colon else '.'}", description, *rest])
    if is_name:
        return " ".join([re.split(r" ?: ", first)[0] + ":", *rest]) if rest else ""
    if field:
        kind, name, text = field.groups()
        if kind.startswith(("param", "arg", "key", "rais", "exc", "attr", "ivar", "cvar", "var")) and name.strip():
            return " ".join([f"{name.split()[-1]}: {text}", *rest])
        return " ".join([text, *rest]) if kind.startswith(("return", "yield")) else ""
    return " ".join([_ITEM.sub(r"\1: ", first), *rest])


def _plain(raw: str, resolve: Callable[[str, bool], str | None]) -> Paragraph:
    """Takes the inline markup out of a line of text, and makes links of the names that `resolve` knows."""
    raw = _EMPHASIS.sub(r"\2", _BRACKETS.sub(r"\1\2", _URL.sub("", raw)))
    raw = " ".join(raw.split())
    parts, links, length, end = [], [], 0, 0
    for match in _NAME.finditer(raw):
        before, (shown, target) = raw[end : match.start()], _named(match, resolve)
        start, end = length + len(before), match.end()
        length = start + len(shown)
        parts += [before, shown]
        if target and shown:
            links.append(Link(target, start, length))
    text = "".join([*parts, raw[end:]])
    if text[-1:].isalnum() or text[-1:] in ")'\"":
        text += "."
    return Paragraph(text, tuple(links))


def _named(match: re.Match[str], resolve: Callable[[str, bool], str | None]) -> tuple[str, str | None]:
    """What a name in a docstring is shown as, and the title it stands for."""
    if match["code"] is None:
        name = match.group().strip("`")
        return name, resolve(name, False) if name else None
    shown = name = match["code"].strip()
    if titled := _TITLED.fullmatch(name):
        shown, name = titled.groups()
    identifier = _IDENTIFIER.fullmatch(name)
    if not identifier:
        return shown, None
    if shown.startswith("~"):
        shown = shown.rpartition(".")[2].lstrip("~")
    # `axis` is a parameter more often than a function: a short name must look like a class or a call, or have a role.
    is_clear = match["role"] or "." in identifier[1] or name.endswith(")") or re.match(r"[A-Z]\w*[a-z]", identifier[1])
    return shown.lstrip("!."), resolve(identifier[1], bool(match["role"])) if is_clear else None


def _is_prose(text: str) -> bool:
    words = _WORD.findall(text.lower())
    return (
        len(words) >= 4
        and sum(word in _COMMON for word in words) * 10 >= len(words)
        and len(_SYMBOL.findall(text)) * 16 <= len(text)
        and not _BOILERPLATE.search(text)
    )


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
    """The title that `name` stands for in the docstrings of `page`, or None; a page does not link to itself.

    A dotted name is looked up as it is, then in the module and its packages; a short name the other way round, and as
    a module only where the docstring says that it is one.
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
    parts = name.split(".")
    prefixes = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    module = next((prefix for prefix in prefixes if _locate(root, prefix)), None)
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
    for base in (root, _STANDARD_LIBRARY):
        path = f"{base}/{module.replace('.', '/')}"
        for file in (f"{path}/__init__.py", f"{path}.py"):
            if os.path.isfile(file):
                return file
    return None


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
                starred = _locate(root, origin)
                found = _exports(root, starred, origin, depth - 1) if starred and depth else {}
                own = f"{origin.partition('.')[0]}."
                names |= {name: f"{origin}.{name}" for name, target in found.items() if target.startswith(own)}
            elif words:
                names[words[-1]] = f"{origin}.{words[0]}"
    return names | {name: f"{module}.{name}" for name in map("".join, _DEFINITION.findall(source))}

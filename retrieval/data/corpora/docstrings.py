"""Docstrings, in whatever markup, to paragraphs of prose and the names that they mention."""

import inspect
import re
from collections.abc import Callable, Iterator

from retrieval.data.corpora.articles import Link, Paragraph

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
    r"(?P<role>:(?:[\w+-]+:){1,2})?(?P<ticks>`{1,2})(?P<code>[^`\s](?:[^`]*[^`\s])?)(?P=ticks)_{0,2}(?:\\(?=\w))?"
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


def paragraphs(docstring: str, resolve: Callable[[str, bool], str | None]) -> Iterator[Paragraph]:
    """The prose of a docstring: a paragraph for each paragraph, list item and parameter."""
    for raw in _chunks(_without_code(inspect.cleandoc(_UNPRINTABLE.sub(" ", docstring)) + "\n")):
        paragraph = _plain(raw, resolve)
        if _is_prose(paragraph.text):
            yield paragraph


def _without_code(text: str) -> str:
    """Drops code, tables, comments and addresses; a heading becomes a line that starts with \\1 (underlined) or \\2."""
    text = _ADMONITION.sub(r"\1", text)
    text = _DOCTEST.sub("", _FENCED.sub("", text))
    text = _LITERAL.sub(r"\1\2:\n\n", text)
    text = _DIRECTIVE.sub("", text)
    text = _UNDERLINED.sub("\n\\1\1\\2\n", text)
    text = _HEADING.sub("\n\\1\2\\2\\3\n", text)
    return _RULE.sub("", _URL.sub("", text))


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
    if _is_name(line, heading) or _BULLET.match(line.strip()) or _FIELD.match(line.strip()):
        return True
    deeper, is_item = _depth(line) - _depth(first), bool(_ITEM.match(line.strip()))
    in_item = _BULLET.match(first.strip()) or _ITEM.match(first.strip())
    return deeper < 0 or (deeper == 0 and is_item) if in_item else deeper > 0 and is_item


def _is_name(line: str, heading: str) -> bool:
    """Whether a line below a heading is a name, as those are in NumPy's lists that are not indented further."""
    is_list = heading.lstrip().startswith("\1") and bool(_LISTS.search(heading))
    return is_list and _depth(line) <= _depth(heading)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _join(lines: list[str], heading: str) -> str:
    """The text of a chunk. Of parameters the names and descriptions stay, the types go: 'axis: The axis of the sum'."""
    first, *rest = [line.strip() for line in lines]
    first = _BULLET.sub("", first)
    is_name = _is_name(lines[0], heading)
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
    raw = _EMPHASIS.sub(r"\2", _BRACKETS.sub(r"\1\2", raw))
    raw = " ".join(raw.split())
    text, links, end = "", [], 0
    for match in _NAME.finditer(raw):
        shown, target = _named(match, resolve)
        text += raw[end : match.start()] + shown
        end = match.end()
        links += [Link(target, len(text) - len(shown), len(text))] if target and shown else []
    text += raw[end:]
    is_open = text[-1:].isalnum() or text[-1:] in ")'\""
    return Paragraph(text + "." * is_open, tuple(links))


def _named(match: re.Match[str], resolve: Callable[[str, bool], str | None]) -> tuple[str, str | None]:
    """What a name in a docstring is shown as, and the title it stands for."""
    if match["code"] is None:
        name = match.group().strip("`")
        return name, resolve(name, False) if name else None
    shown = name = match["code"]
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
    has_sentences = len(words) >= 4 and sum(word in _COMMON for word in words) * 10 >= len(words)
    return has_sentences and len(_SYMBOL.findall(text)) * 16 <= len(text) and not _BOILERPLATE.search(text)

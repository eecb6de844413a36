"""Wikitext to marked text: plain text on which only lines, list marks, headings and marks for links are left.

As in MediaWiki, comments and tags go first; then mwparserfromhell finds templates, tables and links. The marks are
characters that no page can contain. They stand for links and for what was taken out. So the text can be tidied without
losing the place of a link.
"""

import itertools
import re
import urllib.parse

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, HTMLEntity, Node, Tag, Template, Text, Wikilink
from mwparserfromhell.parser import ParserError
from mwparserfromhell.wikicode import Wikicode

from retrieval.common.parsing import foreign_text
from retrieval.data.corpora import wikinames
from retrieval.data.corpora.wikipedia import Page, normalize_title

# A link is OPEN, its number, BAR, the anchor, CLOSE; HOLE is where markup was that shows nothing.
OPEN, BAR, CLOSE, HOLE = "\x02", "\x05", "\x03", "\x04"
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_TRAIL = re.compile(f"{CLOSE}([^\\W\\d_]+)")

# Limits that no sound page comes near. The parser cannot be interrupted, so its time must be known beforehand. It is
# linear in the text but for openers that nothing closes: it follows each to the end of the text. Below 40 levels it
# gives up.
_MOST_LEVELS = 30
_MOST_SECONDS = 4
# The most that each was seen to take: a token of the parser; a paragraph or sentence, until it is tokenised; a
# character and a token behind an unclosed opener.
_PER_TOKEN, _PER_BREAK, _PER_LOST_CHARACTER, _PER_LOST_TOKEN = 35e-6, 12e-6, 0.1e-6, 3e-6
_TOKENS = ("{{", "[[", "|", "!!", "\n!", "\n*", "\n#", "\n:", "\n;", "\n=", "\n----")
_TOKENS += ("**", "##", "::", ";;", ":", "//", "&")
_BREAKS = ("\n\n", ".", "?", "!", "…")
_CLOSERS = {"}}": "{{", "]]": "[[", "|}": "{|"}
_BRACKET = re.compile(r"\{\{|\}\}|\[\[|\]\]|^[ \t:]*\{\||^[ \t]*\|\}(?!\})", re.MULTILINE)
_LOST_ADDRESS = re.compile(r"\[(?:[a-z]+:|//)[^\[\]\n]*+(?!\])", re.IGNORECASE)

_TAG = re.compile(r"<!--|<(/?)([a-zA-Z][a-zA-Z0-9]*)\b([^<>]*)>")
# A comment that has lines of its own takes its last line break along.
_COMMENT = re.compile(r"(?:(?<=\n)|\A)<!(?=--).*?-->\n?|<!(?=--).*?(?:-->|\Z)", re.DOTALL)
_OF_TAGS = ((wikinames.INLINE_TAGS, ""), (["br"], " "), (wikinames.BLOCK_TAGS, "\n\n"), (wikinames.DROPPED_TAGS, HOLE))
_SHOWN = {name: shown for names, shown in _OF_TAGS for name in names}
# Headings are left to `_blocks`: a long line of '== == ==' overflows the C stack of the parser.
_LINE_OF_HEADING = re.compile("^(?==)", re.MULTILINE)
_LITERAL = {ord(c): f"&#{ord(c)};" for c in "<&[]{}|'=*#:;_!-"}

_NO_TITLE = re.compile(r"[\[\]{}|<>\x00-\x1f\ufffd]|\w+://")
_LONGEST_TITLE = 255  # bytes

_SWITCH = re.compile(r"__[^\W\d_a-z]+__")
_QUOTES = re.compile("''+")
_REST_OF_TABLE = re.compile(r"^[ \t:]*(?:\{\||\||!).*", re.MULTILINE)
_REST_OF_BRACKET = re.compile(r"\{\{+|\}\}+|\[\[+|\]\]+|\{\||\|\}")
ITEM = re.compile(r"[*#:;]+")

# What is left around a hole: the inside of a parenthesis, or a space or comma before other punctuation.
_AROUND = f"[ ,;:–，、；：{HOLE}]{{0,8}}"
_EMPTY_PARENTHESES = re.compile(f"[(（]{_AROUND}{HOLE}{_AROUND}[)）]")
_AFTER_PARENTHESIS = re.compile(f"(?<=[(（]){_AROUND}{HOLE}{_AROUND}")
_BEFORE_PARENTHESIS = re.compile(f"{_AROUND}{HOLE}{_AROUND}(?=[)）])")
_AT_START = re.compile(f"^[ ,;:.{HOLE}]{{0,8}}{HOLE}[ ,;:.{HOLE}]{{0,8}}")
_BEFORE_POINT = re.compile(f"[ ,;:]{{0,3}}{HOLE}[ {HOLE}]{{0,8}}(?=[.,;:!?])")
# What was apart must not become a bracket of two.
_BETWEEN_BRACKETS = re.compile(f"(?<=[\\[\\]{{}}'])({HOLE}+)(?=[\\[\\]{{}}'])")


class TooHardError(Exception):
    """The parser must not see this page; the message is the reason, 'too deep' or 'too complex'."""


def render(page: Page) -> tuple[str, list[str]]:
    """The marked text of a page, and the titles that its links point to, by number."""
    text = _without_tags(_CONTROL.sub("", page.text))
    _refuse_hard(text)
    try:
        code = mwparserfromhell.parse(text, skip_style_tags=True)
    except (ParserError, RecursionError) as error:
        raise TooHardError("too complex") from error
    renderer = _Renderer(page)
    return _tidy(renderer.render(code)), renderer.targets


def one_line(marked: str) -> str:
    """White space becomes single spaces, and holes go along with the punctuation that they leave without a sense."""
    marked = " ".join(marked.split())
    if HOLE not in marked:
        return marked
    marked = _EMPTY_PARENTHESES.sub(HOLE, marked)
    for useless in (_AFTER_PARENTHESIS, _BEFORE_PARENTHESIS, _AT_START, _BEFORE_POINT):
        marked = useless.sub("", marked)
    return " ".join(_BETWEEN_BRACKETS.sub(" ", marked).replace(HOLE, "").split())


def _without_tags(text: str) -> str:
    """Takes out comments, tags, and the content of tags that hold no running text; any other '<' becomes an entity."""
    pieces, position, unclosed = [], 0, set()
    while match := _TAG.search(text, position):
        pieces.append(text[position : match.start()].replace("<", "&lt;"))
        position = match.end()
        if comment := _COMMENT.match(text, match.start()):
            position = comment.end()
            continue
        name, content = match[2].lower(), ""
        has_content = not match[1] and not match[3].endswith("/") and name not in unclosed
        if has_content and (name in wikinames.DROPPED_TAGS or name == "nowiki"):
            if end := re.compile(f"</{name}\\s*>", re.IGNORECASE).search(text, position):
                content, position = text[position : end.start()], end.end()
            else:
                unclosed.add(name)
        shown = foreign_text.unescape(content).translate(_LITERAL) or HOLE if name == "nowiki" else _SHOWN.get(name)
        pieces.append(match[0].replace("<", "&lt;") if shown is None else shown)
    pieces.append(text[position:].replace("<", "&lt;"))
    return _LINE_OF_HEADING.sub(HOLE, "".join(pieces))


def _refuse_hard(text: str) -> None:
    tokens, breaks = (sum(map(text.count, marks)) for marks in (_TOKENS, _BREAKS))
    open_brackets: list[str] = []
    lost = sum(1 for _ in _LOST_ADDRESS.finditer(text))
    for match in _BRACKET.finditer(text):
        bracket = match[0].strip(" \t:")
        opener = _CLOSERS.get(bracket)
        if opener is None:
            open_brackets.append(bracket)
            if len(open_brackets) > _MOST_LEVELS:
                raise TooHardError("too deep")
        elif opener in open_brackets:
            while open_brackets.pop() != opener:
                lost += 1
    lost += len(open_brackets)
    seconds = _PER_TOKEN * tokens + _PER_BREAK * breaks
    if seconds + lost * (_PER_LOST_CHARACTER * len(text) + _PER_LOST_TOKEN * tokens) > _MOST_SECONDS:
        raise TooHardError("too complex")


class _Renderer:
    """Turns a parsed page into marked text.

    Attributes:
      targets: the titles that its links point to, by number.
    """

    def __init__(self, page: Page):
        self.targets: list[str] = []
        self._page = page
        self._hidden = page.site.hidden | wikinames.HIDDEN_NAMESPACES
        self._language = page.site.address.partition("//")[2].partition(".")[0]

    def render(self, code: Wikicode) -> str:
        return "".join(map(self._node, code.nodes))

    def _node(self, node: Node) -> str:
        match node:
            case Text():
                return node.value
            case Wikilink():
                return self._link(node)
            case HTMLEntity():
                return str(node)
            case ExternalLink() if node.title is not None:
                return self.render(node.title)
            case ExternalLink() if not node.brackets:
                return self.render(node.url)
            case Tag():  # without HTML tags and quotes there are only tables, rules and the marks of list items
                return str(node.wiki_markup) if ITEM.fullmatch(str(node.wiki_markup)) else f"\n{HOLE}\n"
            case Template():
                return self._template(node)
        return HOLE

    def _template(self, node: Template) -> str:
        """What a template shows; a hole where that is nothing."""
        name = " ".join(str(node.name).replace("_", " ").split()).lower()
        values = {str(p.name).strip(): self.render(p.value).strip() for p in node.params}
        shown = wikinames.formatted_number(name, values, self._language) or wikinames.shown_by_template(name, values)
        return shown if shown == " " or shown.strip(f" {HOLE}") else HOLE

    def _link(self, node: Wikilink) -> str:
        name = " ".join(foreign_text.unescape(str(node.title)).replace("_", " ").split())
        prefix, colon, _ = name.partition(":")
        is_elsewhere = node.text is None and wikinames.LANGUAGE_LINK.fullmatch(name)
        if is_elsewhere or (colon and prefix.strip().lower() in self._hidden) or wikinames.FILE.match(name):
            return HOLE
        name = name.lstrip(": ")
        label = name if node.text is None else one_line(self.render(node.text).replace("|", " "))
        target = normalize_title(urllib.parse.unquote(name.partition("#")[0]), self._page.site)
        is_none = target in ("", self._page.title) or len(target.encode()) > _LONGEST_TITLE or _NO_TITLE.search(target)
        if is_none or not label or OPEN in label:
            return label
        self.targets.append(target)
        return f"{OPEN}{len(self.targets) - 1}{BAR}{label}{CLOSE}"


def _tidy(marked: str) -> str:
    """Joins the tails of words to links ('[[bus]]es') and removes the markup that the parser does not treat."""
    marked = _SWITCH.sub(HOLE, _TRAIL.sub(_trail, marked))
    if any(mark in marked for mark in ("{{", "}}", "{|", "|}")):
        marked = _REST_OF_TABLE.sub(HOLE, marked)
    marked = _QUOTES.sub(lambda quotes: "'" if len(quotes[0]) == 4 else "", marked)  # four: an apostrophe and bold
    return _REST_OF_BRACKET.sub(HOLE, marked)


def _trail(match: re.Match[str]) -> str:
    small = "".join(itertools.takewhile(str.islower, match[1]))
    return small + CLOSE + match[1].removeprefix(small)

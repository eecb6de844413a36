"""Wikitext that is meant to do harm, and wikitext that is generated at random."""

import random

from retrieval.data.corpora import wikimarkup

# What nasty pages are made of: each is repeated until the page is full.
# fmt: off
PIECES = [
    "{{", "}}", "{{{", "{{a|", "{{a|b=", "{{a|b=c|", "{{a}}", "{{a\n|b=c\n}}", "{{{a|b}}}", "{{convert|1|km}}",
    "{{=}}", "{{lang|fr|", "{{quote|a}}\n", "{{ ", "{{\n", "{{disambig", "[[", "]]", "[[a|", "[[a|b", "[[a]]",
    "[[a]]. B ", "[[ |", "[[File:a|", "[[File:a.jpg|b]]", "[[:a]]", "[[a|\n]]", "[[a#", "[[a|b]]s", "[", "]",
    "[http://a ", "[http://a b] ", "[//a b]", "http://a ", "//", "mailto:a ", "[mailto:a", "{|", "{|\n", "|}",
    "{|\n|a\n|}\n", "\n|-", "\n|a||b", "\n!a!!b", "<ref>", "</ref>", "<ref/>", "<ref>a</ref>", "<ref", "<b>", "<",
    ">", "</", "<br>", "<!--", "-->", "<!-- a -->", "<nowiki>", "<nowiki>{</nowiki>", "<math>", "<table>", "<td>a",
    "<div>", "<a b='", "(<ref/>", "(<ref/>)", " , <ref/>", "== ", "==", "=", "\n==a==", "\n=", "======\n", "''", "'",
    "'''''", "''a''", "'''a", "*", "\n*", "\n* a", "\n#", "\n;a:b", ":", "\n:::a", "----\n", "-", "\n", "\n\n",
    "a\n\n", " ", "\t", "a", "a ", "A. ", "Aa. B", "a? 1", ".", "...", "! ", "(", ")", "&", "&amp;", "&#", "&#1",
    "&#1;", "&#x", "&#xd800;", "&lt;", "&nbsp;", "&a", "&amp;lt;", "__A__", "__", "~~~~", "|", "%", "%ff", "\x00",
    "\x01", "\x02", "\x05", "\x7f", "\x85", "\ud800", "\udfff\ud800", "\ufeff", "\ufffe", "\u200b", "\u200f",
    "\u202e", "\u2028", "\u0300", "\u0315\u0300", "𝒜", "👩‍👩‍👧", "ﷺ", "ẞ", "ǅ", "़", "가", "#redirect ", "#redirect [[",
    "#",
]
# fmt: on
# Several kinds of trouble in one page.
# fmt: off
PIECES += [
    "\n{|\n|[[a|{{b|", "[[a|{{b|c}}]] ", "{{a|[[b|}}", "{|\n|{{a", "<ref>{{a|[[b", "[http://a {{b|[[c",
    "''[[a|{{b}}]]''. C ", "\n# {{a|b}} [[c]]", "(&nbsp;<ref/>[[a", "{{a|<nowiki>}}</nowiki>", "\n;[[a]]:{{b}}",
    "{{a|{|\n|}", "[[a|[http://b c]]] ",
]
# fmt: on


def full(piece: str, size: int) -> str:
    return "A page. " + piece * (size // len(piece.encode("utf-8", "surrogatepass")))


def nasty_pages(size: int) -> dict[str, str]:
    """At least 100 pages that take a careless program hours, or end it, by name."""
    pages = {repr(piece): full(piece, size) for piece in PIECES}
    for piece in ("\n#", "\n----\n", "[[a]]. A ", "{|\n|a\n|}\n", "Aa. ", "[//a b]", "{{convert|1|km}}"):
        pages[f"just bearable {piece!r}"] = bearable(piece, size)
    for opener, closer in {"{{a|": "}}", "[[a|": "]]", "\n{|\n|": "\n|}\n", "<div>": "</div>", "{{{": "}}}"}.items():
        for depth in (10, 29, 200, 20_000):
            pages[f"{depth} deep {opener!r}"] = f"A page. {opener * depth} x {closer * depth}"[:size]
    for opener in ("{|\n", "[http://a ", "{{a|", "[[a|"):
        pages[f"unclosed {opener!r} before many tokens"] = opener * 20 + "\n# a [[b]]" * (size // 20)
    pages |= {
        "an endless number": "A page &#" + "1" * (size // 2) + "; and &#x" + "f" * (size // 4) + ";",
        "an endless number in nowiki": "A <nowiki>&#" + "1" * 9999 + ";</nowiki> page.",
        "an endless number in a link": "A [[b&#" + "1" * 9999 + ";|page]].",
        "accents in a link": "[[" + "\u0315\u0300" * (size // 4) + "|page]]",
        "an endless link": "[[" + "a" * (size // 2) + "|" + "b" * (size // 2) + "]]",
        "an endless redirect": "#redirect" + " " * size,
        "an endless template name": "{{" + " " * size,
        "an endless sentence": ("Word " * (size // 5))[:-1] + ".",
        "random characters": "".join(random.Random(0).choices([chr(i) for i in range(0x3000)], k=size // 3)),
    }
    return pages


def bearable(piece: str, size: int) -> str:
    """As many of a piece as are not too complex."""
    few, many = 0, size // len(piece)
    while many - few > 1:
        middle = (few + many) // 2
        try:
            wikimarkup._refuse_hard(piece * middle)
            few = middle
        except wikimarkup.TooHardError:
            many = middle
    return piece * few


def generated(rng: random.Random) -> str:
    """Wikitext as editors write it, nested at random, and often damaged."""
    text = "".join(markup(rng, 0) for _ in range(rng.choice([1, 1, 2, 5])))
    for _ in range(rng.choice([0, 0, 1, 2, 5])):
        i, j = sorted(rng.choices(range(len(text) + 1), k=2))
        text = rng.choice(
            [text[:i], text[:i] + text[j:], text[:i] + rng.choice(PIECES) + text[i:], text[:j] + text[i:]]
        )
    return text[:1000]


def markup(rng: random.Random, depth: int) -> str:
    if depth > 4 or rng.random() < 0.4:
        return rng.choice(WORDS)
    a, b, c = (markup(rng, depth + 1) for _ in range(3))
    return rng.choice(FORMS).format(a=a, b=b, c=c)


# fmt: off
WORDS = [
    "A word. ", "Is it? ", "слово ", "ὥρα ", "字。", "שלום ", "\u200fعربي ", "1,000.5 ", "e\u0301 ", "''i'' ",
    "&ndash;", "\n\n", "\n",
]
# fmt: on
# fmt: off
FORMS = [
    "{{{{{a}|{b}|c={c}}}}}", "{{{{lang|fr|{a}}}}} {b}{c}", "{{{{convert|5|km}}}} {a}{b}{c}",
    "{{{{{{{a}|{b}}}}}}} {c}", "[[{a}|{b}]]{c}", "[[{a}]]s {b}{c}", "[[File:{a}.jpg|thumb|{b}]]{c}",
    "[[Category:{a}]]{b}{c}", "[http://{a} {b}] {c}", "\n== {a} ==\n{b}\n{c}", "\n=== {a}\n{b}{c}",
    "\n* {a}\n** {b}\n# {c}\n", "\n; {a} : {b}\n: {c}\n", "\n----\n{a}{b}{c}",
    "\n{{|\n|-\n! {a}\n| {b} || {c}\n|}}\n", "\n{{|\n| {a}\n{b}{c}", "<ref name='{a}'>{b}</ref>{c}",
    "<!-- {a} -->{b}{c}", "<nowiki>{a}</nowiki>{b}{c}", "<div {a}>{b}</div>{c}", "<math>{a}</math>{b} {c}",
    "({a}; {b}) {c}", "{a} {b} {c}", "{a}, {b}. {c}",
]
# fmt: on

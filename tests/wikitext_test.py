"""Wikitext to articles: what a reader of MediaWiki's page would see, by hand; then real dumps and hostile pages."""

import re

import pytest
from support.wiki_markup import SITE, check

from retrieval.data.corpora.articles import Article, Dropped
from retrieval.data.corpora.wikipedia import Page, Site, read_pages
from retrieval.data.corpora.wikitext import parse


def parsed(text: str, title: str = "This page", site: Site = SITE) -> Article | Dropped:
    (result,) = parse(Page("7", title, text, site))
    return result


def plain(text: str) -> str:
    """The only paragraph of `text`, after a word that keeps the page from being empty."""
    article = parsed(f"Start.\n\n{text}")
    assert isinstance(article, Article)
    return "\n".join(p.text for s in article.sections for p in s.paragraphs[s.level == 1 :])


def linked(text: str, site: Site = SITE) -> tuple[str, list[tuple[str, str]]]:
    """The first paragraph and its (anchor, target) pairs."""
    article = parsed(text, site=site)
    paragraph = article.sections[0].paragraphs[0]
    return paragraph.text, [(paragraph.text[link.start : link.end], link.target) for link in paragraph.links]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Paragraphs and lists.
        ("one\ntwo\n\nthree", "one two\nthree"),
        ("a\n* b\n** c\n#d\n:e\n;f\ng", "a\nb\nc\nd\ne\nf\ng"),
        ("a\n----\nb", "a\nb"),
        ("a  b\t c&nbsp;d\u00a0e&#32;f", "a b c d e f"),
        # Quotes, entities, switches.
        ("'''A''' ''b'' '''''c''''' isn't l''''A'''", "A b c isn't l'A"),
        ("1 &lt; 2 &amp;&amp; R&D &eacute;&#233;&#xe9; &unknown;", "1 < 2 && R&D ééé &unknown;"),
        ("__TOC__a __NOINDEX__ b __БЕЗСЪДЪРЖАНИЕ__ __init__", "a b __init__"),
        # Templates.
        ("A {{cn}} b{{x|y={{z}}|[[w]]}}.", "A b."),
        ("{{Infobox\n| a = {{b\n| c }}\n| d = [[e]]\n}}\nText", "Text"),
        ("{{a", "a"),
        ("It is {{convert|5|to|10|km|mi|abbr=on}} long", "It is 5 to 10 km long"),
        ("{{Lang|fr|bon ''[[jour]]''}} {{nowrap|1 = 1}} H{{chem|2}}O, {{HLIST|a|b}}", "bon jour 1 H2O, a, b"),
        ("{{frac|1|2}} b", "1/2 b"),
        ("a{{ndash}}b{{mdash}}c {{transl|ar|d|e}} say {{IPA|/f/}} ({{lang-de|g}}; h)", "a–b—c e say (h)"),
        ("a\n{{quote|b}}\nc", "a\nb\nc"),
        ("{{lang|fr}}x {{convert}} {{nowrap|{{x}}}} y", "x y"),
        # What is left around something that went.
        ("'''Rome''' ({{IPA|x}}; {{lang-it|Roma}}) is", "Rome is"),
        ("Rome ({{IPA|x}}; born 1950) is", "Rome (born 1950) is"),
        ("Rome (753 BC, {{IPA|x}}) is", "Rome (753 BC) is"),
        ("Rome {{x}}, as {{y}} ; z", "Rome, as; z"),
        ("{{x}}, then", "then"),
        # Tables.
        ("a\n{| class=x\n|-\n! h\n| [[b]] || c\n{|\n| d\n|}\n|}\ne", "a\ne"),
        ("a\n\n{|\n| lost\n|-\n| [[b]]\n\nc", "a\nc"),
        ("<table><tr><td>x</td></tr></table>y", "y"),
        # Tags.
        ("H<sub>2</sub>O <i>x</i><br />y <span style='a'>z</span> <code>f(x)</code>", "H2O x y z f(x)"),
        ("a<ref>b</ref> c<ref name=x/> d<REF name='y'>{{e}}[[f]]</REF>.", "a c d."),
        ("a <math>x<y</math>, <gallery>\nFile:x.jpg|y\n</gallery>b", "a, b"),
        ("a<syntaxhighlight lang='c'>int {{x}};</syntaxhighlight><timeline>b</timeline>", "a"),
        ("a<div>b</div><p>c</p><blockquote>d</blockquote>", "a\nb\nc\nd"),
        ("a < b > c <3 <unknown x='1'>d</unknown>", "a < b > c <3 <unknown x='1'>d</unknown>"),
        ("a<!-- [[b]] -->c\n<!-- own line -->\nd <!-- cut", "ac d"),
        ("<nowiki>[[a]] {{b}} ''c'' <ref> &amp;</nowiki>", "[[a]] {{b}} ''c'' <ref> &"),
        ("水。[[分类:水]][[分類:水|*]][[カテゴリ:水]][[文件:水.svg|缩略图|水]]", "水。"),
        # External links.
        ("[http://x.org the label] [https://x.org] [//x.org y] [z]", "the label y [z]"),
        ("see http://x.org/a?b=c now", "see http://x.org/a?b=c now"),
    ],
)
def test_text_is_what_a_reader_sees(text, expected):
    assert plain(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[[foo]] x", ("foo x", [("foo", "Foo")])),
        ("x [[foo bar_baz|''Anchor'' text]].", ("x Anchor text.", [("Anchor text", "Foo bar baz")])),
        ("[[Bus]]es, [[bus]]Stop", ("Buses, busStop", [("Buses", "Bus"), ("bus", "Bus")])),
        ("[[Ёж]]ики", ("Ёжики", [("Ёжики", "Ёж")])),
        ("[[bus]]<nowiki/>es '''[[x]]'''s", ("buses xs", [("bus", "Bus"), ("x", "X")])),
        ("[[:foo]] [[AT&amp;T]] [[A%26B|c]]", ("foo AT&T c", [("foo", "Foo"), ("AT&T", "AT&T"), ("c", "A&B")])),
        ("[[this page]] [[This_page|x]] [[y]]", ("this page x y", [("y", "Y")])),
        ("[[Star Wars: A]] [[CSI: B|c]]", ("Star Wars: A c", [("Star Wars: A", "Star Wars: A"), ("c", "CSI: B")])),
        ("''[[a]]'' [[b|{{x}}]] [[c|<ref>x</ref>]] [[d{{e}}|f]]", ("a f", [("a", "A")])),
        ("[[a|b [[c]] d]] e", ("b c d e", [("c", "C")])),
        ("&lt;[[a]]&gt; &nbsp; [[b| &nbsp;c&nbsp; ]] d", ("<a> c d", [("a", "A"), ("c", "B")])),
        # What belongs to other namespaces and wikis.
        ("[[File:x.jpg|thumb|a [[b]] c]] x [[image:y.png]]", ("x", [])),
        ("[[Файл:x.jpg|[[a]]]] [[Картинка:x.JPG|b]] [[Category:C]] x", ("x", [])),
        ("[[:File:x.jpg]] [[User:U|u]]", ("File:x.jpg u", [("File:x.jpg", "File:x.jpg"), ("u", "User:U")])),
        ("x [[fr:Foo]] [[zh-min-nan:Foo]] [[wikt:foo|bar]]", ("x bar", [("bar", "Wikt:foo")])),
    ],
)
def test_links_lie_where_their_anchors_are(text, expected):
    assert linked(text) == expected


@pytest.mark.parametrize(
    ("language", "shown"),
    [
        ("en", "1,234,567.5 −1,234 9999"),
        ("de", "1.234.567,5 −1.234 9999"),
        ("fr", "1 234 567,5 −1 234 9999"),
        ("es", "1.234.567,5 −1234 9999"),
        ("ja", "1,234,567.5 −1,234 9999"),
    ],
)
def test_numbers_are_written_as_in_the_language_of_the_wiki(language, shown):
    site = SITE._replace(address=f"https://{language}.wikipedia.org/wiki/")
    text = "{{formatnum:1234567.5}} {{ZAHLENFORMAT:-1234}} {{formatnum:9,999|R}} {{formatnum:{{x}}}}"
    assert linked(text, site)[0] == shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "lead\n== A [[b|'''B''']] &amp; {{x}} ==\na\n=== C<ref>x</ref>===\n* c\n==== D ====\n= E =\ne == e\n== x =",
            [("", 1, ["lead"]), ("A B &", 2, ["a"]), ("C", 3, ["c"]), ("E", 1, ["e == e"])],
        ),
        ("== A ==\na", [("", 1, []), ("A", 2, ["a"])]),  # the first section is the lead, even empty
        (
            "lead\n== See also ==\nx\n=== y ===\ny\n== History ==\nh\n=== Notes ===\nn\n=== War ===\nw\n"
            "== ВИЖТЕ СЪЩО ==\nв\n==External links==\n* [http://x y]",
            [("", 1, ["lead"]), ("History", 2, ["h"]), ("War", 3, ["w"])],
        ),
        ("Lead text.\n* [[A]]\n* [[B]], [[C]] –\n* [[D]] is\n* E", [("", 1, ["Lead text.", "D is", "E"])]),
        *(
            (f"Lead.\n== {heading} ==\nThe text of it.", [("", 1, ["Lead."])])
            for heading in ("参考文献", "外部链接", "Anmerkungen", "Liens externes", "Ссылки", "NOTES", "وصلات خارجية")
        ),
    ],
)
def test_sections_come_from_headings_and_those_of_links_are_left_out(text, expected):
    assert [(s.heading, s.level, [p.text for p in s.paragraphs]) for s in parsed(text).sections] == expected


@pytest.mark.parametrize(
    ("title", "text", "reason"),
    [
        ("X", "'''X''' may be:\n* [[A]]\n{{disambig}}", "disambiguation"),
        ("X", "{{пояснение}}", "disambiguation"),
        ("X (disambiguation)", "text", "disambiguation"),
        ("X", "'''X''' steht für:\n* [[A]], ein Ort\n{{Begriffsklärung}}", "disambiguation"),
        ("東京都の市町村一覧", "text", "list"),
        ("List of X", "text", "list"),
        ("X", "See:\n* [[One thing]]\n* [[Another thing]], [[and more]]", "list"),
        ("X", "", "no text"),
        ("X", "{{x}}\n[[Category:Y]]\n== A ==\n== References ==\nz", "no text"),
        ("X", "{{a|" * 1000 + "}}" * 1000, "too deep"),
        ("X", "[[a|" * 1000, "too deep"),
        ("X", "{|\n|\n" * 1000, "too deep"),
        ("X", "{{a|[[b|}}" * 20_000, "too complex"),
        ("X", "[[a]]" * 300_000, "too complex"),
    ],
)
def test_why_pages_are_dropped(title, text, reason):
    assert parsed(text, title) == Dropped(title, reason)


@pytest.mark.parametrize("text", ["Word{{disambiguation needed}} x", "{{значения|y}} x"])
def test_what_only_looks_like_a_disambiguation(text):
    assert isinstance(parsed(text), Article)
    assert isinstance(parsed(text, "Listing of x"), Article)


REAL = ["bgwiki-utf16-pages-articles.xml.bz2", "enwiki-10k.xml", "simplewiki.xml"]
REAL += ["enwiki-pages-articles-206pages.xml.bz2"]


def test_real_dumps_leave_no_markup(shared_data):
    pages = [p for name in REAL for p in read_pages(shared_data / "wikitext" / name) if isinstance(p, Page)]
    assert len(pages) == 181
    pages = pages[::3]
    results = [parse(page)[0] for page in pages]
    articles = [r for r in results if isinstance(r, Article)]
    assert len(articles) > 50
    for page, result in zip(pages, results):
        check(result, page.title, literal=False)
    texts = [p.text for a in articles for s in a.sections for p in s.paragraphs]
    assert not any(re.search(r"\bthumb\||File:|\(\s*[,;]", text) for text in texts)
    assert sum(len(p.links) for a in articles for s in a.sections for p in s.paragraphs) > 5_000

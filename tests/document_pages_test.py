"""What pages of HTML and Markdown say of themselves: their encoding, their title, and tags that people write about."""

import time

import pytest

from retrieval.data.corpora.articles import Dropped, Redirect
from retrieval.data.corpora.document_format import Document
from retrieval.data.corpora.documents import html_pages
from retrieval.data.corpora.documents.html_pages import HtmlPages
from retrieval.data.corpora.documents.markdown_pages import MarkdownPages

HTML, MARKDOWN = HtmlPages(), MarkdownPages()


def shown(form, text):
    outline = form.outline(text, "a")
    return outline.title, [f"{'#' * block.level} {block.text}".strip() for block in outline.blocks]


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        ("iso-8859-1", "cp1252", "It’s a “café”"),  # as browsers read it
        ("iso-8859-1", "utf-8", "café"),  # what it says is out of date
        ("utf-16", "ascii", "plain"),
        ("unicode", "utf-8", "café"),
        ("gb2312", "gbk", "朱镕基"),
        ("windows-1251", "cp1251", "Привет"),
        ("iso-2022-jp", "iso2022_jp", "日本"),
    ],
)
def test_a_page_is_read_as_browsers_read_it(charset, codec, text):
    page = f'<meta charset="{charset}"><p>'.encode() + text.encode(codec)
    assert HTML.decode(page).endswith(f"<p>{text}")
    assert (
        HTML.decode(b"<?xml version='1.0' encoding='%s'?><p>" % charset.encode() + text.encode(codec))[-1] == text[-1]
    )


@pytest.mark.parametrize("charset", ["", "utf-8", "undefined", "no-such"])
def test_a_page_of_no_known_encoding_is_refused(charset):
    with pytest.raises((UnicodeError, LookupError)):
        HTML.decode(f"<meta charset='{charset}'>".encode() + b"\xe9")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Use <select> here.\n\nMore.\n\n## End\n\nIt.", ("", ["Use <select> here.", "More.", "## End", "It."])),
        ("A List<Button> and a Foo<Select>.\n\nMore.", ("", ["A List<Button> and a Foo<Select>.", "More."])),
        ("Put it in <title>.\n\nMore.", ("", ["Put it in <title>.", "More."])),
        ("Add a <script> tag.\n\n# H", ("H", ["Add a <script> tag."])),
        ("A <nav>menu</nav> is hidden.", ("", ["A is hidden."])),
    ],
)
def test_a_tag_in_prose_hides_nothing(text, expected):
    assert shown(MARKDOWN, text) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<nav class=x><ul><li>menu</ul><p>The page.", ["menu", "The page."]),
        ("<p>a</p><script>var x = 1; // cut off", ["a"]),
        ("<p>a <select><option>1</select> b</p><footer>f<p>rest", ["a b", "f", "rest"]),
    ],
)
def test_what_is_never_closed_hides_nothing_but_programs(page, expected):
    assert shown(HTML, page) == ("", expected)


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<p>a <!-- b --> c <!-- d <i>e</i>", ["a c e"]),
        ("<!--><p>a<!---->b<!-- > --> c", ["ab c"]),
        ("<p>a <![if !IE]>b<![endif]> <![x]> <?php c ?> </ d>e", ["a b e"]),
        ("<p>a < b <3 c <d", ["a < b <3 c <d"]),
        ("<p>1 < 2<a b='>'>c</a b='>'> d", ["1 < 2c d"]),
        ("<p>a<script>if (a < b) '<p>';</scripts></script >b<br/>c", ["ab", "c"]),
        ("<p>it's <b title='it\"s'>b</b> <i class=\"a>b\" x=>c</i>", ["it's b c"]),
        ("<svg><title>x</title></svg><title>T</title><p>a", ["a"]),
        ("<p>a&#x41;&lt;b&gt;&" + "#" + "9" * 5000 + ";", ["aA<b>\ufffd"]),
    ],
)
def test_odd_markup_is_read_as_browsers_read_it(page, expected):
    assert shown(HTML, page)[1] == expected


def test_links_are_found_whatever_their_tags_hold():
    page = "<p><A title=\"no href='x'\" HREF = b.html/>b</A> <a href='c.html'/>c <a name=x/href=d.html>d</a>"
    (block,) = HTML.outline(page, "a.html").blocks
    assert [(block.text[link.start : link.end], link.target) for link in block.links] == [("b", "b.html")]


PIECES = [
    "<a ",
    "<a b='",
    "<a b=",
    "<!--",
    "<!",
    "</",
    "<div>",
    "<nav>",
    "<nav></b>",
    "<title>",
    "<script>",
    "<b>x",
    "&#",
]
PIECES += [
    "<main>",
    "<div role=main>",
    "<a href='#'>#",
    "<h1>S</h1><title> - S",
    "<meta name=",
    "<select><p>",
    "<h1>x<br>",
    "<a href=x>y",
    "<",
    "<script></script>",
    "</nav>",
]


@pytest.mark.parametrize("is_prose", [False, True])
def test_time_is_linear_in_what_is_nested_or_never_closed(is_prose):
    start = time.process_time()
    for piece in PIECES:
        html_pages.outline(piece * (60_000 // len(piece)), "a", is_prose)
    for fields in ("+++\n" + "\n" * 60_000 + "x", "+++\n" + "a." * 30_000 + "a=1", "---\n" + 'title: "\\' * 9000):
        HTML.outline(f"{fields}\n{fields[:3]}\n", "a")
    assert time.process_time() - start < 8


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\n---\n# T\n\nFirst.\n\n---\n\nSecond.\n", ("T", ["First.", "Second."])),
        ("---\n---", ("", [])),
        ("---\n\nIntro.\n\n---\n\nBody.\n", ("", ["Intro.", "Body."])),
        ("---\nIntro words.\n\n---\nBody.\n", ("", ["Intro words.", "Body."])),
        ("---\n# T\n\nIntro.\n\n---\n\nBody.\n", ("T", ["Intro.", "Body."])),
        ("---\n# of the site\n---\nBody.\n", ("", ["Body."])),
        ("---\n# of the site\n#\ntitle: T\n...\nBody.\n", ("T", ["Body."])),
        ("---\ntags:\n---\nBody.\n\n---\n\nMore.\n", ("", ["Body.", "More."])),
        ("---\ndate created: today\n\n'a': b\n---\nBody.\n", ("", ["Body."])),
    ],
)
def test_a_rule_at_the_top_is_no_front_matter(text, expected):
    assert shown(MARKDOWN, text) == expected


FIELDS = {
    "toml": 'title = "A pump" # now\ndate = 2024-05-01\n\n[extra]\nweight = 2',
    "toml with a comment": "# of the site\n\n[extra]\nx = 1",
    "a broken toml": "title = A pump\nx = 1",
    "json": '{"weight": 2, "Title": "A pump"}',
    "fields of json": '"title": "A pump", "tags": ["a", "b"]',
    "yaml": "'Title': A pump\ntags: [a]",
    "nothing": "",
}


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("+++|toml|+++|", "A pump"),
        ("\ufeff+++ |toml|+++", "A pump"),
        ("---toml|toml|---|", "A pump"),
        ("+++|toml with a comment|+++|", ""),
        ("+++|a broken toml|+++|", ""),
        ("+++||+++|", ""),
        (";;;|json|;;;|", "A pump"),
        (";;;|fields of json|;;;|", "A pump"),
        ("---json|json|---|", "A pump"),
        ("json||", "A pump"),
        ("---|yaml|---|", "A pump"),
        ("--- yaml|yaml|...|", "A pump"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("form", [MARKDOWN, HTML])
def test_fields_before_a_page_are_no_text_of_it(form, page, title, end):
    page = "".join(FIELDS.get(part, part) + "\n" for part in page.split("|")).replace("\n", end)
    assert shown(form, f"{page}{end}Hold it.") == (title, ["Hold it."])


@pytest.mark.parametrize(
    "page",
    [
        '+++|title = "A pump"||Hold it.',
        "+++|Words of a page.|+++||Hold it.",
        '{"title": "A pump"||Hold it.',
        '{"title": "A pump"} and more.||Hold it.',
        "{{ a }}||Hold it.",
        '[{"title": "A pump"}]||Hold it.',
        "++++|a = 1|++++||Hold it.",
        '+++|title = "A pump"|...||Hold it.',
        "{" * 5000 + "||Hold it.",
        '{"a":' * 5000 + "||Hold it.",
    ],
)
def test_what_only_begins_like_fields_is_a_text(page):
    title, blocks = shown(MARKDOWN, page.replace("|", "\n"))
    assert title == "" and len(blocks) == 2 and blocks[1] == "Hold it."


@pytest.mark.parametrize(
    ("value", "title"),
    [('"\\ud83d"', ""), ("[1]", ""), ("null", ""), ("2024", "2024"), ('"\\u00e9"', "é"), ('"a\\nb"', "a\nb")],
)
def test_a_title_in_json_is_a_text(value, title):
    assert shown(MARKDOWN, f'{{"title": {value}}}\n\nHold it.') == (title, ["Hold it."])


@pytest.mark.parametrize(
    ("form", "text", "expected"),
    [
        (MARKDOWN, "## How to reset\n\nHold it.", ("How to reset", ["Hold it."])),
        (MARKDOWN, "Words.\n\n## Later\n\nMore.", ("", ["Words.", "## Later", "More."])),
        (MARKDOWN, "---\ntitle: T\n---\n## Refunds\n\nTen days.", ("T", ["## Refunds", "Ten days."])),
        (MARKDOWN, "---\ntitle: T\n---\n# T\n\nTen days.", ("T", ["Ten days."])),
        (MARKDOWN, "---\ntitle: T\n---\n# Other\n\nTen days.", ("T", ["# Other", "Ten days."])),
        (MARKDOWN, '---\ntitle: "My: page" # note\n---\nx', ("My: page", ["x"])),
        (MARKDOWN, "---\ntitle: It's # note\n---\nx", ("It's", ["x"])),
        (MARKDOWN, "---\ntitle: 'It''s here' # note\n---\nx", ("It's here", ["x"])),
        (
            MARKDOWN,
            r'---|title: "say \"hi\" # now \u00e9" # note|---|x'.replace("|", "\n"),
            ('say "hi" # now é', ["x"]),
        ),
        (MARKDOWN, r'---|title: "\ud83d \x41"|---|x'.replace("|", "\n"), (r"\ud83d \x41", ["x"])),
        (MARKDOWN, "---\ntitle: null\n---\nx", ("", ["x"])),
        (MARKDOWN, "---\ntitle: ~ # later\n---\n# H\n\nx", ("H", ["x"])),
        (MARKDOWN, "---\ntitle: # later\n---\nx", ("", ["x"])),
        (MARKDOWN, "---\ntitle: >-\n  A long\n  title\nx: 1\n---\nx", ("A long title", ["x"])),
        (HTML, "<title>KB</title><h2>How</h2><p>Hold it.", ("KB", ["## How", "Hold it."])),
        (HTML, "<h1>Annual report<br>2019</h1><p>x", ("Annual report 2019", ["x"])),
        (HTML, "<title>KB</title><h2><div>Cost</div></h2><p>x", ("KB", ["## Cost", "x"])),
    ],
)
def test_titles_and_headings_are_those_of_the_page(form, text, expected):
    assert shown(form, text) == expected


MDBOOK = "<title>{}The Book</title><h2>Keys</h2><p>Press S to search.</p><h1>The Book</h1><main>{}</main>"
TEXT = "<p>Water flows from the well.</p>"


@pytest.mark.parametrize(
    ("page", "title", "blocks"),
    [
        (MDBOOK.format("Pumps - ", f"<h1 id=p><a href='#p'>The pump</a></h1>{TEXT}"), "The pump", 1),
        (MDBOOK.format("Pumps - ", TEXT), "Pumps", 1),
        (MDBOOK.format("Pumps - ", f"<h2>Pumps</h2>{TEXT}"), "Pumps", 1),
        (MDBOOK.format("", TEXT), "The Book", 1),
        (MDBOOK.format("Pumps - ", ""), "The Book", 2),  # what it says stands elsewhere
        (
            f"<title>T — Site</title><div role=main><div><h1>T<a href='#t'>¶</a></h1></div>{TEXT}</div>x",
            "T",
            1,
        ),
        (f"<h1>Site</h1><article><h1>T</h1>{TEXT}</article>", "T", 2),
        (f"<h1>News</h1><article><h1>A</h1>{TEXT}</article><article><h1>B</h1>{TEXT}</article>", "News", 4),
        (f"<title>Assert | Node v2</title><header><h1>Node v2</h1></header><h2>Assert</h2>{TEXT}", "Assert", 1),
        (f"<title>T - Site</title><h1>T</h1>{TEXT}", "T", 1),
        (f"<title>Index</title><h1>T</h1>{TEXT}<h2>Index</h2>{TEXT}", "Index", 4),
        (f"<title>T | Site</title><meta property=og:site_name content=Site>{TEXT}", "T", 1),
        (f"<title>Site: T</title><meta name=application-name content=site><h1>Site</h1>{TEXT}", "T", 2),
        (f"<title>T - in two parts</title>{TEXT}", "T - in two parts", 1),
        (f"<header><h1>T</h1></header><main>{TEXT}</main>", "T", 1),
        (f"<title>{'a - ' * 20_000}</title>{TEXT}", ("a - " * 20_000)[:-1], 1),
    ],
)
def test_a_title_is_the_page_s_and_not_the_site_s(page, title, blocks):
    outline = HTML.outline(page, "a.html")
    assert (outline.title, len(outline.blocks)) == (title, blocks)


def test_signs_that_link_to_a_heading_are_no_text_of_it():
    page = (
        "<h1>T<a href='#t'>\uf0c1</a></h1><h2><a href='#u'>§</a>U</h2><p>See <a href='#n'>[1]</a> <a href=b.html>#</a>"
    )
    assert shown(HTML, page) == ("T", ["## U", "See [1] #"])


REFRESH = "<meta http-equiv=refresh content='{}'>"
NO_INDEX, CANONICAL = "<meta name=robots content='noindex'>", "<link rel=canonical href='https://x.org/{}'>"
ITEMS = "".join(f"<li><a href={n}.html>Chapter {n}</a>" for n in range(8))


@pytest.mark.parametrize(
    ("id", "page", "reason", "target"),
    [
        (
            "g/a.html",
            REFRESH.format("0; URL=../b.html#c") + "Redirecting to <a href=../b.html>b</a>",
            "redirects to other pages",
            "b.html",
        ),
        ("a.html", f"<noscript>{REFRESH.format('0;b/c.html')}</noscript><p>x", "redirects to other pages", "b/c.html"),
        ("a.html", REFRESH.format("0; url=https://x.org/b") + "<p>x", "redirects to other pages", ""),
        ("a.html", REFRESH.format("5; url=b.html") + "<p>" + "word " * 80, "", ""),
        ("a.html", REFRESH.format("5") + "<p>x", "", ""),
        ("a.html", REFRESH.format("5; url=a.html") + "<p>x", "", ""),
        ("print.html", NO_INDEX + TEXT, "pages to print", ""),
        ("docs/_print/index.html", NO_INDEX + TEXT, "pages to print", ""),
        ("a.html?print=1.html", CANONICAL.format("a.html") + TEXT, "pages to print", ""),
        ("print.html", CANONICAL.format("docs/print/") + TEXT, "", ""),
        ("print.html", TEXT, "", ""),
        ("a.html", NO_INDEX + TEXT, "", ""),
        ("search.html", NO_INDEX + TEXT, "pages to search with", ""),
        ("toc.html", f"<p>All chapters:<ul>{ITEMS}</ul>", "lists of links", ""),
        ("toc.html", f"{TEXT}<ul>{ITEMS}</ul>", "", ""),
    ],
)
def test_what_is_no_page_to_read_is_no_document(id, page, reason, target):
    outline = HTML.outline(page, id)
    assert (outline.left_out, outline.moved_to) == (reason, target) and bool(outline.blocks) == (not reason)


def test_links_to_a_redirect_are_links_to_where_it_leads():
    page = REFRESH.format("0; url=b.html") + "<p>x"
    assert list(HTML.parse(Document("old/a.html", "a", page.replace("b.html", "../b.html"), HTML))) == [
        Redirect("old/a.html", "b.html"),
        Redirect("old/a", "b.html"),
        Dropped("old/a.html", "redirects to other pages"),
    ]

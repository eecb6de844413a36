"""What pages of HTML and Markdown say of themselves: their encoding, their title, and tags that people write about."""

import time

import pytest

from retrieval.data.corpora.pages import HtmlPages, MarkdownPages

HTML, MARKDOWN = HtmlPages(), MarkdownPages()


def shown(form, text):
    outline = form.outline(text, "a")
    return outline.title, [f"{'#' * block.level} {block.text}".strip() for block in outline.blocks]


@pytest.mark.parametrize(
    ("charset", "codec", "text"),
    [
        ("iso-8859-1", "cp1252", "It’s a “café”"),  # as browsers read it
        ("iso-8859-1", "utf-8", "café"),  # what it says is out of date
        ("gb2312", "gbk", "朱镕基"),
    ],
)
def test_a_page_is_read_as_browsers_read_it(charset, codec, text):
    page = f'<meta charset="{charset}"><p>'.encode() + text.encode(codec)
    assert HTML.decode(page).endswith(f"<p>{text}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Use <select> here.\n\nMore.\n\n## End\n\nIt.", ("", ["Use here.", "More.", "## End", "It."])),
        ("Add a <script> tag.\n\n# H", ("H", ["Add a tag."])),
        ("A <nav>menu</nav> is hidden.", ("", ["A is hidden."])),
    ],
)
def test_a_tag_in_prose_hides_nothing(text, expected):
    assert shown(MARKDOWN, text) == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("<nav class=x><ul><li>menu</ul><p>The page.", ["menu", "The page."]),  # which is never closed
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


PIECES = ["<a ", "<a b='", "<!--", "<!", "</", "<div>", "<nav>", "<title>", "<script>", "&#", "<main>"]
PIECES += ["<div role=main>", "<a href='#'>#", "<select><p>", "<h1>x<br>", "<a href=x>y", "<", "</nav>"]


def test_time_is_linear_in_what_is_nested_or_never_closed():
    start = time.process_time()
    for piece in PIECES:
        HtmlPages().outline(piece * (60_000 // len(piece)), "a")
    for fields in (
        "+++\n" + "\n" * 60_000 + "x",
        "+++\n" + "a." * 30_000 + "a=1",
        "---\n" + "[" * 9000,
        "---\ntitle: 0x" + "f" * 9000,
    ):
        HTML.outline(f"{fields}\n{fields[:3]}\n", "a")
    assert time.process_time() - start < 8


@pytest.mark.parametrize(
    ("fields", "title"),
    [
        ("+++\ntitle = 'A pump' # now\ndate = 2024-05-01\n\n[extra]\nweight = 2\n+++", "A pump"),
        ("---\r\n'Title': A pump\r\ntags: [a]\r\n---", "A pump"),
        ("\ufeff--- \n# of the site\n---", ""),
        ('---\ntitle: "My: \\"page\\"" # note\ndate: 2024-02-30\n---', 'My: "page"'),
        ("---\ntitle: 3.10 \n---", "3.10"),
        ('---\ntitle: "\\ud83d\\ude00 \\ud83d"\n---', "\U0001f600 \ufffd"),
        ("---\ndate created: today\n\ntitle: null\n---", ""),
        ("---\na: &a [x, x]\nb: &b [*a, *a]\ntitle: [*b, *b]\n---", ""),
        ('{\n "title": "A pump",\n "tags": ["a"]\n}', "A pump"),
    ],
)
def test_fields_before_a_page_are_no_text_of_it(fields, title):
    assert shown(MARKDOWN, f"{fields}\nHold it.") == (title, ["Hold it."])


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nIntro.\n\n---\n\nHold it.",
        '+++\ntitle = "A pump"\n\nHold it.',
        "+++\ntitle = A pump\n+++\n\nHold it.",
        '{"title": "A pump"} begins\n\nHold it.',
        '{"title": "A pump",}\n\nHold it.',
    ],
)
def test_what_only_begins_like_fields_is_a_text(text):
    title, blocks = shown(MARKDOWN, text)
    assert title == "" and len(blocks) == 2 and blocks[1] == "Hold it."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("## How to reset\n\nHold it.", ("How to reset", ["Hold it."])),
        ("Words.\n\n## Later\n\nMore.", ("", ["Words.", "## Later", "More."])),
        ("---\ntitle: T\n---\n# T\n\nTen days.", ("T", ["Ten days."])),
        ("---\ntitle: T\n---\n# Other\n\nTen days.", ("T", ["# Other", "Ten days."])),
        (
            "To [[Plan]], [[deep/Idea|one]]; `[[Plan]]`, [[1],[2]], [[of](../plan.md)].",
            ("", ["To Plan, one; [[Plan]], [[1],[2]], [of]."]),
        ),
    ],
)
def test_titles_headings_and_names_in_brackets_of_markdown(text, expected):
    assert shown(MARKDOWN, text) == expected


TEXT = "<p>Water flows from the well.</p>"
OUTSIDE = "<title>{}The Book</title><h1>The Book</h1><main>{}</main>"
ITEMS = "".join(f"<li><a href={n}.html>Chapter {n}</a>" for n in range(8))


@pytest.mark.parametrize(
    ("page", "title", "blocks"),
    [
        (OUTSIDE.format("Pumps - ", f"<h1 id=p><a href='#p'>The pump</a></h1>{TEXT}"), "The pump", 1),
        (OUTSIDE.format("Pumps - ", TEXT), "Pumps - The Book", 1),
        (f"<title>T — Site</title><div role=main><div><h1>T<a href='#t'>¶</a></h1></div>{TEXT}</div>x", "T", 1),
        (f"<title>Assert | Node v2</title><header><h1>Node v2</h1></header><h2>Assert</h2>{TEXT}", "Assert", 2),
        (f"<title>KB</title><h2><div>Cost</div></h2>{TEXT}", "KB", 2),
        (f"<h1>Annual report<br>2019</h1>{TEXT}<ul>{ITEMS}</ul>", "Annual report 2019", 9),
        (f"<title>{'a - ' * 20_000}</title>{TEXT}", ("a - " * 20_000)[:-1], 1),
    ],
)
def test_a_title_is_the_page_s_and_not_the_site_s(page, title, blocks):
    outline = HTML.outline(page, "a.html")
    assert (outline.title, len(outline.blocks), outline.left_out) == (title, blocks, "")


def test_signs_that_link_to_a_heading_are_no_text():
    page = "<h1>T<a href='#t'>\uf0c1</a></h1><h2><a href='#u'>§</a>U</h2><p>See <a href='#n'>[1]</a> <a href=b>#</a>"
    assert shown(HTML, page) == ("T", ["## U", "See [1] #"])


@pytest.mark.parametrize(
    ("id", "page", "reason"),
    [
        ("g/a.html", "<meta http-equiv=refresh content='0; URL=../b.html#c'><a href=../b.html>b</a>", "redirects to"),
        ("a.html", "<meta http-equiv=refresh content='5; url=b.html'><p>" + "word " * 80, ""),
        ("a.html", f"<meta http-equiv=refresh content='5'>{TEXT}", ""),
        ("docs/print.html", f"<meta name=robots content='noindex'>{TEXT}", "pages to print"),
        ("a.html", f"<meta name=robots content='noindex'>{TEXT}", ""),
        ("a.html", f"<p>All chapters:<ul>{ITEMS}</ul>", "lists of links"),
    ],
)
def test_what_is_no_page_to_read_is_no_document(id, page, reason):
    outline = HTML.outline(page, id)
    assert outline.left_out.startswith(reason) and bool(outline.left_out) == bool(reason) == (not outline.blocks)


def test_code_keeps_its_lines():
    page = "Read  it:<pre>\r\ndef <a href=b>f</a>():\r\n\r\n    return &lt;b&gt;\n</pre>That."
    before, code, behind = HTML.outline(page, "a").blocks
    assert (before.text, behind.text) == ("Read it:", "That.")
    assert code.text == "\n    def f():\n    \n        return <b>"
    assert [code.text[link.start : link.end] for link in code.links] == ["f"]

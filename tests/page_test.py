"""The server's page in a real browser: what people see, type and share."""

import contextlib
import re
import shutil

import pytest
from support.served import Reranker, running

from retrieval.api.answering import Answer

pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")
pytest.importorskip("playwright.sync_api", reason="launch/browser.sh has not been run")

from playwright.sync_api import sync_playwright

from retrieval.api.document_index import Hit
from retrieval.api.document_texts import WholeDocument
from retrieval.data.sets.candidate import Candidate
from retrieval.search.hit_texts import marked
from retrieval.search.words import Words
from retrieval.serving import app
from retrieval.serving.engine import Engine
from retrieval.serving.requests import Limits
from retrieval.serving.service import Service

BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium: launch/browser.sh has not been run")
WORDS = Words()
NASTY = '<img src=x onerror="window.ran = 1"><script>window.ran = 1</script> owl'
MOST = 5  # hits of a list, fewer than the page would show
GONE = "net::ERR_CONNECTION_REFUSED"
CODE = "Read it:\n    def read(path):\n        return 1\nThat is all."
TWIN = "the owl sees at night and sleeps by day in the old oak tree of the park"


ABOUT = {"passages": 4321, "documents": 12, "examples": ["an owl", "wisdom"], "far": {"dense": 0.5}, "cosine": True}


def search(queries, k, systems, prompt_name):
    told = enumerate(((TWIN, "/?q=stone"), (NASTY, " java\nscript:window.ran = 1")))
    hits = [Hit(f"birds.md:{place}", "Owls", text, 0.9 - place, "At night", url) for place, (text, url) in told]
    hits += [Hit("twin.md:0", "Owls again", TWIN + " here", -1.0, url="https://example.org/twin")]
    hits += [Hit("long.md:0", "", CODE, -2.0, url="?q=long")]
    all_of = {"owl": systems, "wisdom": {*systems} - {"bm25"}}
    return [
        {name: hits if any(word in query and name in of for word, of in all_of.items()) else [] for name in systems}
        for query in queries
    ]


def document(id):
    """Two passages, of which one is that of a hit."""
    passages = [Candidate(f"birds.md:{n}", "Owls", text, "At night") for n, text in enumerate((TWIN, NASTY))]
    return WholeDocument("birds.md", "Owls", "", passages) if id in ("birds.md", "birds.md:1") else None


def pieces(query, texts):
    return marked(texts, {word for words in WORDS.of([query]) for word in words}, WORDS)


def answers(question, hits, k):
    """The last word of the first hit, behind characters that a browser counts as two."""
    return [Answer("park", 1.0, hit._replace(text=f"🦉🦉 {TWIN}"), len(TWIN) - 1, len(TWIN) + 3) for hit in hits[:k]]


@pytest.fixture(scope="module")
def address():
    """A server of made-up hits, in a thread."""
    titles = {"dense": "dense", "bm25": "BM25", "hybrid": "hybrid"}
    parts = {"document": document, "about": lambda: ABOUT, "reranker": Reranker(), "answer": answers, "paragraphs": 2}
    service = Service(titles, 4321, search, pieces, **parts)
    application = app.make_app(Engine(lambda: service, Limits(k=MOST, characters=50), "birds"), ("127.0.0.1",))
    with running(application, lifespan="off") as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield opened
        opened.close()


@pytest.fixture
def visit(browser, address):
    """Opens the page; in the end, nothing was asked of anybody else, and nothing went wrong in the browser."""
    asked, wrong = [], []
    with contextlib.ExitStack() as stack:

        def visit(path="/", **options):
            page = browser.new_page(**options)
            stack.callback(page.close)
            page.set_default_timeout(20_000)
            page.on("request", lambda request: asked.append(request.url))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
            page.goto(address + path)
            return page

        yield visit
        assert asked and all(url.startswith((address, "data:")) for url in asked), asked
        assert [text for text in wrong if "status of 400" not in text and GONE not in text] == []


def test_the_start_says_what_is_searched_and_what_to_ask(visit):
    page = visit()
    page.wait_for_selector("#size:has-text('4,321 passages of 12 documents')")
    assert page.inner_text("h1 a") == "birds" and page.locator(".apart a").all_inner_texts() == ABOUT["examples"]
    page.click(".apart a >> nth=0")
    page.wait_for_selector("#system-dense li")
    assert page.url.endswith("/?q=an+owl") and page.input_value("#query") == "an owl"
    page.fill("#query", "")
    page.wait_for_selector(".apart a")


def test_a_typed_query_shows_one_list_and_the_others_a_click_away(visit):
    page = visit()
    page.fill("#query", "the owl")
    page.press("#query", "Enter")
    page.wait_for_selector("#tabs button:nth-child(5)")
    shown = lambda: page.locator("section:visible").evaluate_all("all => all.map(each => each.dataset.system)")  # noqa: E731
    assert page.locator("#tabs button").all_inner_texts() == ["dense", "BM25", "hybrid", "reranked", "side by side"]
    assert shown() == ["dense"] and page.inner_text("#tabs [aria-pressed=true]") == "dense"
    page.click("#tabs button >> nth=1")
    first = page.locator("#system-bm25 li").first
    assert shown() == ["bm25"] and first.locator("mark").all_inner_texts() == ["owl"]
    assert "Owls\n" in first.inner_text() and "At night" in first.inner_text() and "birds.md:0" in first.inner_text()
    page.press("body", "ArrowRight")
    assert shown() == ["hybrid"] and page.evaluate("document.activeElement.dataset.id") == "birds.md:0"
    page.click("#tabs button >> nth=4")
    tops = {round(box["y"]) for box in (page.locator("section").nth(n).bounding_box() for n in range(4))}
    assert len(tops) == 1 and "embeddings and words merged" in page.inner_text("#system-hybrid")
    page.wait_for_selector("#status:has-text('ms to rerank')")
    assert re.fullmatch(r"[\d.]+ ms to search, [\d.]+ ms round trip; \d+ ms to rerank.*", page.inner_text("#status"))
    assert page.url.endswith("/?q=the+owl") and page.title() == "the owl – search"


def test_hits_that_are_no_nearer_than_chance_are_far(visit):
    """In a list of embeddings by their similarity, in others where no word of the query is there either."""
    page = visit("/?q=wisdom")
    page.wait_for_selector("#system-reranked li", state="attached")
    far = lambda system: page.locator(f"#system-{system} li:has(.far:not([hidden]))").count()  # noqa: E731
    assert (far("dense"), far("hybrid"), far("bm25")) == (2, 2, 0)
    assert "No passage has a word of this query" in page.inner_text("#note")
    near = page.locator("li .near:not([hidden])").all_text_contents()
    assert near == ["· similarity 0.90", "· similarity -0.10", "similarity -2.00"]
    page.fill("#query", "owl")
    page.wait_for_selector("#note", state="hidden")
    page.wait_for_selector("#system-dense mark")
    assert (far("dense"), far("hybrid")) == (2, 1)


def test_code_keeps_its_lines_and_a_font_of_its_own(visit):
    page = visit("/?q=owl")
    assert page.locator("#system-dense pre").inner_text().rstrip() == "def read(path):\n    return 1"
    assert page.locator("#system-dense li:has(pre) .text").all_inner_texts() == ["Read it:", "That is all."]
    assert page.evaluate("getComputedStyle(document.querySelector('pre')).fontFamily").endswith("monospace")


def test_the_answer_stands_above_the_lists(visit):
    page = visit("/?q=owl")
    page.wait_for_selector("#answer .title")
    assert page.inner_text("#answer .title") == "park" and page.inner_text("#answer mark") == "park"
    assert page.inner_text("#answer .text") == f"🦉🦉 {TWIN}" and "birds.md:0" in page.inner_text("#answer")
    page.fill("#query", "stone")
    page.press("#query", "Enter")
    page.wait_for_selector("#answer", state="hidden")


def test_what_a_passage_holds_is_text_and_nothing_else(visit):
    page = visit("/?q=owl")
    page.wait_for_selector("#system-dense li:nth-child(2)")
    assert "<script>window.ran = 1</script>" in page.inner_text("#system-dense li:nth-child(2)")
    assert page.evaluate("window.ran") is None and page.locator("main img, main script").count() == 0


def test_a_hit_leads_to_its_document(visit, address):
    """To a page here where it has no address, or one that is a script; a hit without a title has its id."""
    page = visit("/?q=owl")
    page.wait_for_selector("#answer a")
    links = page.locator("#system-dense a").evaluate_all("all => all.map(a => [a.textContent, a.href])")
    folded = ["twin.md:0 · Owls again", "https://example.org/twin"]
    here = ["Owls", f"{address}/?q=owl&d=birds.md%3A1"]
    assert links == [["Owls", f"{address}/?q=stone"], folded, here, ["long.md:0", f"{address}/?q=long"]]
    assert page.get_attribute("#answer a", "href") == "/?q=stone"
    page.locator("#system-dense a").first.click()
    page.wait_for_url("**/?q=stone")


def test_a_document_without_an_address_opens_here(visit):
    page = visit("/?q=owl")
    page.locator("#system-dense li:nth-child(2) a").click()
    page.wait_for_selector("article .hit")
    assert page.inner_text("article h2") == "Owls" and page.inner_text("article h3") == "At night"
    assert page.locator("article div").all_inner_texts() == [TWIN, NASTY] and page.inner_text(".hit") == NASTY
    assert page.evaluate("window.ran") is None
    page.click("text=← hits for owl")
    page.wait_for_selector("#system-dense li")
    assert "/?q=owl" in page.url and "&d=" not in page.url


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(
    "path, wanted", [("/", ".apart a"), ("/?q=owl", "#system-dense li"), ("/?d=birds.md", ".apart p")]
)
def test_a_page_has_loaded_when_it_is_whole_and_is_no_wider_than_the_screen(path, wanted, width, visit):
    """A picture is taken then, of which nothing below the box would be blank."""
    page = visit(path, viewport={"width": width, "height": 800})
    assert page.locator(wanted).count() and page.locator("iframe").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= width

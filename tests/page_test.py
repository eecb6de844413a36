"""The server's page in a real browser: what people see, type and share."""

import contextlib
import re
import shutil
import socket
import threading

import pytest
from support.served import Reranker

from retrieval.api.answering import Answer

pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")
pytest.importorskip("playwright.sync_api", reason="launch/browser.sh has not been run")


import uvicorn
from playwright.sync_api import sync_playwright

from retrieval.api.document_index import Hit
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
TWIN = "the owl sees at night and sleeps by day in the old oak tree of the park"


def search(queries, k, systems, prompt_name):
    told = enumerate(((TWIN, "/?q=stone"), (NASTY, " java\nscript:window.ran = 1")))
    hits = [Hit(f"birds.md:{place}", "Owls", text, 2.0 - place, "At night", url) for place, (text, url) in told]
    hits += [Hit("twin.md:0", "Owls again", TWIN + " here", -1.0, url="https://example.org/twin")]
    hits += [Hit("long.md:0", "", "x" * 400, -2.0, url="?q=long")]
    return [{name: hits if "owl" in query else [] for name in systems} for query in queries]


def pieces(query, texts):
    return marked(texts, {word for words in WORDS.of([query]) for word in words}, WORDS)


def answers(question, hits, k):
    """The last word of the first hit, behind characters that a browser counts as two."""
    return [Answer("park", 1.0, hit._replace(text=f"🦉🦉 {TWIN}"), len(TWIN) - 1, len(TWIN) + 3) for hit in hits[:k]]


@pytest.fixture(scope="module")
def address():
    """A server of made-up hits, in a thread."""
    titles = {"dense": "dense", "bm25": "BM25", "hybrid": "hybrid"}
    service = Service(titles, 4321, search, pieces, reranker=Reranker(), answer=answers, paragraphs=2)
    application = app.make_app(Engine(lambda: service, Limits(k=MOST, characters=50)), ("127.0.0.1",))
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None, lifespan="off", access_log=False))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


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


def test_a_typed_query_shows_lists_side_by_side(visit):
    page = visit()
    page.wait_for_selector("#passages:has-text('4,321')")
    page.fill("#query", "the owl")
    page.press("#query", "Enter")
    page.wait_for_selector("#system-reranked li")
    assert page.locator("h2").all_inner_texts() == ["dense", "BM25", "hybrid", "reranked"]
    tops = {round(box["y"]) for box in (page.locator("section").nth(n).bounding_box() for n in range(4))}
    first = page.locator("#system-bm25 li").first
    assert len(tops) == 1 and first.locator("mark").all_inner_texts() == ["owl"]
    assert "Owls\n" in first.inner_text() and "At night" in first.inner_text() and "birds.md:0" in first.inner_text()
    assert "embeddings and words merged" in page.inner_text("#system-hybrid")
    page.wait_for_selector("#status:has-text('ms to rerank')")
    assert re.fullmatch(r"[\d.]+ ms to search, [\d.]+ ms round trip; \d+ ms to rerank.*", page.inner_text("#status"))
    assert page.url.endswith("/?q=the+owl") and page.title() == "the owl – search"


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
    """The one with a script for an address leads nowhere; one without a title, and one that is folded, by their ids."""
    page = visit("/?q=owl")
    page.wait_for_selector("#answer a")
    links = page.locator("#system-dense a").evaluate_all("all => all.map(a => [a.textContent, a.href])")
    folded = ["twin.md:0 · Owls again", "https://example.org/twin"]
    assert links == [["Owls", f"{address}/?q=stone"], folded, ["Owls", ""], ["long.md:0", f"{address}/?q=long"]]
    assert page.get_attribute("#answer a", "href") == "/?q=stone"
    page.locator("#system-dense li:nth-child(2) a").click()
    assert page.evaluate("window.ran") is None and page.url.endswith("/?q=owl")
    page.locator("#system-dense a").first.click()
    page.wait_for_url("**/?q=stone")

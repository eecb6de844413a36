"""The server asked by the clients of others: OpenAI's, LangChain's, LlamaIndex's, Haystack's, Cohere's and MCP's."""

import asyncio
import json
import re
import subprocess
import sys
import threading

import numpy as np
import pytest
from conftest import REPOSITORY
from support.packages import package
from support.served import Reranker, Towers, running

pytest.importorskip("uvicorn", reason="launch/serve.lock is not installed")

from starlette.testclient import TestClient

from configs import bm25
from retrieval.api.document_index import Hit
from retrieval.data.sets.beir import Candidate
from retrieval.serving import app, mcp_server
from retrieval.serving.engine import Engine
from retrieval.serving.guard import Keys
from retrieval.serving.requests import Limits
from retrieval.serving.service import Service

KEY = "a-key"
TEXTS = ["how to install", "red"]
VECTORS = {"query": [[0.6, -0.8], [0.6, -0.8]], "document": [[0.8, 0.6], [0.8, 0.6]]}
LIMITS = Limits(inputs=2048)
WORDS = {"install": "Install it with pip.", "red": "It is red."}


class Sides(Towers):
    """Queries have one vector, documents another."""

    def rows(self, side, texts, prompt_name=None, room=0):
        rows = super().rows(side, texts, prompt_name, room)
        return rows._replace(tower=lambda ids: VECTORS[side][0])


def search(queries, k, systems, prompt_name):
    hits = [Hit(id, id.title(), text, 1.0 - rank, "Guide", "/") for rank, (id, text) in enumerate(WORDS.items())]
    return [{name: hits[:k] for name in systems} for _ in queries]


def passage(id):
    return Candidate(id, id.title(), WORDS[id], "Guide", url="/") if id in WORDS else None


def service():
    models = {"model": Sides(("query", "document")), "reranker": Reranker(score=lambda row: row[1] - 5)}
    return Service({"bm25": "BM25"}, 2, search, lambda query, texts: [], passage, **models)


SERVICE = service()


def served(name="guide", **options):
    return running(app.make_app(Engine(lambda: SERVICE, LIMITS, name), ("127.0.0.1",), **options))


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of a server that asks for a key."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    with served(keys=Keys(keys)) as address:
        yield address


def near(vectors, kind):
    return np.allclose(vectors, VECTORS[kind], atol=1e-7)


def test_openai(address):
    openai = package("openai")
    client = openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0)
    answer = client.embeddings.create(model="guide:query", input=TEXTS, encoding_format="float")
    assert near([each.embedding for each in answer.data], "query") and answer.usage.total_tokens == 4
    assert [model.id for model in client.models.list()] == ["guide", "guide:query", "guide:document"]
    with pytest.raises(openai.NotFoundError) as error:
        client.embeddings.create(model="gpt", input="x")
    assert error.value.code == "model_not_found" and error.value.param == "model"
    with pytest.raises(openai.BadRequestError, match="send text"):
        client.embeddings.create(model="guide", input=[[1, 2]])
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model="guide", input="x", dimensions=1)
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0).models.list()


def test_cohere(address):
    cohere = package("cohere")
    documents = ["abc", "abcdefg"]  # logits -2 and 2
    for client in (cohere.Client, cohere.ClientV2):
        asked = client(KEY, base_url=address)
        answer = asked.rerank(model="guide", query="q", documents=documents, top_n=1)
        ((index, score),) = ((each.index, each.relevance_score) for each in answer.results)
        assert index == 1 and score == pytest.approx(0.8807971)
        with pytest.raises(cohere.errors.NotFoundError, match="known: guide"):
            asked.rerank(model="rerank-v3.5", query="q", documents=documents)


def test_the_lines_of_the_guide_work_as_written():
    for name in ("openai", "langchain_openai", "haystack", "cohere", "llama_index.core", "httpx"):
        package(name)
    text = (REPOSITORY / "docs" / "guides" / "serving.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    with served(name="quickstart") as address:
        said: dict = {}
        for block in blocks:
            names: dict = {}
            exec(block.replace("http://127.0.0.1:8080", address), names)
            said |= {name: [*said.get(name, []), value] for name, value in names.items()}
        (langchain, llama, haystack), (_, of_tei, _) = said["queries"], said["documents"]
        many = said["documents"][0].embed_documents(["x"] * 1500)  # in requests of 1,000
        assert len(many) == 1500 and near(many[-2:], "document")
        assert near([langchain.embed_query("red"), llama.get_query_embedding("red")], "query")
        assert near([haystack.run("red")["embedding"]] * 2, "query")
        assert near([of_tei.get_text_embedding("red")] * 2, "document")
        (passages,) = said["Passages"]
        found = passages(url=address, system="bm25", k=1).invoke("install")
        assert [(each.id, each.page_content) for each in found] == [("install", WORDS["install"])]
    assert len(blocks) == 6


def test_the_description_is_one_of_openapi():
    validate = package("openapi_spec_validator").validate
    with TestClient(app.make_app(Engine(lambda: SERVICE, LIMITS, "guide"))) as asked:
        described = asked.get("/openapi.json").json()
    validate(described)
    assert {"/v1/embeddings", "/embed", "/rerank", "/ready", "/api/search"} <= described["paths"].keys()


async def use(client):
    """What each way to a server of tools gives."""
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"search", "get_document", "list_collections"}
    assert tools["search"].input_schema["properties"]["k"]["maximum"] == 100
    assert all("are data" in tools[name].description for name in ("search", "get_document"))
    found = await client.call_tool("search", {"query": "install", "k": 1})
    one = {"id": "install", "title": "Install", "text": WORDS["install"], "score": 1.0}
    assert not found.is_error and found.structured_content == {"results": [one]}
    assert json.loads(found.content[0].text) == found.structured_content
    document = await client.call_tool("get_document", {"id": "red"})
    assert document.structured_content["text"] == "It is red."
    told = (await client.call_tool("list_collections", {})).structured_content
    assert told == {"collections": [{"name": "guide", "passages": 2, "systems": ["bm25", "reranked"]}]}
    for name, arguments in (("search", {"query": "x", "k": 0}), ("search", {}), ("get_document", {"id": "no"})):
        assert (await client.call_tool(name, arguments)).is_error, arguments


def test_mcp_does_not_tell_what_failed():
    mcp = package("mcp")

    def search(queries, k, systems, prompt_name):
        raise RuntimeError("a secret")

    async def ask():
        engine = Engine(lambda: Service({"bm25": ""}, 1, search, lambda *_: []), LIMITS)
        async with mcp.Client(mcp_server.make_server(engine)) as client:
            return await client.call_tool("search", {"query": "x"})

    answer = asyncio.run(ask())
    assert answer.is_error and "secret" not in answer.content[0].text


def test_mcp_has_its_tools_before_the_index_is_open():
    mcp, opened, begun = package("mcp"), threading.Event(), []

    async def ask():
        engine = Engine(lambda: opened.wait(30) and SERVICE, LIMITS, "guide")
        async with mcp.Client(mcp_server.make_server(engine, lambda: begun.append(1))) as client:
            call = asyncio.ensure_future(client.call_tool("list_collections", {}))
            assert len((await client.list_tools()).tools) == 3 and begun == [1] and not call.done()
            opened.set()
            return await call

    assert not asyncio.run(ask()).is_error


def test_mcp_over_http(address):
    mcp, http, streamable = package("mcp"), package("httpx"), package("mcp.client.streamable_http")

    async def ask(mode):
        async with http.AsyncClient(headers={"x-api-key": KEY}) as carrier:
            way = streamable.streamable_http_client(f"{address}/mcp", http_client=carrier)
            async with mcp.Client(way, mode=mode) as client:
                await use(client)

    for mode in ("legacy", "2026-07-28"):
        asyncio.run(ask(mode))
    answer = http.get(f"{address}/mcp", headers={"x-api-key": KEY, "accept": "text/event-stream"})
    assert answer.status_code == 405 and "POST" in answer.headers["allow"]


@pytest.fixture(scope="module")
def indexed(tmp_path_factory):
    """The work directory of BM25 over two documents."""
    from support.tiny import execute

    from retrieval.runs.pipeline.run import Run

    folder = tmp_path_factory.mktemp("indexed")
    (folder / "docs").mkdir()
    for name, text in WORDS.items():
        (folder / "docs" / f"{name}.md").write_text(
            f"# {name.title()}\n\n{text} It says so on every page of the guide.\n"
        )
    config = bm25.get_config("local")
    config.corpus, config.sets.pydocs = str(folder / "docs"), False
    run = Run(config, folder / "run", REPOSITORY / "requirements.lock")
    execute(run)
    return run.folder


def test_mcp_over_standard_input(indexed):
    """Nothing but JSON is on standard output, and the end of the input ends the process."""
    mcp = package("mcp")
    command = [sys.executable, "-m", "retrieval.main", "mcp", f"--workdir={indexed}"]
    who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    asked = {"name": "search", "arguments": {"query": "pip"}}
    messages = [
        {"id": 1, "method": "initialize", "params": who},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": asked},
    ]
    text = "".join(json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages)
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, text=True)
    assert process.stdin and process.stdout
    process.stdin.write(text)
    process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for _ in range(2)]
    assert [answer["id"] for answer in answers] == [1, 2]
    (hit,) = answers[1]["result"]["structuredContent"]["results"]
    assert hit["title"] == "Install"
    process.stdin.close()
    assert process.stdout.read() == "" and process.wait(60) == 0

    async def ask():
        parameters = mcp.StdioServerParameters(command=command[0], args=command[1:], cwd=str(REPOSITORY))
        async with mcp.Client(parameters) as client:
            document = await client.call_tool("get_document", {"id": hit["id"]})
            assert document.structured_content["title"] == "Install"

    asyncio.run(ask())

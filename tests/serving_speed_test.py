"""What the benchmark of the server reports; not how fast anything is."""

import asyncio
import sys

import pytest
from support.command_flags import forget_flags

from benchmarks import serving_speed
from retrieval.errors import UserError


def answers(status, asked):
    """A server whose every answer takes a moment."""

    async def answer(reader, writer):
        while head := await reader.readuntil(b"\r\n\r\n"):
            asked.append(head.decode().splitlines()[0])
            await asyncio.sleep(0.002)
            writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: 2\r\n\r\n{{}}".encode())

    return answer


async def measure(status, asked, queries=("a b", "c"), clients=2):
    server = await asyncio.start_server(answers(status, asked), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    serving_speed.flags.FLAGS(["x", f"--server_port={port}", "--seconds=0.1", "--systems=dense,bm25"])
    async with server:
        return await serving_speed._ask(queries, clients)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(serving_speed, "_WARM", 0.02)
    monkeypatch.setattr(sys, "argv", ["x"])
    yield
    forget_flags()


def test_every_client_asks_and_is_counted():
    asked = []
    result = asyncio.run(measure(200, asked))
    assert {line.split()[1] for line in asked} == {
        f"/api/search?query={query}&systems=dense%2Cbm25" for query in ("a%20b", "c")
    }
    assert 2 <= result["p50"] <= result["p90"] <= result["p99"]
    assert 2 <= result["answers"] <= len(asked) and result["per_second"] == round(result["answers"] / 0.1, 1)


def test_more_clients_than_queries_share_them():
    asked = []
    asyncio.run(measure(200, asked, clients=5))
    assert len({line.split()[1] for line in asked[:5]}) == 2


def test_an_answer_that_is_none_ends_the_measurement():
    with pytest.raises((UserError, ExceptionGroup), match="does not answer"):
        asyncio.run(measure(503, []))

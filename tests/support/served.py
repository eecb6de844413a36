"""Stand-ins for what a service has: towers and a reranker that make numbers of texts by a rule."""

import contextlib
import socket
import threading

import numpy as np
from starlette.testclient import TestClient

from retrieval.api.text_encoders import Card, TextRows
from retrieval.serving import app
from retrieval.serving.engine import Engine
from retrieval.serving.requests import Limits
from retrieval.serving.service import Service


def client(service=None, limits=None, name="guide", hosts=(), keys=None, **parts):
    """A client of a server of these parts, or of a service."""
    values = {"titles": {"bm25": "BM25"}, "passages": 7, "search": None, "marked": None} | parts
    service = service or Service(**values)
    engine = Engine(lambda: service, limits or Limits(), name)
    return TestClient(app.make_app(engine, hosts, keys), raise_server_exceptions=False)


@contextlib.contextmanager
def running(application, **settings):
    """The address of a server in a thread."""
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(application, log_config=None, access_log=False, **settings))
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]))
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()


class Towers:
    """Embeds a text as (1, its tokens), before the parts of `numbers`: a token is a word."""

    kind = "embedder"

    def __init__(self, prompts=("query", "document", "nq"), length=8, sizes=(2,), default_prompt="document"):
        self.prompts = dict.fromkeys(prompts, "")
        self.card = Card(sizes, {"query": length, "document": length}, "mean", "float32", default_prompt)
        self.asked = []  # the side, the prompt and the number of texts of each call

    def embed(self, rows):
        return np.asarray([rows.tower(ids) for ids in rows.ids], np.float32)

    def rows(self, side, texts, prompt_name=None, room=0):
        texts = [each if isinstance(each, str) else each["text"] for each in texts]
        self.asked.append((side, prompt_name, len(texts)))
        rows = [[len(word) for word in text.split()][: self.card.lengths[side] + room] for text in texts]
        return TextRows(rows, self.vector)

    def vector(self, ids):
        return [1.0] * self.card.sizes[-1]


class Reranker:
    """Scores the documents of a call by their places, or by `score` of a query's and a document's words."""

    def __init__(self, score=None, length=8):
        self._score, self._length = score, length

    def rows_of(self, query, documents, room=0):
        return [[len(query.split()), *map(len, each.text.split())][: self._length + room] for each in documents]

    def scores_of(self, query, documents):
        return self.logits(self.rows_of(query, documents))

    def logits(self, rows):
        return np.asarray([self._score(row) for row in rows] if self._score else np.arange(len(rows)), np.float32)

    def scores_of_logits(self, logits):
        return logits

    def compile(self, count):
        pass

"""A stand-in for Hugging Face's hub: what its API says of models and data sets, over HTTP, from a dict of files."""

import contextlib
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote, urlparse

import huggingface_hub.constants

from retrieval.common.runtime import hub as hub_models
from retrieval.common.runtime import hub_datasets

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONVERTED = "refs/convert/parquet"  # the branch of a data set; its files are those of the name NAME@refs/...
OF_BRANCH = COMMIT[::-1]


class Hub:
    """Attributes:
    models: name -> file -> bytes.
    asked: method and path of every request.
    configs: name of a data set -> what its card says of its configs.
    """

    def __init__(self, models):
        self.models, self.configs, self.asked = models, {}, []
        self.address = ""


class _Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_GET(self):
        path = urlparse(self.path).path.strip("/")
        self.hub.asked.append((self.command, path))
        name = next((name for name in self.hub.models if name in path), None)
        is_branch = quote(CONVERTED, safe="") in path or OF_BRANCH in path
        if name and is_branch:
            name = f"{name}@{CONVERTED}"
            path = path if name in self.hub.models else "api/missing/missing"
        if name is None:
            self._json({"error": "Repository not found"}, 401, {"X-Error-Code": "RepoNotFound"})
        elif "/missing" in path:
            self._json({"error": "Invalid rev id"}, 404, {"X-Error-Code": "RevisionNotFound"})
        elif path.startswith("api/datasets/") and "/tree/" not in path:
            files, sha = self.hub.models[name], OF_BRANCH if is_branch else COMMIT
            card = {"cardData": {"configs": self.hub.configs[name]}} if name in self.hub.configs else {}
            self._json({"id": name, "sha": sha, "siblings": [{"rfilename": file} for file in files], **card})
        elif "/tree/" in path:
            files = self.hub.models[name].items()
            self._json([{"type": "file", "path": f, "size": len(data), "oid": _sum(data)} for f, data in files])
        elif path.startswith(("api/models/", "api/datasets/")):
            self._json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": f} for f in self.hub.models[name]]})
        else:
            sha = OF_BRANCH if is_branch else COMMIT
            self._file(self.hub.models[name].get(path.partition(f"/resolve/{sha}/")[2]), sha)

    do_HEAD = do_GET

    def _file(self, data, sha):
        if data is None:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        headers = {"X-Repo-Commit": sha, "ETag": f'"{_sum(data)}"', "Accept-Ranges": "none"}
        self._send(data, 200, headers)

    def _json(self, value, status=200, headers=None):
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, data, status, headers):
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(data))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def _sum(data):
    return hashlib.sha1(data).hexdigest()


def forget():
    """What a process has resolved is asked for again."""
    hub_models.local.cache_clear()
    hub_datasets.local.cache_clear()


@contextlib.contextmanager
def served(models, cache, patch):
    """A hub that answers on this machine, with an empty cache beside it. `patch` is pytest's monkeypatch."""
    forget()
    hub = Hub(models)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    patch.setenv("HF_ENDPOINT", hub.address)
    patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    patch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)  # as `support.packages` has it
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        forget()

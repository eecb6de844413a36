"""The stages `serve` and `mcp`: a server that answers queries over the corpus, with a page for a browser.

For agents that start it there are the same answers as tools of the Model Context Protocol, over standard input and
output.
"""

import contextlib
import gc
import logging
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from ml_collections import ConfigDict

from retrieval.api import answering
from retrieval.api.own_search import OwnSearch
from retrieval.common import files, libraries
from retrieval.common.errors import UserError
from retrieval.common.runtime.store import repeated
from retrieval.config.fields import of_fields
from retrieval.runs.pipeline import records, runner
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.weights.trained_model import TRAINED
from retrieval.runs.weights.trained_run import check_towers
from retrieval.stages.search import USES, reads

if TYPE_CHECKING:
    from retrieval.serving.requests import Limits
    from retrieval.serving.service import Current

_log = logging.getLogger(__name__)

_LOOK = 2.0  # seconds between two looks for a newer index, and between two lines of the log while one is opened
_PAUSE = 0.2  # seconds between two programs that are compiled before anybody asks for them
_RERANKER = "config.serve.reranker"
# The fields of every server; those of one over passages are all of `serve`.
SETTINGS = tuple(f"serve.{name}" for name in ("host", "port", "hosts", "name", "keys_file", "truncate"))


def check_packages(config: ConfigDict) -> None:
    """Checks that the server's packages are there."""
    try:
        import starlette  # noqa: F401 (a run without a server does without it)
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise libraries.missing("--stage=serve", str(error.name), "serve") from error


def check_hits(k: int, depth: int) -> None:
    """Checks that no more hits are allowed than are looked for."""
    if k > depth:
        raise UserError(f"config.serve.k={k}: only config.evaluate.depth={depth} hits are looked for; raise that")


def fetch(run: Run) -> None:
    """Copies down the reranker, and what the stage `search` does, where they are on a store."""
    TRAINED["reranker"].fetch(run, run.config.serve.reranker, _RERANKER)
    answering.fetch(run)


def check_keys(run: Run) -> None:
    """Checks the file of keys, where there is one."""
    if run.config.serve.keys_file:
        from retrieval.serving.guard import Keys

        Keys(Path(run.config.serve.keys_file))


def check(run: Run) -> None:
    """Checks the towers, the reranker, the reader and the file of keys, where there are such."""
    check_keys(run)
    check_towers(run)
    if TRAINED["reranker"].is_there(run, run.config.serve.reranker):
        TRAINED["reranker"].check(run, run.config.serve.reranker, _RERANKER)
    answering.check(run)


def serve(run: Run) -> None:
    """Answers until the process is told to end; an index that is made anew meanwhile takes over."""
    answer(run, lambda: open_current(run), name(run))


def answer(run: Run, opened: Callable[[], "Current"], name: str, what: str = "") -> None:
    """Answers by what is opened, until the process is told to end.

    Args:
      name: of the model, for clients.
      what: it answers with, for the log; by default how many passages there are.
    """
    from retrieval.serving import app, foreign_routes, guard, server
    from retrieval.serving.engine import Engine

    fields = run.config.serve
    port = os.environ.get(foreign_routes.PORT)  # in a container of Vertex AI, which asks from outside
    address = ("0.0.0.0", int(port)) if port else (fields.host, fields.port)
    listening = server.listen(*address)
    with _telling("serve"):
        current = opened()
    hosts = fields.hosts or guard.local_names(address[0])
    known = guard.Keys(Path(fields.keys_file)) if fields.keys_file else None
    engine = Engine(lambda: current.service, limits(run), name)
    application = app.make_app(engine, hosts, known)
    host, port = listening.getsockname()[:2]
    place = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    _log.info("serve: %s answers %s", place, what or f"over {current.service.passages:,} passages")
    if not known and not guard.local_names(address[0]):
        _log.warning(
            "serve: other machines reach this address, and no key is needed: set config.serve.keys_file, or "
            "config.serve.host=127.0.0.1"
        )
    gc.collect()
    gc.freeze()  # to look through the objects of all modules takes 0.3 s, in which nobody is answered
    with repeated(current.refresh, _LOOK), repeated(current.compile_next, _PAUSE):
        server.run(application, listening, engine.measures.closed, engine.end)
    _log.info("serve: ended, after all answers")


def open_current(run: Run) -> "Current":
    """What the indexes of a run answer; `refresh` takes those that have been made in their place."""
    from retrieval.serving.service import Current, Service, service_of

    def open_service() -> Service:
        runner.check_read(run, "serve")
        searcher, kind = OwnSearch(run, run.config.evaluate.depth), TRAINED["reranker"]
        model = run.config.serve.reranker
        reranker = kind.open(run, model, _RERANKER) if kind.is_there(run, model) else None
        return service_of(searcher, reranker, answering.open_answerer(run), limits(run).batch)

    return Current(open_service, _Version(run))


class _Version:
    """What a server reads, as its records say it; None while a part of that is being made."""

    def __init__(self, run: Run):
        self._run, self._states, self._version = run, None, None

    def __call__(self) -> str | None:
        needs = [(where, other.stage) for other, where in records.needs(self._run, "serve")]
        states = [files.state(where.record(stage)) for where, stage in needs]
        if states != self._states:  # records are read where their files have changed
            read = [records.read_record(where, stage) for where, stage in needs]
            is_whole = all(record["done"] for record in read if record)
            outputs = files.fingerprint([record and record.get("outputs") for record in read])
            self._states, self._version = states, outputs if is_whole else None
        return self._version


def limits(run: Run) -> "Limits":
    """What a request may ask for."""
    from retrieval.serving.requests import Limits

    return Limits(run.config.serve.k, run.config.serve.truncate)


def name(run: Run) -> str:
    """What clients call the model."""
    return run.config.serve.name or Path(run.display_path.rstrip("/")).name


def answers_of(function: Callable[[Run], None], check_packages: Callable[[ConfigDict], None]) -> Stage:
    """A stage that answers over the indexes of a run."""
    return Stage(
        function,
        check_config=(check_packages, of_fields(check_hits, "serve.k", "evaluate.depth")),
        check=(check,),
        also_reads=("serve", "encode.windows", *USES),
        reads=reads,
        files=Run.vocabulary_inputs,
        fetch=fetch,
    )


def check_mcp(config: ConfigDict) -> None:
    """Checks that the package is there, in the version that is known."""
    try:
        from retrieval.serving import mcp_server
    except ImportError as error:
        raise libraries.missing("--stage=mcp", str(error.name), "mcp") from error
    if not mcp_server.is_installed():
        raise libraries.missing("--stage=mcp", f"mcp {mcp_server.VERSION}", "mcp")


def mcp(run: Run) -> None:
    """Answers agents until standard input ends. Nothing but the protocol is written to standard output."""
    import anyio

    from retrieval.serving import mcp_server
    from retrieval.serving.engine import Engine

    loaded: Future[Current] = Future()

    def load() -> None:
        try:
            with _telling("mcp"):
                loaded.set_result(open_current(run))
        except Exception as error:  # which every call of a tool is told
            _log.error("mcp: %s", error)
            loaded.set_exception(error)

    def look() -> None:
        if loaded.done() and not loaded.exception():
            loaded.result().refresh()
            loaded.result().compile_next()

    engine = Engine(lambda: loaded.result().service, limits(run), name(run))
    with ThreadPoolExecutor(1) as pool, repeated(look, _LOOK):
        anyio.run(mcp_server.make_server(engine, lambda: pool.submit(load)).run_stdio_async)


@contextlib.contextmanager
def _telling(stage: str) -> Iterator[None]:
    """The log has a line every two seconds while the block runs."""
    began = time.perf_counter()
    with repeated(lambda: _log.info("%s: loading, %.0f s so far", stage, time.perf_counter() - began), _LOOK):
        yield


STAGES.register("serve", answers_of(serve, check_packages))
STAGES.register("mcp", answers_of(mcp, check_mcp))

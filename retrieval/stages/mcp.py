"""The stage `mcp`: tools of the Model Context Protocol over standard input and output, for agents that start them."""

import contextlib
import os
import sys
from collections.abc import Iterator

from ml_collections import ConfigDict

from retrieval import extras
from retrieval.pipeline.run import Run
from retrieval.pipeline.stage import STAGES
from retrieval.stages import serve


def check_package(config: ConfigDict) -> None:
    """Checks that the package is there, in the version that is known."""
    try:
        from retrieval.serving import mcp_server
    except ImportError as error:
        raise extras.missing("--stage=mcp", str(error.name), "mcp") from error
    if not mcp_server.is_installed():
        raise extras.missing("--stage=mcp", f"mcp {mcp_server.VERSION}", "mcp")


def mcp(run: Run) -> None:
    """Answers agents until standard input ends. Nothing but the protocol is written to standard output."""
    import anyio

    from retrieval.serving import mcp_server
    from retrieval.serving.engine import Engine

    with _prints_to_errors():
        current = serve.open_current(run)
    engine = Engine(lambda: current.service, serve.limits(run), serve.name(run))
    anyio.run(mcp_server.make_server(engine).run_stdio_async)
    current.close()


@contextlib.contextmanager
def _prints_to_errors() -> Iterator[None]:
    """What is printed goes to standard error; the protocol's own streams do so from where they begin."""
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


STAGES.register("mcp", serve.answers_of(mcp, check_package))

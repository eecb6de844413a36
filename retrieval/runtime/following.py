"""What can be followed of a run on a store while it goes on: files that grow are put there again and again."""

import contextlib
import logging
import time
from collections.abc import Iterator

from retrieval import terminal
from retrieval.errors import UserError
from retrieval.runtime import hosts
from retrieval.runtime.artefacts import LOGS, Artefacts
from retrieval.runtime.store import repeated

_EVERY = 20.0  # seconds


@contextlib.contextmanager
def followed(copy: Artefacts | None, top: str) -> Iterator[None]:
    """In the block a file or a folder, by its path below the work directory, is put on the store by this process.

    A store that does not answer does no harm: what counts is put there otherwise.
    """
    if copy is None:
        yield
        return

    def put() -> None:
        with contextlib.suppress(UserError):
            copy.put([top], deletes=False)

    try:
        with repeated(put, _EVERY):
            yield
    finally:
        put()


@contextlib.contextmanager
def logged(copy: Artefacts) -> Iterator[None]:
    """In the block the log is followed too: `logs/host-NUMBER-TIME.log`, of each host and each of its starts."""
    name = f"{LOGS}/host-{hosts.number()}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.log"
    (copy.folder / name).parent.mkdir(exist_ok=True)
    handler = logging.FileHandler(copy.folder / name, encoding="utf-8")
    handler.setFormatter(terminal.Formatter("%(asctime)s %(message)s"))
    logger = logging.getLogger("retrieval")
    logger.addHandler(handler)
    try:
        with followed(copy, name):
            try:
                yield
            except BaseException as error:
                reason = f"{type(error).__name__}: {error}"  # the terminal has it from who ends the process
                handler.handle(logging.LogRecord(logger.name, logging.ERROR, "", 0, reason, None, None))
                raise
    finally:
        logger.removeHandler(handler)
        handler.close()

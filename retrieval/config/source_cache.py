"""What follows from the sources of this package alone, kept in a file until one of them changes.

The fields of a config are declared beside what they configure, so they are known when all of that is imported, JAX too.
A mistyped flag or `--help` need not wait for it. The files lie in the user's cache, `~/.cache/retrieval`. As for
Python's own of bytecode, a source is the same while its time and its size are.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parent.parent


def cached(name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives, as it comes back from JSON.

    Args:
      name: of the file.
    """
    sources = _sources()
    path = _folder() / f"{name}.json"
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        written = json.loads(path.read_text(encoding="utf-8"))
        if written["sources"] == sources:
            return written["value"]
    text = json.dumps({"sources": sources, "value": make()})
    with contextlib.suppress(OSError):  # who has no folder that may be written to waits each time
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".tmp-{os.getpid()}-{path.name}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return json.loads(text)["value"]


def _folder() -> Path:
    """One for each place where the package is installed."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache) / "retrieval" / hashlib.sha256(str(PACKAGE).encode()).hexdigest()[:16]


def _sources() -> str:
    """A sum of the names, times and sizes of all modules of the package."""
    sums = hashlib.sha256(sys.version.encode())
    for path in sorted(PACKAGE.rglob("*.py")):
        status = path.stat()
        sums.update(f"{path.relative_to(PACKAGE)} {status.st_mtime_ns} {status.st_size}\n".encode())
    return sums.hexdigest()

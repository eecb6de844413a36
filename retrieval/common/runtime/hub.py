"""Models and data sets on Hugging Face's hub: `hf:NAME` or `hf:NAME@REVISION` is a folder in `huggingface_hub`'s cache.

What that library reads from the environment counts here too: HF_HOME and HF_HUB_CACHE (where the cache is),
HF_HUB_OFFLINE (what the cache has must do), HF_TOKEN and HF_ENDPOINT.
"""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from retrieval.common.errors import UserError, first_line

_log = logging.getLogger(__name__)

PREFIX = "hf:"
# The card, configs, vocabularies, weights, and the modules of sentence-transformers; no copies for other programs.
_WEIGHTS = ["model*.safetensors", "adapter_model.safetensors"]
_FILES = ["README.md", "*.json", "*.txt", "*.model", *_WEIGHTS, "[0-9]_*/*", "query/*", "document/*"]
_OLDER_WEIGHTS = ["pytorch_model*.bin"]


def is_name(value: str) -> bool:
    """Whether a value of a field names a model on the hub."""
    return value.startswith(PREFIX)


def path(value: str) -> Path:
    """The folder that a field names: a model's of the hub, which is downloaded first, or any other."""
    return local(value) if is_name(value) else Path(value)


@functools.lru_cache  # a run asks many times, and the hub once
def local(value: str) -> Path:
    """The folder in the cache with the files of a model.

    Without a network what the cache has must do.

    Raises:
      UserError: there is no such model or revision, it is not free, or the hub does not answer and the cache lacks it.
    """
    download = snapshot(value, "model")
    with explaining(value):
        folder = Path(download(allow_patterns=_FILES))
        if not any(list(folder.glob(name)) for name in _WEIGHTS):
            folder = Path(download(allow_patterns=[*_FILES, *_OLDER_WEIGHTS]))
    _log.info("%s: commit %s, in %s", value, folder.name, folder)
    return folder


@functools.lru_cache
def data_set(value: str, patterns: tuple[str, ...]) -> Path:
    """The folder in the cache with the files of a data set that fit one of the patterns."""
    with explaining(value, "data set"):
        return Path(snapshot(value, "dataset")(allow_patterns=list(patterns)))


def snapshot(value: str, kind: str) -> Callable[..., str]:
    """What downloads files of a name, with a revision or without, into the cache; returns their folder."""
    import huggingface_hub

    name, _, revision = value.removeprefix(PREFIX).partition("@")
    fixed = {"revision": revision or None, "repo_type": kind, "endpoint": endpoint()}
    return functools.partial(huggingface_hub.snapshot_download, name, **fixed)


def endpoint() -> str | None:
    """The address of the hub, where the environment has another one."""
    return os.environ.get("HF_ENDPOINT") or None


@contextmanager
def explaining(
    value: str, what: str = "model", form: str = "hf:OWNER/NAME, or hf:OWNER/NAME@REVISION"
) -> Iterator[None]:
    """Says in a sentence what the hub, or the way to it, said.

    Args:
      what: a model, or what else has the name.
      form: of its name.
    """
    from huggingface_hub import errors

    unreachable = errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, errors.HTTPError  # pyright: ignore[reportPrivateImportUsage]
    reasons = {
        errors.GatedRepoError: f"its owner asks for an agreement: accept it on the {what}'s page, then log in",
        errors.RevisionNotFoundError: f"the {what} has no such revision; name a branch, a tag or a commit of it",
        errors.RepositoryNotFoundError: f"the hub has no such {what}, or it is private: see its name, or log in",
        errors.HFValidationError: f"no name of a {what}; write {form}",
        errors.HfHubHTTPError: "the hub refuses ({})",
        unreachable: f"the hub does not answer, and the cache has no such {what}: see the network, or name a folder",
        OSError: "{}",
    }
    try:
        yield
    except (OSError, errors.HFValidationError, unreachable[-1]) as error:
        reason = next(reason for kinds, reason in reasons.items() if isinstance(error, kinds))
        said = getattr(error, "strerror", None) or first_line(error)
        raise UserError(f"{value}: {reason.format(said)}") from error

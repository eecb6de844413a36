"""Settings of other people's models: a key that may change a result and is not known here is refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError, shown

# Every value: the key changes no result, or whoever asks looks at it.
ANY: Any = object()


def read(path: Path, known: Mapping[str, Any], optional: bool = False) -> dict[str, Any]:
    """The settings of a file, all of which are known; without those that are null, which stand for a default.

    Args:
      known: key -> the values that are understood.
      optional: whether there may be no such file, which has no settings.

    Raises:
      UserError: a key or a value is not, or as `files.read_json`.
    """
    record = files.read_json(path) if path.is_file() or not optional else {}
    if not isinstance(record, dict):
        raise UserError(f"{path}: not settings by name; copy the file again")
    return check(path, record, known)


def check(path: Path, record: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """As `read`, of settings that have been read."""
    for key, value in record.items():
        if value is None:
            continue
        if key not in known:
            way = "not known here: take another model, or take the key out if it does not"
            raise UserError(f"{path}: {key} is {shown(value)}, and whether that changes a result is {way}")
        # A list is no member of a set, and True is equal to 1.
        if (values := known[key]) is not ANY and not any(type(value) is type(one) and value == one for one in values):
            only = " or ".join(map(repr, values)) or "null"
            raise UserError(f"{path}: {key} is {shown(value)}; only {only} is understood here")
    return {key: value for key, value in record.items() if value is not None}


def whole(
    path: Path, record: Mapping[str, Any], key: str, most: int | None = None, default: int | None = None, least: int = 1
) -> int:
    """A whole number among settings."""
    value = record.get(key, default)
    if type(value) is not int or value < least or (most and value > most):
        needed = f"from {least} to {most}" if most else f"of at least {least}"
        raise UserError(f"{path}: {key} is {shown(value)}; a whole number {needed} is needed")
    return value


def token_limit(folder: Path, most: int, least: int = 1) -> int:
    """The tokens that the tokenizer of a folder cuts a text to, no more than `most`; 1e30 is no limit, as is null."""
    path, key = folder / "tokenizer_config.json", "model_max_length"
    record = files.read_json(path) if path.is_file() else {}
    limit = record.get(key) if isinstance(record, dict) else None
    is_none = limit is None or (isinstance(limit, float) and limit >= most)
    return most if is_none else min(most, whole(path, record, key, least=least))

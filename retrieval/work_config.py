"""The `config.json` of a work directory, read back."""

import json
import math
import runpy
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from retrieval import files
from retrieval.errors import UserError

# Every config has the fields of this one, and values of the same types.
_EXAMPLE = Path(__file__).resolve().parent.parent / "configs" / "ict_bfs_wlp.py"
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


def read_config(path: Path) -> ConfigDict:
    """The config that a work directory was made with.

    Raises:
      UserError: the file is missing or not JSON, or a field is missing or has a value of another type.
    """
    value = files.read_json(path)
    example = json.loads(runpy.run_path(str(_EXAMPLE))["get_config"]().to_json())
    if problem := next(_problems("config", example, value), None):
        raise UserError(f"{path}: {problem}; it is damaged or of another version: give --config, or another --workdir")
    try:
        return ConfigDict(value)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UserError(f"{path}: not a config ({error})") from error


def _problems(name: str, example: Any, value: Any) -> Iterator[str]:
    if not isinstance(example, Mapping):
        if not _is_like(example, value):
            yield f"{name} is not {_KINDS[type(example)]}"
    elif not isinstance(value, Mapping):
        yield f"{name} is not a group of fields"
    else:
        for field in example:
            if field in value:
                yield from _problems(f"{name}.{field}", example[field], value[field])
            else:
                yield f"{name}.{field} is missing"


def _is_like(example: Any, value: Any) -> bool:
    if isinstance(example, list):
        return isinstance(value, list) and all(isinstance(item, type(example[0])) for item in value if example)
    kinds = (int, float) if type(example) is float else (type(example),)
    # JSON knows infinity, NaN and whole numbers of any length.
    return type(value) in kinds and (type(value) not in (int, float) or (abs(value) < 1 << 63 and math.isfinite(value)))

"""Which parameters are trained: all; or where an encoder has adapters (LoRA), these and what is no part of it.

Parameters are nested dicts. An adapter's names begin with `lora_`, and its encoder is what has its `layers`.
"""

from collections.abc import Mapping
from typing import Any

from flax import traverse_util

_ADAPTER, _LAYERS = "lora_", "layers"


def split(params: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The parameters that are trained, and those that stay as they are, which are none without adapters."""
    flat: dict[tuple, Any] = traverse_util.flatten_dict(params)
    encoders = {path[: path.index(_LAYERS)] for path in flat if path[-1].startswith(_ADAPTER)}
    if not encoders:
        return params, {}
    inside = [path for path in flat if any(path[: len(encoder)] == encoder for encoder in encoders)]
    frozen = {path: flat.pop(path) for path in inside if not path[-1].startswith(_ADAPTER)}
    return traverse_util.unflatten_dict(flat), traverse_util.unflatten_dict(frozen)


def join(trained: Any, frozen: Mapping[str, Any]) -> Any:
    """What `split` split."""
    if not frozen:
        return trained
    return traverse_util.unflatten_dict(traverse_util.flatten_dict(trained) | traverse_util.flatten_dict(frozen))

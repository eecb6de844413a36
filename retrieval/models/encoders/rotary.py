"""What configs say of rotary positions and of local layers, in the spellings of transformers 4 and 5."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.errors import UserError
from retrieval.models.encoders.family import positive
from retrieval.models.known_keys import ANY, shown

# Keys of a config that `theta`, `thetas` and `layer_kinds` read.
KEYS = dict.fromkeys(("rope_theta", "rope_scaling", "rope_parameters", "layer_types"), ANY)

_FULL, _LOCAL = "full_attention", "sliding_attention"
_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def theta(path: Path, config: Mapping[str, Any], default: float, key: str = "rope_theta") -> dict[str, Any]:
    """The switches `rope_theta` and `rope_scaling` of a config whose layers all have the same.

    Raises:
      UserError: a kind of scaling that is not built, or a number that is none.
    """
    groups = [_group(path, config.get(name)) for name in ("rope_parameters", "rope_scaling")]
    bases = [positive(path, group, "rope_theta", default) for group in groups if "rope_theta" in group]
    bases += [positive(path, config, key, default)] if key in config else []
    return {"rope_theta": _agreed(path, key, bases, default), "rope_scaling": _of_spellings(path, groups)}


def thetas(path: Path, config: Mapping[str, Any], keys: tuple[str, str], defaults: tuple[float, float]) -> dict:
    """As `theta`, with `local_theta`, of a config that has other angles in local layers.

    Args:
      keys: of transformers 4, for layers that are not local, and for those that are.
    """
    parameters = _group(path, config.get("rope_parameters"))
    of_kinds = [_group(path, parameters.get(kind)) for kind in (_FULL, _LOCAL)]
    if parameters and not all(of_kinds):
        raise UserError(f"{path}: rope_parameters has not both of {_FULL} and {_LOCAL}; copy the file again")
    if of_kinds[1] and _scaling(path, of_kinds[1]):
        raise UserError(f"{path}: rope_parameters.{_LOCAL} has a rope_type that local layers have not here")
    full, local = (
        _agreed(
            path,
            key,
            [positive(path, x, name, 0) for x, name in ((group, "rope_theta"), (config, key)) if name in x],
            default,
        )
        for group, key, default in zip(of_kinds, keys, defaults)
    )
    scaling = _of_spellings(path, [of_kinds[0], _group(path, config.get("rope_scaling"))])
    return {"rope_theta": full, "local_theta": local, "rope_scaling": scaling}


def layer_kinds(path: Path, config: Mapping[str, Any], layers: int, usual: tuple[int, bool]) -> dict[str, Any]:
    """The switches `global_every` and `global_first`.

    Args:
      usual: these, where a config does not list the kinds of its layers.

    Raises:
      UserError: the list has another order.
    """
    if (kinds := config.get("layer_types")) is None:
        return {"global_every": usual[0], "global_first": usual[1]}
    if isinstance(kinds, list) and len(kinds) == layers and set(kinds) <= {_FULL, _LOCAL}:
        if _LOCAL not in kinds:
            return {"global_every": 1, "global_first": False}
        if _FULL not in kinds:
            return {"global_every": 0, "global_first": False}
        for every in range(2, layers + 1):
            for first in (True, False):
                place = 0 if first else every - 1
                if kinds == [_FULL if number % every == place else _LOCAL for number in range(layers)]:
                    return {"global_every": every, "global_first": first}
    raise UserError(
        f"{path}: layer_types is not of {layers} layers, one in so many {_FULL} and the others {_LOCAL}, as layers are "
        "here"
    )


def written_kinds(layers: int, locality: tuple[bool, ...]) -> list[str]:
    """The `layer_types` of a config."""
    return [_LOCAL if locality[number % len(locality)] else _FULL for number in range(layers)]


def written_theta(base: float, scaling: str) -> dict[str, Any]:
    """A group of `rope_parameters`, as `theta` and `thetas` read it."""
    kind, *numbers = scaling.split(":") if scaling else ["default"]
    values = dict(zip(_LLAMA3, map(float, numbers)))
    if "original_max_position_embeddings" in values:
        values["original_max_position_embeddings"] = int(values["original_max_position_embeddings"])
    return {"rope_type": kind, "rope_theta": base, **values}


def written_scaling(scaling: str) -> dict[str, Any]:
    """What transformers 4 reads in its place, beside the bases."""
    group = written_theta(0.0, scaling)
    del group["rope_theta"]
    return {"rope_scaling": group} if scaling else {}


def _group(path: Path, value: Any) -> dict[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{path}: {shown(value)} stands where rope_parameters or rope_scaling are; copy the file again")
    return {key: item for key, item in (value or {}).items() if item is not None}


def _agreed(path: Path, key: str, values: Sequence[Any], default: Any) -> Any:
    """The value that every spelling of a setting has: versions of transformers differ in which of two counts."""
    if len(set(values)) > 1:
        raise UserError(
            f"{path}: {key} and rope_parameters say {' and '.join(map(str, values))}, and which counts is not known: "
            "take one of them out"
        )
    return values[0] if values else default


def _of_spellings(path: Path, groups: Sequence[Mapping[str, Any]]) -> str:
    return _agreed(path, "rope_scaling", [_scaling(path, group) for group in groups if group], "")


def _scaling(path: Path, group: Mapping[str, Any]) -> str:
    kind = group.get("rope_type", group.get("type", "default"))
    known: tuple[str, ...] = {"default": (), "linear": ("factor",), "llama3": _LLAMA3}.get(kind, ("?",))
    if kind not in ("default", "linear", "llama3"):
        raise UserError(f"{path}: rope_type is {shown(kind)}; only default, linear and llama3 are built here")
    if other := set(group) - {"rope_type", "type", "rope_theta", *known}:
        raise UserError(f"{path}: {sorted(other)[0]} of its rope_parameters is not understood for rope_type {kind}")
    return "" if kind == "default" else ":".join([kind, *(_exact(positive(path, group, key, 0)) for key in known)])


def _exact(number: float) -> str:
    return short if float(short := f"{number:g}") == number else repr(number)

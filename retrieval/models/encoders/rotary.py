"""What configs say of rotary positions and of local layers, in the spellings of transformers 4 and 5."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from retrieval.models.architecture import Architecture
from retrieval.models.encoders.family import Settings
from retrieval.models.known_keys import shown

LAYERS = "layer_types"

_FULL, _LOCAL = "full_attention", "sliding_attention"
_PARAMETERS, _SCALING, _BASE = "rope_parameters", "rope_scaling", "rope_theta"
# The kinds of scaling -> their numbers.
_KINDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


@dataclasses.dataclass(frozen=True)
class Angles:
    """The switches `rope_theta`, `rope_scaling` and, where local layers have angles of their own, `local_theta`.

    Attributes:
      bases: keys of transformers 4 -> defaults, of all layers; or of those that are not local, then of the others.
      older: whether what transformers 4 reads is written, too.
    """

    bases: dict[str, float]
    older: bool = True

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are read."""
        return (*self.bases, _PARAMETERS, _SCALING)

    def read(self, settings: Settings) -> dict[str, Any]:
        """The switches.

        Raises:
          UserError: a kind of scaling that is not built, or a number that is none, or spellings that differ.
        """
        parameters, older = (_group(settings, settings.get(name)) for name in (_PARAMETERS, _SCALING))
        kinds = [parameters]
        if len(self.bases) == 2:
            kinds = [_group(settings, parameters.get(kind)) for kind in (_FULL, _LOCAL)]
            if parameters.values and not all(kind.values for kind in kinds):
                raise settings.error(f"{_PARAMETERS} has not both of {_FULL} and {_LOCAL}; copy the file again")
            if _scaling(kinds[1]):
                raise settings.error(f"{_PARAMETERS}.{_LOCAL} has a rope_type that local layers have not here")
        switches = {}
        for switch, (key, default), groups in zip(
            ("rope_theta", "local_theta"), self.bases.items(), ([kinds[0], older], kinds[1:])
        ):
            spelled = [group.positive(_BASE) for group in groups if _BASE in group]
            spelled += [settings.positive(key)] if key in settings else []
            switches[switch] = agreed(settings, f"{key} and {_PARAMETERS}", spelled, default)
        scalings = [_scaling(group) for group in (kinds[0], older) if group.values]
        return switches | {"rope_scaling": agreed(settings, f"{_SCALING} and {_PARAMETERS}", scalings, "")}

    def write(self, switches: Architecture) -> dict[str, Any]:
        """The settings that are read so."""
        scaled, theta = _written(switches.rope_scaling), switches.rope_theta
        thetas = dict(zip(self.bases, (theta, switches.local_theta or theta)))
        older = {**thetas, **({_SCALING: scaled} if switches.rope_scaling else {})} if self.older else {}
        full = scaled | {_BASE: theta}
        if len(thetas) == 1:
            return older | {_PARAMETERS: full}
        local = _written("") | {_BASE: switches.local_theta or theta}
        return older | {_PARAMETERS: {_FULL: full, _LOCAL: local}}


def layer_kinds(settings: Settings, layers: int, usual: tuple[int, bool]) -> dict[str, Any]:
    """The switches `global_every` and `global_first`.

    Args:
      usual: these, where a config does not list the kinds of its layers.
    """
    if (kinds := settings.get(LAYERS)) is None:
        return {"global_every": usual[0], "global_first": usual[1]}
    if isinstance(kinds, list) and len(kinds) == layers and set(kinds) <= {_FULL, _LOCAL}:
        if len(set(kinds)) == 1:
            return {"global_every": int(_FULL in kinds), "global_first": False}
        for every in range(2, layers + 1):
            for first in (True, False):
                place = 0 if first else every - 1
                if kinds == [_FULL if number % every == place else _LOCAL for number in range(layers)]:
                    return {"global_every": every, "global_first": first}
    raise settings.error(f"{LAYERS} is not of {layers} layers, one in so many {_FULL} and the others {_LOCAL}")


def written_kinds(layers: int, locality: tuple[bool, ...]) -> dict[str, list[str]]:
    """The kinds of layers of a config."""
    return {LAYERS: [_LOCAL if locality[number % len(locality)] else _FULL for number in range(layers)]}


def _written(scaling: str) -> dict[str, Any]:
    """A group of settings, as `_scaling` reads it."""
    kind, *numbers = scaling.split(":") if scaling else ["default"]
    values = {
        key: int(number) if key.startswith("original") else float(number) for key, number in zip(_KINDS[kind], numbers)
    }
    return {"rope_type": kind, **values}


def _group(settings: Settings, value: Any) -> Settings:
    if value is not None and not isinstance(value, dict):
        raise settings.error(f"{shown(value)} stands where rope_parameters or rope_scaling are; copy the file again")
    return Settings(settings.path, {key: item for key, item in (value or {}).items() if item is not None})


def agreed(settings: Settings, keys: str, values: Sequence[Any], default: Any) -> Any:
    """The value that every spelling of a setting has: versions of transformers differ in which of two counts."""
    if len(set(values)) > 1:
        raise settings.error(f"{keys} say {' and '.join(map(str, values))}: take the wrong one out")
    return values[0] if values else default


def _scaling(group: Settings) -> str:
    kind = group.get("rope_type", group.get("type", "default"))
    if not isinstance(kind, str) or kind not in _KINDS:
        raise group.error(f"rope_type is {shown(kind)}; only default, linear and llama3 are built here")
    if other := set(group.values) - {"rope_type", "type", _BASE, *_KINDS[kind]}:
        raise group.error(f"{sorted(other)[0]} of its rope_parameters is not understood for rope_type {kind}")
    return "" if kind == "default" else ":".join([kind, *(exact(group.positive(key)) for key in _KINDS[kind])])


def exact(number: float) -> str:
    """The shortest text of a number that is read as the same."""
    return short if float(short := f"{number:g}") == number else repr(number)

"""What a field of a config is: its default, what it may be, and a line of help."""

import dataclasses
import functools
import importlib
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from retrieval.common import terminal
from retrieval.common.errors import UserError, listed, unknown_name


class Kind(NamedTuple):
    """What a field may be.

    Attributes:
      needed: in words, for the error: 'a whole number of at least 1'. Of a field with names it is what these are.
      fits: whether a value is one.
      names: of a field that names an entry of a table, gives the names that it may have.
      at_once: whether it can be checked before the tables of behaviour are imported, which takes seconds.
    """

    needed: str
    fits: Callable[[Any], bool]
    names: Callable[[], Collection[str]] | None = None
    at_once: bool = True


class Field(NamedTuple):
    """One field.

    Attributes:
      default: its value in a config that does not set it.
      kind: what it may be.
      help: a line.
      in_place_of: another field that this one, where it is not 0, keeps from being read, or limits.
      goes_with: another field and its value, without which this one makes no sense; or that field alone, where it has
        to be set. `preflight.check_settings` refuses what nobody would read.
    """

    default: Any
    kind: Kind
    help: str
    in_place_of: str = ""
    goes_with: tuple[str, Any] | str = ""

    @property
    def partner(self) -> tuple[str, Callable[[Any], bool]]:
        """The field of `goes_with`, '' for none, and whether a value of it is one that this field makes sense with."""
        name, *values = (self.goes_with,) if isinstance(self.goes_with, str) else self.goes_with
        return name, (lambda value: value == values[0]) if values else bool


DECLARED: dict[str, Field] = {}  # by dotted name; `declared` has them all
GENERAL: set[str] = set()  # those of the trunk that are no option of a loss: every recipe and loss may leave them set

Result = TypeVar("Result")


def declare(group: str, **fields: Field) -> list[str]:
    """Adds fields to a group, such as 'train' or 'model.decoder'; '' is the config itself. Returns their dotted names.

    Raises:
      UserError: a field is declared twice.
    """
    for name, field in fields.items():
        path = f"{group}.{name}" if group else name
        if path in DECLARED:
            raise UserError(f"the field config.{path} is declared twice: rename the one of the plugin")
        DECLARED[path] = field
    return [f"{group}.{name}" for name in fields]


def declared() -> Mapping[str, Field]:
    """Every field, by its dotted name: those of `tree`, of the methods, and of the plugins that are loaded."""
    importlib.import_module("retrieval.methods")
    return DECLARED


def values_of(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """The values that a config has for some fields, by their dotted names."""
    return {name: operator.attrgetter(name)(config) for name in names}


@dataclasses.dataclass(frozen=True)
class OfFields(Generic[Result]):
    """A function of some fields or groups of a config, as a function of the config. Equal ones are one check."""

    function: Callable[..., Result]
    names: tuple[str, ...]

    def __call__(self, config: Any) -> Result:
        """What the function says of the values that the config has."""
        return self.function(*values_of(config, self.names).values())


def of_fields(function: Callable[..., Result], *names: str) -> OfFields[Result]:
    """A function that takes the values of some fields or groups, in this order, for where one of a config is needed.

    So `of_fields(check, "mine", "data.negatives")` calls `check(config.mine, config.data.negatives)`.
    """
    return OfFields(function, names)


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values by dotted names, as nested dicts."""
    groups: dict[str, Any] = {}
    for path, value in values.items():
        *parents, name = path.split(".")
        group = groups
        for parent in parents:
            group = group.setdefault(parent, {})
        group[name] = value
    return groups


def with_tuples(value: Any) -> Any:
    """A value as it comes back from JSON, with tuples where that has lists."""
    if isinstance(value, dict):
        return {name: with_tuples(item) for name, item in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def check_value(path: str, value: Any, kind: Kind) -> None:
    """Checks one value.

    Raises:
      UserError: it is not of the kind.
    """
    shown = value if isinstance(value, str) and value else repr(value)
    if kind.names is not None and isinstance(value, str) and not kind.fits(value):
        raise unknown_name(f"{kind.needed} in config.{path}", value, kind.names())
    if (kind.names is not None and not isinstance(value, str)) or not kind.fits(value):
        needed = kind.needed if kind.names is None else f"a text, one of {listed(sorted(kind.names()))},"
        raise UserError(f"config.{path}={shown}: {needed} is needed")
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        where = f"config.{path}={terminal.printable(shown)}"
        raise UserError(f"{where}: this is not UTF-8, or has half of a surrogate pair: rename it in UTF-8") from error


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def defaults() -> dict[str, Any]:
    """The default of every field, by its dotted name."""
    return {path: field.default for path, field in declared().items()}


def one_of(what: str, names: Collection[str] | str, *others: str) -> Kind:
    """A name, such as `one_of("dtype", ("bfloat16", "float32"))`.

    Args:
      what: they are, for the error.
      names: the names; or where the table is that has them, `retrieval.training.loss_kind.LOSSES`, for one that grows
        by an entry, or by a plugin's.
      others: names that are accepted beside these, such as ''.
    """
    at_hand = names if not isinstance(names, str) else None
    named = functools.partial(_imported, names) if isinstance(names, str) else lambda: names
    return Kind(what, lambda value: value in others or value in named(), named, at_hand is not None)


def choice(*words: str) -> Kind:
    """One of some words, among which may be ''."""
    return one_of("value", tuple(filter(None, words)), *(word for word in words if not word))


def checked_by(needed: str, function: str) -> Kind:
    """What a function accepts that lies beside its use, such as `retrieval.models.tower_head.are_layers`."""
    return Kind(needed, lambda value: _imported(function)(value), at_once=False)


def _imported(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def whole(least: int) -> Kind:
    """A whole number."""
    return Kind(f"a whole number of at least {least}", lambda value: type(value) is int and value >= least)


def number(needed: str, fits: Callable[[float], bool]) -> Kind:
    """A finite number, with a condition in words and as a function."""
    return Kind(needed, lambda value: type(value) in (int, float) and math.isfinite(value) and fits(value))


def tuple_of(needed: str, fits: Callable[[Any], bool], count: Callable[[int], bool] = lambda count: True) -> Kind:
    """A tuple of values that each fit a condition, and whose number fits one."""
    return Kind(needed, lambda value: isinstance(value, tuple | list) and count(len(value)) and all(map(fits, value)))


def matching(needed: str, pattern: str) -> Kind:
    """A text that a regular expression matches from its beginning to its end."""
    return Kind(needed, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)))


def whole_numbers(needed: str, least: int) -> Kind:
    """A tuple of whole numbers from `least` on."""
    return tuple_of(needed, whole(least).fits)


def names(needed: str, count: Callable[[int], bool] = lambda count: True) -> Kind:
    """A tuple of names, whose number fits a condition: the shell writes commas between them, so none has one in it."""
    return tuple_of(needed, lambda value: isinstance(value, str) and "," not in value, count)


TEXT = Kind("a text", lambda value: isinstance(value, str))
PATHS = Kind("a text", TEXT.fits)  # files or folders to read, with commas between several
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
TEXTS = tuple_of("a tuple of texts, such as \"('one', 'two')\"", TEXT.fits)
SEED = Kind("a whole number from 0 to 4294967295", lambda value: type(value) is int and 0 <= value < 2**32)
NUMBER = number("a number", lambda value: True)
# In float32, less is as good as 0, and more is soon infinite.
POSITIVE = number("a number above 0 (from 1e-20 to 1e15)", lambda value: 1e-20 <= value <= 1e15)
NOT_NEGATIVE = number("a number from 0 to 1e15", lambda value: 0 <= value <= 1e15)
SHARE = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
SHARE_ABOVE = number("a number above 0 and at most 1, such as 0.99", lambda value: 0 < value <= 1)
SHARE_BELOW = number("a number of at least 0 and below 1, such as 0.1", lambda value: 0 <= value < 1)
SHARE_BETWEEN = number("a share between 0 and 1, such as 0.1", lambda value: 0 < value < 1)
PREFIX = matching("'' or a text of more than spaces, such as 'query: '", r"(?s)(.*\S.*)?")

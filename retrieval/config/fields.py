"""The fields of a config. Each is declared once, beside what it configures: default, kind and a line of help.

    declare("search", k=Field(5, whole(1), "hits that --stage=search shows"))

Checks, `--help` and the reference page are made from the declarations. Who reads a field is what the stages say.
"""

import copy
import dataclasses
import json
import math
import operator
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from retrieval import terminal
from retrieval.errors import UserError, listed, unknown_name


class Kind(NamedTuple):
    """What a field may be.

    Attributes:
      needed: in words, for the error: 'a whole number of at least 1'.
      fits: whether a value is one.
      names: of a field that names an entry of a table, the names that it may have; what they are is `needed`.
      made: the function of this module that makes one, and its arguments: `as_data` keeps these.
    """

    needed: str
    fits: Callable[[Any], bool]
    names: Collection[str] | None = None
    made: tuple = ()


class Field(NamedTuple):
    """One field.

    Attributes:
      default: its value in a config that does not set it.
      kind: what it may be.
      help: a line.
      was: of a field that came later, the value that does what all versions before it did; None where there is none. It
        stays as it is, whatever becomes of the default: the work directories of those versions mean it.
      in_place_of: another field that this one, where it is not 0, keeps from being read, or limits.
      goes_with: another field and its value, without which this one makes no sense.
    """

    default: Any
    kind: Kind
    help: str
    was: Any = None
    in_place_of: str = ""
    goes_with: tuple[str, Any] | None = None


_FIELDS: dict[str, Field] = {}

Result = TypeVar("Result")


def declare(group: str, **fields: Field) -> None:
    """Adds fields to a group, such as 'train' or 'model.decoder'; '' is the config itself.

    Raises:
      UserError: a field is declared twice.
    """
    for name, field in fields.items():
        path = f"{group}.{name}" if group else name
        if path in _FIELDS:
            raise UserError(f"the field config.{path} is declared twice: rename the one of the plugin")
        _FIELDS[path] = field


def declared() -> Mapping[str, Field]:
    """Every field that has been declared, by its dotted name."""
    return _FIELDS


def defaults() -> dict[str, Any]:
    """The default of every field that has been declared, by its dotted name."""
    return {path: field.default for path, field in _FIELDS.items()}


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


def completed(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a config that an earlier version wrote, with `Field.was` for the fields which that did not have."""
    result = copy.deepcopy(dict(values))
    for path, field in _FIELDS.items():
        *parents, name = path.split(".")
        group: Any = result
        for parent in parents if field.was is not None else ():
            group = group.setdefault(parent, {}) if isinstance(group, dict) else None
        if field.was is not None and isinstance(group, dict):
            group.setdefault(name, field.was)
    return result


def beyond_before(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of a config without those that say what versions before their field did anyway, `Field.was`.

    So what a stage was made with is the same, whichever of the versions wrote it down.
    """
    result = {}
    for name, value in values.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping):
            group = beyond_before(value, f"{path}.")
            result |= {name: group} if group or not value else {}
        elif path not in _FIELDS or _FIELDS[path].was is None or value != _FIELDS[path].was:
            result[name] = value
    return result


def with_tuples(value: Any) -> Any:
    """A value as it comes back from JSON, with tuples where that has lists."""
    if isinstance(value, dict):
        return {name: with_tuples(item) for name, item in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list) else value


def check(values: Mapping[str, Any]) -> None:
    """Checks that a config has every field, and no other, each with a value that it may have.

    Raises:
      UserError: it does not; the message says what is needed.
    """
    given = dict(flatten(values))
    for path in given:
        if path not in _FIELDS:
            raise unknown_name("field", f"config.{path}", [f"config.{known}" for known in _FIELDS])
    for path, field in _FIELDS.items():
        if path not in given:
            raise UserError(
                f"config.{path} is missing: a config starts from retrieval.config.experiment.defaults(), which has all "
                "fields; for a work directory of an older version name its config too, --config=configs/NAME.py"
            )
        check_value(path, given[path], field.kind)


def check_value(path: str, value: Any, kind: Kind) -> None:
    """Checks one value.

    Raises:
      UserError: it is not of the kind.
    """
    if kind.names is not None:
        if not isinstance(value, str):
            raise UserError(f"config.{path}={value!r}: a text is needed, one of {listed(sorted(kind.names))}")
        if not kind.fits(value):
            raise unknown_name(f"{kind.needed} in config.{path}", value, kind.names)
    shown = value if isinstance(value, str) and value else repr(value)
    if not kind.fits(value):
        raise UserError(f"config.{path}={shown}: {kind.needed} is needed")
    try:
        json.dumps(value, ensure_ascii=False, default=str).encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"config.{path}={terminal.printable(shown)}: this is not UTF-8, or has half of a surrogate pair, and no "
            "config.json can hold it; write it in UTF-8, and rename a file of that name"
        ) from error


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of nested mappings."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def one_of(what: str, names: Collection[str], *others: str) -> Kind:
    """The name of an entry, such as `one_of("loss", LOSSES)`. The names are looked up when a value is checked.

    Args:
      others: names that are accepted beside these, such as ''.
    """
    return Kind(what, lambda value: value in names or value in others, names, ("one_of", what, names, *others))


def whole(least: int) -> Kind:
    """A whole number."""
    needed = f"a whole number of at least {least}"
    return Kind(needed, lambda value: type(value) is int and value >= least, made=("whole", least))


def number(needed: str, fits: Callable[[float], bool]) -> Kind:
    """A finite number, with a condition in words and as a function."""
    return Kind(needed, lambda value: type(value) in (int, float) and math.isfinite(value) and fits(value))


def _of_texts(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(item, str) for item in value)


TEXT = Kind("a text", lambda value: isinstance(value, str))
PATHS = Kind("a text", TEXT.fits)  # files or folders to read, with commas between several
SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
TUPLE = Kind("a tuple", lambda value: isinstance(value, tuple | list))
TEXTS = Kind("a tuple of texts, such as \"('one', 'two')\"", _of_texts)
SEED = Kind("a whole number from 0 to 4294967295", lambda value: type(value) is int and 0 <= value < 2**32)
# In float32, less is as good as 0, and more is soon infinite.
POSITIVE = number("a number above 0 (from 1e-20 to 1e15)", lambda value: 1e-20 <= value <= 1e15)
NOT_NEGATIVE = number("a number from 0 to 1e15", lambda value: 0 <= value <= 1e15)
SHARE = number("a number from 0 to 1", lambda value: 0 <= value <= 1)
SHARE_ABOVE = number("a number above 0 and at most 1, such as 0.99", lambda value: 0 < value <= 1)
SHARE_BELOW = number("a number of at least 0 and below 1, such as 0.1", lambda value: 0 <= value < 1)
SHARE_BETWEEN = number("a share between 0 and 1, such as 0.1", lambda value: 0 < value < 1)


def matching(needed: str, pattern: str) -> Kind:
    """A text that a regular expression matches from its beginning to its end."""
    made = ("matching", needed, pattern)
    return Kind(needed, lambda value: isinstance(value, str) and bool(re.fullmatch(pattern, value)), made=made)


def whole_numbers(needed: str, least: int) -> Kind:
    """A tuple of whole numbers from `least` on."""

    def fits(value: Any) -> bool:
        return isinstance(value, tuple | list) and all(type(item) is int and item >= least for item in value)

    return Kind(needed, fits, made=("whole_numbers", needed, least))


_CONSTANTS = {
    **{"TEXT": TEXT, "PATHS": PATHS, "SWITCH": SWITCH, "TUPLE": TUPLE, "TEXTS": TEXTS, "SEED": SEED},
    **{"POSITIVE": POSITIVE, "NOT_NEGATIVE": NOT_NEGATIVE, "SHARE": SHARE, "SHARE_ABOVE": SHARE_ABOVE},
    **{"SHARE_BELOW": SHARE_BELOW, "SHARE_BETWEEN": SHARE_BETWEEN},
}
_MAKERS: dict[str, Callable[..., Kind]] = {maker.__name__: maker for maker in (one_of, whole, matching, whole_numbers)}


def as_data(kind: Kind) -> list | None:
    """A kind for JSON; None for one with a condition of its own."""
    name = next((name for name, constant in _CONSTANTS.items() if constant is kind), None)
    if name or not kind.made:
        return [name] if name else None
    return [list(part) if isinstance(part, Collection) and not isinstance(part, str) else part for part in kind.made]


def kind_of(data: Sequence[Any]) -> Kind:
    """The kind that `as_data` wrote."""
    maker, *arguments = data
    return _MAKERS[maker](*arguments) if maker in _MAKERS else _CONSTANTS[maker]

"""The one exception that is meant for the person at the shell."""

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import terminal

# Characters of a list of names, of what a library says, and of a value: a message is to be read at a glance.
_LONGEST, _SAID, _SHOWN = 400, 300, 60
_MODEL = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?(@[\w./-]+)?")


class UserError(Exception):
    """Bad input or a bad setting: what is wrong, where, and what to do about it.

    `main` prints the message without a stack trace and exits with status 2.
    """


@contextlib.contextmanager
def library_errors(at: object, remedy: str) -> Iterator[None]:
    """Makes one `UserError` of whatever a library raises about its input, which may be a panic of Rust's.

    An `OSError` passes: it is of the disk.

    Args:
      at: the file, or what else was given to the library.
      remedy: what to do about an error, the end of its message.
    """
    try:
        yield
    except (OSError, UserError):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":  # which is no `Exception`
            raise
        raise UserError(f"{at}: damaged ({first_line(error)}); {remedy}") from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not in a table, with the nearest names first.

    Args:
      kind: what the name stands for, such as 'stage' or 'task'.
      name: what the user wrote.
      known: every name that would have been accepted; of very many the first are listed.
    """
    known = sorted(known)
    meant = near(name, known)
    hint = f"did you mean {' or '.join(meant)}? " if meant else ""
    return UserError(f"unknown {kind} '{terminal.one_line(name)}': {hint}known: {listed(known)}")


def no_path(path: Path, field: str = "", words: Sequence[str] = ()) -> UserError:
    """An error for a path that leads nowhere, with the nearest name beside it.

    Args:
      field: that has the path, where that is known.
      words: what the field takes besides paths.
    """
    names = [str(path.parent / item.name) for item in path.parent.iterdir()] if path.parent.is_dir() else []
    hint = near(str(path), [*names, *words])
    remedy = f"did you mean {hint[0]}?" if hint else "look at the path, and from where it counts"
    if path.parts[:1] == ("~",):  # which a shell expands at the beginning of a word alone
        remedy = "'~' is no folder here; write $HOME, or the whole path"
    remedy += hub_hint(str(path)) if field == "config.vocab" else ""
    return UserError(f"{path}: no such file or folder{f', in {field}' if field else ''}; {remedy}")


def hub_hint(value: str) -> str:
    """The end of an error about a path: how it is written, where it may be the name of a model. Nothing is there."""
    may_be = _MODEL.fullmatch(value) and Path(value).suffix not in (".json", ".txt") and not Path(value).exists()
    return f"; a model of Hugging Face's hub is written hf:{value}" if may_be else ""


def near(name: str, known: Iterable[str]) -> list[str]:
    """The names that are most like one that is not among them, at most three."""
    return difflib.get_close_matches(name, known, n=3, cutoff=0.5)


def listed(names: Iterable[str]) -> str:
    """Names with commas between them; of very many the first, and how many there are."""
    names = list(names)
    text = ", ".join(names)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rpartition(', ')[0]} ... ({len(names)} in all)"


def shown(value: Any) -> str:
    """A value for a message, which may be long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def first_line(error: BaseException | str) -> str:
    """What an error of a library says first, without the middle of what is too long; without a text, its type."""
    line = next(iter(str(error).strip().splitlines()), type(error).__name__)
    return line if len(line) <= _SAID else f"{line[: _SAID // 2]} ... {line[-_SAID // 2 :]}"


def multiples(number: int, of: int) -> str:
    """The multiples of `of` next to a number that is none: '96 or 104'."""
    below, above = number // of * of, -(-number // of) * of
    return f"{below} or {above}" if below > 0 else str(above)


def divisors(number: int, of: int) -> str:
    """The divisors of `of` next to a number that is none: '6 or 9' of 18 for 7."""
    return next_to(number, [size for size in range(1, of + 1) if of % size == 0])


def next_to(number: int, known: Sequence[int]) -> str:
    """Those of `known`, in ascending order, that are next to a number that is not among them: '16 or 64'."""
    below, above = [size for size in known if size < number][-1:], [size for size in known if size > number][:1]
    return " or ".join(map(str, below + above))

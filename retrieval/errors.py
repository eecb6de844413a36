"""The one exception that is meant for the person at the shell."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input or a bad setting: what is wrong, where, and what to do about it.

    `main` prints the message without a stack trace and exits with status 2.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UserError:
    """An error for a name that is not in a table, with the nearest names first.

    Args:
      kind: what the name stands for, such as 'stage' or 'task'.
      name: what the user wrote.
      known: every name that would have been accepted.
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    return UserError(f"unknown {kind} '{name}': {hint}known: {', '.join(known)}")

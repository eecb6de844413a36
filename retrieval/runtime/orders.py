"""The first process of a pod works, and has the others take their part in some of it."""

import functools
from collections.abc import Callable
from typing import Any, NoReturn

from retrieval.runtime import hosts

Give = Callable[[Any], None]
"""Gives an order, of JSON, to the other processes. The one that gives it takes its own part afterwards."""


def lead(work: Callable[[Give], Any], obey: Callable[[Any], None]) -> Any:
    """`work(give)` in the first process; in each of the others `obey(order)` for every order that it gives.

    Returns:
      In the first process what `work` returned, in the others the same as it comes back from JSON.

    Raises:
      UserError: in every process, when `work` raised anything in the first.
    """
    if hosts.is_first():
        try:
            result = work(lambda order: hosts.tell_all(lambda: {"order": order}))
        except BaseException as error:
            hosts.tell_all(functools.partial(_raise, error))
            raise
        return hosts.tell_all(lambda: {"result": result})["result"]
    while "result" not in (told := hosts.tell_all(_nothing)):
        obey(told["order"])
    return told["result"]


def _raise(error: BaseException) -> NoReturn:
    raise error


def _nothing() -> None:
    """What the first process alone is asked for."""

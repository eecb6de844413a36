"""Regular expressions of somebody else that are answers, such as CuratedTREC's."""

import re
import unicodedata
import warnings

from retrieval.errors import UserError

_LONGEST = 200  # characters in a message


def compiled(pattern: str, at: str, decomposed: bool = True) -> re.Pattern:
    """A regular expression for texts in NFD, or for texts as they are; upper and lower case are the same to it.

    Args:
      at: where it stands, for errors.
      decomposed: whether it is brought into NFD, for texts in NFD.

    Raises:
      UserError: it is no regular expression.
    """
    bare = _bare(pattern)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a later Python might read '[[' otherwise
            return re.compile(unicodedata.normalize("NFD", bare) if decomposed else bare, re.IGNORECASE | re.MULTILINE)
    except (re.error, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{at}: '{shown(pattern)}' is no regular expression ({error}); mend it, or drop it") from error


def shown(pattern: str) -> str:
    """The beginning of a regular expression, for messages."""
    return pattern if len(pattern) <= _LONGEST else f"{pattern[:_LONGEST]} ..."


def _bare(pattern: str) -> str:
    r"""The same without escapes of letters that NFD takes apart. Of `\é` it would make `\e`, an error, and a mark."""
    return re.sub(r"(\\[\x00-\x7f])|\\([^\x00-\x7f])", lambda found: found[1] or found[2], pattern)

"""A list of tokens, one a line, as BERT's `vocab.txt`: the line is the id."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval.common import files
from retrieval.common.errors import UserError, shown

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
BERT_ROLES: dict[str, str] = dict(zip(("pad", "unk", "cls", "sep", "mask"), SPECIAL_TOKENS))

_NAMES = {dict: "an object", list: "a list of objects", str: "a text", bool: "true or false", int: "a whole number"}
_BY_TOKEN = ("vocab", "special_tokens")  # which have names of tokens in the place of keys
_LARGEST = 1 << 26  # bytes; Gemma's tokenizer.json has 33 MB
_UPPER_CASE = 100  # tokens with capitals; an uncased BERT has five, the special ones


def read_lines(path: Path) -> list[str]:
    """The lines of a text file, without empty ones at its end.

    Raises:
      UserError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"vocabulary {path}: cannot be read as UTF-8, one token a line ({error})") from error
    while lines and not lines[-1].rstrip("\r"):
        lines.pop()
    return [line.rstrip("\r") for line in lines]


def read_object(path: Path, types: Mapping[str, type] = {}) -> dict[str, Any]:
    """The object of a JSON file; empty where there is no such file.

    Args:
      types: of keys, wherever they stand, unless they are null; the items of a list are objects.

    Raises:
      UserError: it is damaged, far too large, or something else, or a key of it has another type.
    """
    if not path.is_file():
        return {}
    files.check_size(path, _LARGEST)
    value = files.read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: not a JSON object; copy it again")
    parts = [value]
    while parts:
        for key, part in parts.pop().items():
            kind = types.get(key)
            items = part if kind is list and isinstance(part, list) else [part]
            others = kind is list and part is not None and any(type(item) is not dict for item in items)
            if kind and (others or type(part) not in (kind, type(None))):
                raise UserError(f"{path}: {key} is {shown(part)}, and {_NAMES[kind]} is needed; copy it again")
            parts += [item for item in items if isinstance(item, dict) and key not in _BY_TOKEN]
    return value


def folds_and_lowers(path: Path, tokens: Sequence[str]) -> tuple[bool, bool]:
    """Whether the model of a `vocab.txt` strips accents, and whether it has lower case."""
    beside = path.with_name("tokenizer_config.json")
    config = read_object(beside)
    is_cased = sum(token != token.lower() for token in tokens) > _UPPER_CASE
    lower_case, strips = config.get("do_lower_case", not is_cased), config.get("strip_accents")
    if not (isinstance(lower_case, bool) and isinstance(strips, bool | None)):
        raise UserError(f"{beside}: do_lower_case and strip_accents are not true or false; copy it again")
    if lower_case and is_cased:
        raise UserError(f"vocabulary {path}: of a cased model, and {beside} says do_lower_case: set it to false there")
    return lower_case if strips is None else strips, lower_case


def check_tokens(path: Path, tokens: list[str]) -> None:
    """Checks the tokens of a file, in the order of their ids.

    Raises:
      UserError: a special token is missing, or one is there twice.
    """
    if missing := ", ".join(token for token in SPECIAL_TOKENS if token not in tokens):
        raise UserError(f"vocabulary {path}: lacks {missing}; a BERT vocab.txt with one token a line is needed")
    token, count = Counter(tokens).most_common(1)[0]
    if count > 1:
        line = tokens.index(token, tokens.index(token) + 1) + 1
        raise UserError(f"vocabulary {path}: line {line} repeats the token {token!r}; drop one of them")

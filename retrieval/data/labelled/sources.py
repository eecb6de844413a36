"""Several sources of labelled examples in one run, which `config.pairs.sources` lists as TOML, a table each:

    [nq]
    files = "nq.parquet"                  # or a list of them
    fields = "query=question,positive=passage"
    weight = 2.0                          # all sources have one, or none has
    query_prompt = "query: "
    document_prompt = "passage: "
    negatives = 3
    loss = "multi_negative_nll"

A key stands for a field of the config, which has that value for the source alone. What a source lacks is the config's.
The field names a file. When a run begins, it gets the content, which `config.json` keeps: so a change is a change of
the config, and a finished run needs the file no more.
"""

import contextlib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.common.errors import UserError, unknown_name
from retrieval.common.parsing import text_files
from retrieval.config.fields import POSITIVE, declared
from retrieval.data.corpora import source_paths

FIELD = "pairs.sources"
# What a source may have of its own: the key of its table -> the field of the config that it stands for.
FILE_KEYS = {name: f"pairs.{name}" for name in ("files", "format", "fields", "queries", "collection")}
PROMPT_KEYS = {"query_prompt": "data.query_prefix", "document_prompt": "data.document_prefix"}
LOSS_KEYS = {"loss": "train.loss", "temperature": "train.temperature"}
_KEYS = FILE_KEYS | PROMPT_KEYS | {"negatives": "data.negatives"} | LOSS_KEYS
_WEIGHT = "weight"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")  # it is also the name of a folder, and a part of names of metrics


class Source(NamedTuple):
    """A source.

    Attributes:
      name: of its table.
      fields: of the config, by their dotted names, whose values it has of its own.
      weight: how often it is drawn, beside those of the others; None where its size decides.
    """

    name: str
    fields: Mapping[str, Any]
    weight: float | None = None


def read(value: str) -> list[Source]:
    """The sources that `config.pairs.sources` lists, in their order; none where it is empty.

    Args:
      value: TOML, or the name of a file of it.

    Raises:
      UserError: it is no TOML, or lists no source, or one of them has a key or a value that it may not have.
    """
    where, tables = _tables(value) if value else ("", {})
    sources = [_source(name, table, where) for name, table in tables.items()]
    if value and not sources:
        raise UserError(f'{where}: no source in it; one is a table, such as [nq] and a line files = "nq.jsonl"')
    weighed = [source.name for source in sources if source.weight is not None]
    if weighed and (others := [source.name for source in sources if source.weight is None]):
        lone = f"source '{weighed[0]}' has a {_WEIGHT}, and '{others[0]}' has none"
        raise UserError(f"{where}: {lone}: give every source one, or none, which then are drawn by their sizes")
    return sources


def fill_in(config: ConfigDict) -> None:
    """Puts the content of the file of sources into a config that names one."""
    if (group := config.get("pairs")) and group.get("sources"):
        group.sources = written_out(group.sources)


def written_out(value: str) -> str:
    """The TOML of a file, without comments, for `config.pairs.sources`; TOML stays what it is."""
    if not value:
        return value
    read(value)
    lines = []
    for name, table in _tables(value)[1].items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(item, ensure_ascii=False)}" for key, item in table.items())]
    return "\n".join([*lines, ""])


def configs_of(config: ConfigDict) -> dict[str, ConfigDict]:
    """The config as each source has it, by name: with its own fields, and as if it were the only one."""
    configs = {}
    for source in read(config.pairs.sources):
        own = config.copy_and_resolve_references()
        own.update_from_flattened_dict({FIELD: "", **source.fields})
        configs[source.name] = own
    return configs


def each(config: ConfigDict) -> dict[str, ConfigDict]:
    """`configs_of`; of examples without sources the config itself, under the name ''."""
    return configs_of(config) or {"": config}


def prompts_of(config: ConfigDict) -> dict[str, tuple[str, str]]:
    """What stands before the queries and before the documents of each source in training; empty without sources."""
    return {name: (own.data.query_prefix, own.data.document_prefix) for name, own in configs_of(config).items()}


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Says in an error of what is done for a source which one that is; '' is none."""
    try:
        yield
    except UserError as error:
        raise UserError(f"source '{name}': {error}" if name else str(error)) from error


def _tables(value: str) -> tuple[str, dict[str, Any]]:
    """Where the TOML stands, and what it says."""
    if "\n" in value:
        where, text = f"config.{FIELD}", value
    else:
        (path,) = source_paths.checked(f"config.{FIELD}", [value])
        where, text = value, text_files.decoded(text_files.whole(path), value)
    try:
        return where, tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: no TOML, {error}; mend that") from error


def _source(name: str, table: Any, where: str) -> Source:
    at = f"{where}, source '{name}'"
    if not isinstance(table, dict):
        raise UserError(f"{where}: '{name}' stands before the first source; write [NAME] above the keys of each")
    if not _NAME.fullmatch(name):
        raise UserError(f"{at}: letters, digits, - and _ are needed for a name, the first a letter or a digit")
    for key in table:
        if key not in (*_KEYS, _WEIGHT):
            raise unknown_name(f"key of {at},", key, (*_KEYS, _WEIGHT))
    files = table.get("files")
    if isinstance(files, list) and all(isinstance(file, str) for file in files):
        table = table | {"files": ",".join(files)}
    if not table.get("files"):
        raise UserError(f'{at}: no files; name some, such as files = "{name}.jsonl"')
    for key, value in table.items():
        kind = POSITIVE if key == _WEIGHT else declared()[_KEYS[key]].kind
        if kind.names is None and not kind.fits(value):  # names are looked up when their tables are there
            raise UserError(f"{at}: {key}={value!r}: {kind.needed} is needed")
    return Source(name, {_KEYS[key]: value for key, value in table.items() if key != _WEIGHT}, table.get(_WEIGHT))

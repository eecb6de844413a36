"""Short commands, for what is typed most: a word, what it is about, and any flags of `retrieval.main` behind that.

    retrieval own DOCS --model=MODEL --labels=FILE
    retrieval search 'WORDS' RUN
    retrieval serve RUN
    retrieval serve --model=MODEL --model=RERANKER

Each stands for flags, which the log shows. A RUN that is left out is the newest one below runs/ whose documents are
indexed.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from absl import flags

from retrieval.common.errors import UserError
from retrieval.common.runtime import artefacts
from retrieval.common.runtime.store import is_url

_RUN = "RUN"


class Verb(NamedTuple):
    """What a word stands for.

    Attributes:
      sets: flags and their values, unless the command line has the flag.
      takes: the words behind it, in their order, and the flag that each is the value of.
      options: flags of its own, and the beginning of the flag that each stands for.
    """

    sets: Mapping[str, str]
    takes: Mapping[str, str]
    options: Mapping[str, str] = {}


VERBS = {
    "own": Verb(
        {"config": "own", "workdir": "runs/own"},
        {"DOCS": "config.corpus"},
        {"model": "config=own:", "labels": "config.sets.labelled="},
    ),
    "search": Verb({"stage": "search"}, {"WORDS": "query", _RUN: "workdir"}),
    "serve": Verb({"stage": "serve"}, {_RUN: "workdir"}),
}
_MODELS = Verb({"workdir": "runs/served"}, {}, {"model": "config=served:"})  # what `serve` is with a --model


def written_out(argv: Sequence[str]) -> list[str]:
    """The flags that a command line stands for: those of a verb; else words before the flags are stages.

    Args:
      argv: without the name of the program.

    Raises:
      UserError: a verb lacks what it takes, or has more than that.
    """
    verb = VERBS.get(argv[0]) if argv else None
    if argv[:1] == ["serve"] and any(word.lstrip("-").partition("=")[0] == "model" for word in argv[1:]):
        verb = _MODELS
    if not verb:
        stages = list(itertools.takewhile(lambda word: not word.startswith("-"), argv))
        return [*([f"--stage={','.join(stages)}"] if stages else []), *argv[len(stages) :]]
    words, rest = _divided(argv[1:], verb.options)
    named = {word.lstrip("-").partition("=")[0] for word in rest}
    named |= {"query"} if "queries" in named else set()
    wanted = {name: flag for name, flag in verb.takes.items() if flag not in named}
    if len(words) > len(wanted):
        many = "several words go in quotes"
        raise UserError(f"unexpected argument '{words[len(wanted)]}': {argv[0]} takes {' '.join(verb.takes)}; {many}")
    for (name, flag), word in itertools.zip_longest(wanted.items(), words):
        if not word and name != _RUN:
            raise UserError(f"{name} is missing: retrieval {argv[0]} {' '.join(verb.takes)}")
        value = word or _newest()
        if name == _RUN and not is_url(value) and not (Path(value) / artefacts.CONFIG).is_file():
            way = "name its work directory, or make one with `retrieval own DOCS`; several words go in quotes"
            raise UserError(f"{value}: no run is there: {way}")
        rest.append(f"--{flag}={value}")
    return [*(f"--{flag}={value}" for flag, value in verb.sets.items() if flag not in named), *rest]


def _divided(argv: Sequence[str], options: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The words of a verb, and its flags, with those written out that are its own; several of one have commas."""
    words, rest, unread, places = [], [], iter(argv), dict[str, int]()
    for word in unread:
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            words.append(word)
            continue
        if not equals and (name in options or (name in flags.FLAGS and not flags.FLAGS[name].boolean)):
            value = next(unread, "")
            word = f"--{name}={value}"
        if name in places:
            rest[places[name]] += f",{value}"
        else:
            places |= {name: len(rest)} if name in options else {}
            rest.append(f"--{options[name]}{value}" if name in options else word)
    return words, rest


def _newest() -> str:
    """The newest run below runs/ whose documents are indexed; where there is none, that which `own` makes."""
    indexed = Path("runs").glob("*/index/corpus")
    newest = max(indexed, key=lambda folder: folder.stat().st_mtime, default=Path("runs/own/index/corpus"))
    return str(newest.parents[1])

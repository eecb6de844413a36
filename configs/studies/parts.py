"""Rows of tables, and claims, as the studies' reports name them; and the run that most studies begin with."""

import itertools
from collections.abc import Sequence
from typing import Any

from ml_collections import ConfigDict


def prepared(config: ConfigDict, study: ConfigDict) -> ConfigDict:
    """The config of a run that prepares the corpus of a study, and holds nothing out."""
    config.stages = ("prepare",)
    config.corpus, config.vocab = study.get_ref("corpus"), study.get_ref("vocab")
    config.prepare.held_out = 0.0
    return config


def row(labels: list[str], cells: list[dict[str, Any]], paper: Sequence[float] = ()) -> dict[str, Any]:
    """A row of a table, with the paper's numbers in its first cells."""
    return dict(labels=labels, cells=[c | dict(paper=p) for c, p in itertools.zip_longest(cells, paper)])


def claim(share: str, text: str, better: dict[str, Any], worse: dict[str, Any]) -> dict[str, Any]:
    """That one cell is higher than another, with a share of the labels, in percent."""
    return dict(text=f"{share} %: {text}", better=better, worse=worse)

"""Questions that a report shows: those that a system loses and wins most against BM25, with their first hits."""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from retrieval.data.sets import beir
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.evaluation import per_query
from retrieval.evaluation.metrics import is_share
from retrieval.evaluation.per_query import PerQuery
from retrieval.evaluation.run_report import Table
from retrieval.identifiers import in_run_file

_SHOWN = 5  # questions of a kind
_CHARACTERS = 160  # of a text
_METRICS = ("RR", "nDCG@10", "RR@10")  # those that tell places apart, the first that was measured
_SYSTEMS = ("dense", "hybrid", "trained")
_OWN_LISTS = "within-article"  # a rule that ranks the passages of an article alone, which no run file holds


def questions(sets: Path, evaluated: Path) -> Iterator[Table]:
    """A table for every set and rule whose values are known for each question.

    Args:
      sets: a BEIR folder for every set.
      evaluated: the work directory with `per_query` and `runs`.
    """
    for path in sorted((evaluated / per_query.FOLDER).glob("*/*.npz")):
        folder, values = sets / path.parent.name, per_query.read(path)
        if not values or path.stem == _OWN_LISTS or not (folder / "corpus.jsonl").is_file():
            continue
        systems = [name for name in values.systems if name != "bm25"]
        metrics = list(filter(is_share, values.metrics))
        if systems and metrics:
            system = next((name for name in _SYSTEMS if name in systems), systems[0])
            metric = next((name for name in _METRICS if name in metrics), metrics[-1])
            yield _table(f"{path.parent.name}, {path.stem}", folder, evaluated, values, system, metric)


def _table(about: str, folder: Path, evaluated: Path, values: PerQuery, system: str, metric: str) -> Table:
    """The questions of one set by one rule."""
    values_of_system = values.of(system, metric) or {}
    other = values.of("bm25", metric)
    shown = dict(_chosen(values_of_system, other))
    runs = [system] if other is None else [system, "bm25"]
    hits = [_first_hits(evaluated / "runs" / folder.name / f"{name.replace(' ', '_')}.trec", shown) for name in runs]
    texts = _texts(folder / "corpus.jsonl", {hit for of in hits for hit in of.values()})
    asked = beir.read_queries(folder / "queries.jsonl")
    rows = [
        [
            f"{kind}: {_cut(asked.get(id, id))}",
            *(texts.get(of.get(id, "")) for of in hits),
            *(f"{100 * of[id]:.2f}" for of in (values_of_system, other) if of is not None),
        ]
        for id, kind in shown.items()
    ]
    header = ["question", *(f"first hit of {name}" for name in runs), *(f"{metric} of {name}" for name in runs)]
    notes = f"Questions where {system} is furthest below and above BM25, and those where it is worst, by {metric}."
    return Table(f"Questions of {about}", header, rows, notes, left=1 + len(runs))


def _chosen(values: Mapping[str, float], other: Mapping[str, float] | None) -> Iterator[tuple[str, str]]:
    """Ids and why they are shown. The last reason of an id counts."""
    ids = list(values)
    values_Q = np.array([values[id] for id in ids])
    yield from ((ids[place], "worst") for place in np.argsort(values_Q, kind="stable")[:_SHOWN])
    if other is None:
        return
    above_Q = values_Q - np.array([other.get(id, values[id]) for id in ids])
    for kind, sign in (("lost", 1), ("won", -1)):
        order = np.argsort(sign * above_Q, kind="stable")[:_SHOWN]
        yield from ((ids[place], kind) for place in order if sign * above_Q[place] < 0)


def _first_hits(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Question -> its first candidate as run files have it; nothing where the run wrote no lists."""
    if not path.is_file():
        return {}
    asked = {in_run_file(id): id for id in wanted}
    with path.open(encoding="utf-8") as file:
        fields = (line.split() for line in file)
        return {asked[of[0]]: of[2] for of in fields if of[3] == "1" and of[0] in asked}


def _texts(path: Path, wanted: Collection[str]) -> dict[str, str]:
    """Texts of the candidates that run files name so."""
    with CandidateTexts(path, {*wanted, *map(unquote, wanted)}) as candidates:
        texts = {in_run_file(id): candidates[row] for id, row in candidates.row_of.items()}
    return {id: _cut(f"{text.title}: {text.text}" if text.title else text.text) for id, text in texts.items()}


def _cut(text: str) -> str:
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}…"

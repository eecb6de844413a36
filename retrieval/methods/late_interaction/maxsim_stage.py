"""The stage `maxsim`: the results of systems in the order of exact MaxSim, those of MUVERA's vectors among them.

Whatever finds the first results, their scores are the same. BM25's, ranked so, are the baseline of every index of
token vectors (MacAvaney & Tonellotto 2024).
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import devices
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.evaluation import result_files
from retrieval.methods.late_interaction.maxsim_search import best, of_candidates, ranked
from retrieval.methods.late_interaction.muvera import Muvera
from retrieval.methods.late_interaction.token_encoder import Queries
from retrieval.methods.late_interaction.token_store import FOLDER as TOKENS
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.methods.late_interaction.trained import SYSTEM
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import costs, ranked_lists
from retrieval.runs.ranking.collection import set_names
from retrieval.runs.ranking.ranked_lists import Ranking, RunFile, others
from retrieval.search.exact import ExactIndex, recall
from retrieval.stages import evaluate

FOLDER = result_files.LATE
_FIELDS = ("systems", "depth", "exact", "fde")


def maxsim(run: Run) -> dict[str, Any]:
    """Writes `late/`: runs, `results.json` and `per_query/`; returns what the report says of each search."""
    fields, folder, metrics = run.config.late, run.folder / FOLDER, run.config.evaluate.metrics
    names = set_names(run.sets)
    runs = ranked_lists.evaluated_runs(run, names, dict.fromkeys(fields.systems, "late.systems"))
    rows, summary, encoded = [], {}, details(run.owner("tokens"), "tokens") or {}
    for name in names:
        place = run.sets / name
        of_set = encoded.get(name, {})
        costly = {key: of_set[key] for key in (costs.BYTES, costs.QUERY, costs.PASSAGE) if key in of_set}
        opened = _Opened.of(beir.read_judged(place), run.owner("tokens").folder / TOKENS / name)
        scores = []
        for value, group in itertools.groupby(_rank(run.config, opened, runs.get(name, {})), lambda each: each[0]):
            lists = [ranking for _, ranking in group]
            for ranking in lists:
                ranked_lists.write_run(folder / "runs" / name, value, ranking)
                of_query = round(1000 * (ranking.seconds or 0) / max(1, len(value.queries)), 3)
                summary[f"{name}, {ranking.system}"] = {"milliseconds": of_query, **costly, **ranking.notes}
            scores += evaluate.measure(place, value, lists, metrics, fields.depth)
        rows += evaluate.write_values(folder, name, scores)
    files.write_json(folder / result_files.NAME, rows)
    return summary


class _Opened(NamedTuple):
    """A set, its vectors, and the tokens that a candidate has at most."""

    value: Judged
    queries: Queries
    documents: TokenStore
    longest: int

    @classmethod
    def of(cls, value: Judged, folder: Path) -> "_Opened":
        """Reads them from a set's folder of vectors.

        Raises:
          UserError: they are older than the set, or damaged.
        """
        queries, documents = TokenStore(folder, "queries"), TokenStore(folder, "candidates")
        queries.check("queries", list(value.queries))
        documents.check("candidates", value.candidates)
        return cls(value, queries.as_queries(), documents, max(1, int(documents.sizes.max(initial=1))))

    def best_of(self, rows_QK: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
        """Some candidates of each query in the order of their scores."""
        return best(of_candidates(self.queries, self.documents, rows_QK, self.longest), rows_QK, depth)


def _rank(config: ConfigDict, opened: _Opened, runs: dict[str, RunFile]) -> Iterator[tuple[Judged, Ranking]]:
    """The lists of a set, each with the set, whose candidates may be more where a run names more."""
    fields, judged = config.late, opened.value
    value, lists = ranked_lists.read([*runs.values()], judged)
    for each in lists:
        _, rows_QK = others(each.lists, value, fields.depth)
        ranked_lists.check_texts(opened.documents, value, [int(rows_QK.max(initial=-1))])
        began = time.perf_counter()
        lists_QK = opened.best_of(rows_QK, fields.depth)
        seconds, notes = time.perf_counter() - began, {costs.AFTER: each.system}
        yield value, Ranking(f"{each.system}+{SYSTEM}@{fields.depth}", *lists_QK, seconds, notes=notes)
    whole, depth = None, min(fields.depth + bool(judged.own), len(opened.documents))
    if fields.exact:
        began = time.perf_counter()
        whole = others(ranked(opened.queries, opened.documents, opened.longest, depth), judged, fields.depth)
        yield judged, Ranking(SYSTEM, *whole, time.perf_counter() - began)
    for size in fields.fde:
        yield judged, _by_fde(config, opened, size, depth, whole[1] if whole else None)


def _by_fde(config: ConfigDict, opened: _Opened, size: str, depth: int, whole_QK: np.ndarray | None) -> Ranking:
    """The list of MUVERA's vectors of a size.

    Args:
      depth: results that these find.
      whole_QK: the rows of exact search, to measure recall.
    """
    muvera = Muvera(opened.documents.dimensions, *map(int, size.split("x")), seed=config.seed)
    documents_NX = np.stack([muvera.document(opened.documents[row]) for row in range(len(opened.documents))])
    index = ExactIndex(documents_NX)
    queries_QX = np.stack([muvera.query(vectors[counts]) for vectors, counts in zip(*opened.queries)])
    began = time.perf_counter()
    _, first_QK = others(index.search(queries_QX, depth), opened.value, config.late.depth)
    scores_QK, rows_QK = opened.best_of(first_QK, config.late.depth)
    seconds, bytes_each = time.perf_counter() - began, opened.documents.bytes / len(opened.documents)
    notes: dict[str, Any] = {costs.BYTES: round(bytes_each + 4 * muvera.size, 1)}
    if whole_QK is not None:
        notes |= {f"recall of the exact {k}": round(recall(whole_QK[:, :k], first_QK), 4) for k in (1, 10, 100)}
    return Ranking(f"muvera-{size}+{SYSTEM}@{config.late.depth}", scores_QK, rows_QK, seconds, notes=notes)


def check_settings(fields: ConfigDict) -> None:
    """Checks that something is ranked, by the group `late` of the config."""
    if not (fields.systems or fields.exact or fields.fde):
        raise UserError("config.late.systems=() ranks nothing: name one or more, or set config.late.exact=True")


def check(run: Run) -> None:
    """Checks that there are runs to rank, long enough ones."""
    fields = run.config.late
    if fields.systems:
        ranked_lists.check_evaluated(run, "maxsim", fields.depth, f"late.depth={fields.depth}")


def read(config: ConfigDict) -> Sequence[str | Read]:
    """What the stage reads: vectors, and the runs of `evaluate` where some are ranked."""
    return [
        Read("sets", must_match=True),
        Read("tokens", required=True),
        *(["evaluate"] if config.late.systems else []),
    ]


STAGES.register(
    "maxsim",
    Stage(
        maxsim,
        check_config=(of_fields(check_settings, "late"),),
        check=(check, devices.check),
        fields=("seed", *(f"late.{name}" for name in _FIELDS), "evaluate.metrics"),
        reads=read,
        writes=(FOLDER,),
    ),
)

"""The stage `maxsim`: the results of systems in the order of exact MaxSim, and what centroids find.

Whatever finds the first results, their scores are the same. BM25's, ranked so, are the baseline of every index of
token vectors (MacAvaney & Tonellotto 2024).
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.runtime import devices
from retrieval.config.fields import of_fields
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.evaluation import result_files
from retrieval.methods.late_interaction.maxsim_search import best, of_candidates, probe_centroids, ranked
from retrieval.methods.late_interaction.token_store import FOLDER as TOKENS
from retrieval.methods.late_interaction.token_store import TokenStore
from retrieval.methods.late_interaction.trained import SYSTEM
from retrieval.runs.pipeline.records import details
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import costs, ranked_lists
from retrieval.runs.ranking.collection import set_names
from retrieval.runs.ranking.ranked_lists import Ranking, RunFile, others
from retrieval.search.exact import recall
from retrieval.stages import evaluate

FOLDER = result_files.LATE


def maxsim(run: Run) -> dict[str, Any]:
    """Writes `late/`: runs, `results.json` and `per_query/`; returns what the report says of each search."""
    fields, folder, tokens = run.config.late, run.folder / FOLDER, run.owner("tokens")
    names, encoded = set_names(run.sets), details(tokens, "tokens") or {}
    if not names:  # a model that is trained and not tested
        return {}
    runs = ranked_lists.evaluated_runs(run, names, dict.fromkeys(fields.systems, "late.systems"))
    rows, summary = [], {}
    for name in names:
        counted = encoded.get(name, {})
        costly = {key: counted[key] for key in (costs.BYTES, costs.QUERY, costs.PASSAGE) if key in counted}
        value, rankings = _rank(run.config, beir.read_judged(run.sets / name), tokens.folder / TOKENS / name, runs)
        for ranking in rankings:
            ranked_lists.write_run(folder / "runs" / name, value, ranking)
            of_query = round(1000 * (ranking.seconds or 0) / max(1, len(value.queries)), 3)
            summary[f"{name}, {ranking.system}"] = {"milliseconds": of_query, **costly, **ranking.notes}
        scores = evaluate.measure(run.sets / name, value, rankings, run.config.evaluate.metrics, fields.depth)
        rows += evaluate.write_values(folder, name, scores)
    files.write_json(folder / result_files.NAME, rows)
    return summary


def _rank(
    config: ConfigDict, judged: Judged, folder: Path, runs: Mapping[str, Mapping[str, RunFile]]
) -> tuple[Judged, list[Ranking]]:
    """The lists of a set, and the set, with more candidates where a run names more.

    Args:
      folder: of the vectors of the set.
      runs: by set and system.
    """
    fields, rankings = config.late, []
    value, lists = ranked_lists.read([*runs.get(judged.name, {}).values()], judged)
    stored, documents = TokenStore(folder, "queries"), TokenStore(folder, "candidates")
    stored.check("queries", list(judged.queries))
    documents.check("candidates", judged.candidates)
    queries, longest = stored.as_queries(), max(1, int(documents.sizes.max(initial=1)))

    def best_of(rows_QK: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return best(of_candidates(queries, documents, rows_QK), rows_QK, fields.depth)

    for each in lists:
        _, rows_QK = others(each.lists, value, fields.depth)
        ranked_lists.check_texts(documents, value, [int(rows_QK.max(initial=-1))])
        began, name = time.perf_counter(), f"{each.system}+{SYSTEM}@{fields.depth}"
        lists_QK, notes = best_of(rows_QK), {costs.AFTER: each.system}
        rankings.append(Ranking(name, *lists_QK, time.perf_counter() - began, notes=notes))
    whole_QK, depth = None, min(fields.depth + bool(judged.own), len(documents))
    if fields.exact:
        began = time.perf_counter()
        scores_QK, whole_QK = others(ranked(queries, documents, longest, depth), judged, fields.depth)
        rankings.append(Ranking(SYSTEM, scores_QK, whole_QK, time.perf_counter() - began))
    if fields.probes:
        lists = documents.centroid_lists()
        began, name = time.perf_counter(), f"plaid-{fields.probes}+{SYSTEM}@{fields.depth}"
        first_QK = probe_centroids(lists, queries, fields.probes, depth)
        _, first_QK = others((np.zeros(first_QK.shape, np.float32), first_QK), judged, fields.depth)
        lists_QK, seconds = best_of(first_QK), time.perf_counter() - began
        notes: dict[str, Any] = {costs.BYTES: round((documents.bytes + lists.bytes) / len(documents), 1)}
        if whole_QK is not None:
            notes |= {f"recall of the exact {k}": round(recall(whole_QK[:, :k], first_QK), 4) for k in (1, 10, 100)}
        rankings.append(Ranking(name, *lists_QK, seconds, notes=notes))
    return value, rankings


def check_settings(fields: ConfigDict) -> None:
    """Checks that something is ranked, by the group `late` of the config."""
    if not (fields.systems or fields.exact or fields.probes):
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
        fields=("seed", "late.systems", "late.depth", "late.exact", "late.probes", "evaluate.metrics"),
        reads=read,
        writes=(FOLDER,),
    ),
)

"""The stage `answer`: the answers that a reader finds in the first passages of any systems, and how many are right.

The system 'tuned' is what a reader's own question tower retrieves, among the embeddings that it was trained with.
"""

import collections
import functools
import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.api.answering import MODEL
from retrieval.common import files
from retrieval.common.errors import UserError, unknown_name
from retrieval.common.runtime import hosts
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.evaluation import exact_match, result_files
from retrieval.methods.reader import recipe
from retrieval.methods.reader.trained import READERS, Span, SpanFinder, ranked
from retrieval.runs.pipeline import records
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Stage
from retrieval.runs.ranking import indexes, pod_search, ranked_lists
from retrieval.runs.ranking.collection import TRAINED, Collection, open_collection, set_names
from retrieval.runs.ranking.indexes import Together
from retrieval.runs.ranking.ranked_lists import Ranking, others
from retrieval.search import encoding
from retrieval.search.index_kind import EXACT, INDEXES
from retrieval.stages import evaluate

_log = logging.getLogger(__name__)

_PAIRS = 8192  # of a file of spans at most
FOLDER, SPLIT, TUNED = result_files.ANSWERED, "read", "tuned"
WITHOUT, CUT, READ = "questions without an answer", "paragraphs cut to a row", "paragraphs"
# The weights of the reader that ProQA chooses from.
WEIGHTS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0)


class _Read(NamedTuple):
    """What a reader found in the passages of a system, by their rows [Q, K]: all spans of each question."""

    system: str
    value: Judged
    rows: np.ndarray
    spans: list[list[Span]]


def answer(run: Run) -> dict[str, Any]:
    """Writes `answered/`: `SET/SYSTEM.jsonl`, `results.json` and `per_query/`; returns weights and counts."""
    fields, trainer = run.config.answer, READERS.trainer(run, run.config.answer.model, MODEL)
    names = _sets(fields, run.sets)
    systems = [system for system in fields.systems if system != TUNED]
    runs = ranked_lists.evaluated_runs(run, names, dict.fromkeys(systems, "answer.systems"))
    tuned = tuned_collections(trainer, names) if TUNED in fields.systems else {}
    finder = READERS.read(run, fields.model, MODEL)
    counts: dict[str, Counter] = {}
    read: list[_Read] = []
    for name in [name for name in names if name in runs or name in tuned]:
        judged = beir.read_judged(run.sets / name)
        value, lists = ranked_lists.read([*runs.get(name, {}).values()], judged)
        if name in tuned:
            lists.append(tuned_lists(trainer, finder, tuned[name], judged, fields.paragraphs))
        counts[name] = Counter()
        read += _read_set(run, value, lists, finder, counts[name])
    if not read:
        raise UserError(f"config.answer.systems={fields.systems}: nothing to read for any set: name other systems")
    configured = finder.weight(fields.weight), 0
    weights = {
        system: _chosen_weight(read, system, fields.validation) if fields.validation else configured
        for system in dict.fromkeys(each.system for each in read)
    }
    return hosts.on_first(lambda: _write(run.folder / FOLDER, read, weights, counts))


def _sets(fields: ConfigDict, sets: Path) -> list[str]:
    """The sets whose questions are answered; `fields` are those of `config.answer`."""
    wanted, names, validation = source_paths.split(fields.sets), set_names(sets), fields.validation
    if unknown := [name for name in wanted if name not in names]:
        raise unknown_name("set in config.answer.sets", unknown[0], names)
    chosen = [name for name in names if name in wanted or not wanted]
    if validation and (validation not in chosen or not beir.answers_file(sets / validation)):
        way = f"name one of {', '.join(chosen)}, or set config.answer.weight"
        raise UserError(f"config.answer.validation={validation}: no set whose questions have answers: {way}")
    return chosen


def _read_set(run: Run, value: Judged, lists: list[Ranking], finder: SpanFinder, counts: Counter) -> Iterator[_Read]:
    """The spans of the first passages of every system; a passage of a question is read once.

    What the reader says of passages is kept in shards, so that a stage which was killed goes on.
    """
    fields, sizes, store = run.config.answer, run.config.encode, run.folder / FOLDER / "spans" / value.name
    first = [others(each.lists, value, fields.paragraphs) for each in lists]
    none = {(q, -1) for q in range(len(value.queries))}
    pairs = sorted({(q, row) for _, rows_QK in first for q, rows in enumerate(rows_QK.tolist()) for row in rows} - none)
    if not pairs:
        raise UserError(f"set '{value.name}': the runs of {', '.join(fields.systems)} have no passage to read")
    questions = list(map(finder.rows.begin, value.queries.values()))
    with CandidateTexts(run.sets / value.name / "corpus.jsonl") as texts:
        ranked_lists.check_texts(texts, value, [row for _, row in pairs])

        def rows_of(members: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
            return [[finder.rows.of(questions[q], texts[row]).ids] for q, row in members]

        members = ((f"{q} {row}", (q, row)) for q, row in pairs)
        options = {"batch_tokens": sizes.batch_tokens, "longest": finder.rows.row, "multiple": finder.mesh.size}
        options["shard_size"] = min(sizes.shard_size, _PAIRS)
        encoding.encode(store, "pairs", members, len(pairs), rows_of, finder, **options)
        spans_of = {}
        for (q, row), values in zip(pairs, encoding.load_of_all_hosts(store, "pairs")):
            laid = finder.rows.of(questions[q], texts[row])
            counts.update({READ: 1, CUT: int(laid.cut > 0)})
            spans_of[q, row] = finder.spans_of(values, laid, texts[row].text, 0, 0.0)
    for each, (scores_QK, rows_QK) in zip(lists, first):
        spans = [
            [
                span._replace(rank=rank, retriever=span.retriever if finder.selects else score)
                for rank, (row, score) in enumerate(zip(rows_K, scores_K))
                if row >= 0
                for span in spans_of[q, row]
            ]
            for q, (rows_K, scores_K) in enumerate(zip(rows_QK.tolist(), scores_QK.tolist()))
        ]
        yield _Read(each.system, value, rows_QK, spans)


def _chosen_weight(read: Sequence[_Read], system: str, validation: str) -> tuple[float, int]:
    """The weight of the reader that a validation set chooses for a system, and by how many questions."""
    of_set = [each for each in read if (each.system, each.value.name) == (system, validation)]
    questions = ((each.value, id, spans) for each in of_set for id, spans in zip(each.value.queries, each.spans))
    if not (known := [question for question in questions if question[1] in question[0].answers]):
        what = f"that set has no run of '{system}', or no answers"
        raise UserError(f"config.answer.validation={validation}: {what}: name another, or set config.answer.weight")
    return best_weight(known), len(known)


def best_weight(questions: Sequence[tuple[Judged, str, Sequence[Span]]]) -> float:
    """The weight in WEIGHTS whose answers are best by the exact match, of equal ones the largest.

    Args:
      questions: the set, the id and the spans of each. Of regular expressions the anchored match counts.
    """

    def right(weight: float) -> float:
        scores = (_scores(value, id, _text(ranked(spans, weight))) for value, id, spans in questions)
        return sum(next(iter(of.values())) for of in scores)

    return max(WEIGHTS, key=lambda weight: (right(weight), weight))


def _text(spans: Sequence[Span]) -> str:
    return spans[0].text if spans else ""


def _scores(value: Judged, id: str, text: str) -> dict[str, float]:
    """Metric -> value of an answer to a question."""
    known = value.answers[id]
    return exact_match.scores(text, known.values, known.are_patterns, value.queries[id])


def _write(
    folder: Path, read: Sequence[_Read], weights: Mapping[str, tuple[float, int]], counts: Mapping[str, Counter]
) -> dict[str, Any]:
    """Writes answers and metrics; returns the summary of the report."""
    results, summary, scores = [], {}, collections.defaultdict(list)
    for each in read:
        (weight, validation), name = weights[each.system], each.value.name
        best = [ranked(spans, weight) for spans in each.spans]
        files.write_text(folder / name / f"{ranked_lists.tag(each.system)}.jsonl", "".join(_lines(each, best)))
        if without := sum(not spans for spans in best):
            _log.warning("answer: %s, %s: %d %s", name, each.system, without, WITHOUT)
        own = {"weight": weight, "validation": validation, WITHOUT: without}
        summary[f"{name}, {each.system}"] = own | counts[name]
        answered = [(id, _text(spans)) for id, spans in zip(each.value.queries, best) if each.value.answers.get(id)]
        values = [_scores(each.value, id, text) for id, text in answered]
        metrics = {metric: np.array([of[metric] for of in values]) for metric in (values[0] if values else ())}
        ranking = Ranking(f"{each.system}+reader", np.zeros((0, 0)), each.rows)
        scores[name].append(evaluate.Scores(ranking, SPLIT, [id for id, _ in answered], metrics))
    for name, of_set in scores.items():
        results += evaluate.write_values(folder, name, of_set)
        if cut := counts[name][CUT]:
            _log.warning("answer: %s: %d of %d %s of the reader", name, cut, counts[name][READ], CUT)
    files.write_json(folder / result_files.NAME, results)
    return summary


def _lines(read: _Read, best: Sequence[Sequence[Span]]) -> Iterator[str]:
    """A line for every question, best answer first."""
    for (id, question), rows_K, spans in zip(read.value.queries.items(), read.rows, best):
        answers = [
            {"answer": span.text, "docid": read.value.candidates[rows_K[span.rank]]}
            | {"start": span.start, "end": span.end}
            | {name: round(getattr(span, name), 6) for name in ("score", "reader", "retriever")}
            for span in spans[:5]
        ]
        yield json.dumps({"_id": id, "question": question, "answers": answers}, ensure_ascii=False) + "\n"


def tuned_collections(trainer: Run, names: Sequence[str]) -> dict[str, Collection]:
    """The sets by name whose passages the towers of a reader have embedded; `trainer` is the run that trained it."""
    source = _embedded_by(trainer)
    owner = source.owner("encode")
    hosts.on_first(lambda: bool(records.verify_written(owner.folder, ["embeddings"])))
    embedded = {each.name: each for each in (open_collection(source, name) for name in names) if each.has_embeddings()}
    if not embedded:
        what = f"{owner.display_path} has embedded none of the sets {', '.join(names)}"
        raise UserError(f"config.answer.systems names '{TUNED}', and {what}: name a base that has, or another system")
    return embedded


def tuned_lists(trainer: Run, reader: SpanFinder, collection: Collection, value: Judged, depth: int) -> Ranking:
    """The first candidates of every query of a set, without the query itself.

    In a pod the first host embeds the queries, each host has its share of the candidates, and all get the lists.
    """
    collection.check_embeddings(value)
    source, towers = _embedded_by(trainer), recipe.towers_of(trainer).config

    def search(together: Together | None) -> tuple[np.ndarray, np.ndarray]:
        texts = list(value.queries.values())
        queries_QE = recipe.embedded(reader.model, towers, reader.config, reader.vocabulary, texts)
        deep, exact = min(depth + bool(value.own), len(value.candidates)), INDEXES[EXACT]
        shared = together(exact, collection, TRAINED) if together else None
        index = indexes.open_dense(exact, collection, {}) if shared is None else shared
        return others(index.search(queries_QE, deep), value, depth)

    opened = functools.partial(open_collection, source)
    return Ranking(TUNED, *(search(None) if hosts.is_alone() else pod_search.to_all(opened, search)))


def _embedded_by(trainer: Run) -> Run:
    """The run as the reader's stage `spans` saw it."""
    return trainer.owner("spans").as_seen_by("spans")


def _searched(run: Run) -> list[Run]:
    """The run whose embeddings the reader's question tower searches, where it does."""
    fields = run.config.answer
    is_tuned = TUNED in fields.systems
    return [_embedded_by(READERS.trainer(run, fields.model, MODEL)).owner("encode")] if is_tuned else []


def fetch(run: Run) -> None:
    """Copies down the reader, and what its question tower searches, where these are on a store."""
    READERS.fetch(run, run.config.answer.model, MODEL)
    for searched in _searched(run):
        if searched.remote:
            searched.remote.get(["embeddings"])


def inputs(run: Run) -> list[Path]:
    """The records of the reader, and of the embeddings that its question tower searches."""
    own = READERS.inputs(run, run.config.answer.model, MODEL)
    return [*own, *(each.own_record("encode") for each in _searched(run))]


def check(run: Run) -> None:
    """Checks that there is a reader, and runs to read."""
    fields = run.config.answer
    trainer = READERS.check(run, fields.model, MODEL)
    if TUNED in fields.systems and not trainer.config.train.early:
        way = "set config.train.early=True there, or name another system"
        raise UserError(f"config.answer.systems: '{TUNED}': {trainer.display_path} trains no question tower: {way}")
    if set(fields.systems) - {TUNED}:
        ranked_lists.check_evaluated(run, "answer", fields.paragraphs, f"answer.paragraphs={fields.paragraphs}")


STAGES.register(
    "answer",
    Stage(
        answer,
        check=(check,),
        fields=("answer", "encode.shard_size"),
        also_reads=("encode.batch_tokens",),
        reads=of_fields(ranked_lists.reads_runs, "answer.model"),
        files=inputs,
        fetch=fetch,
        writes=(FOLDER,),
        on_every_host=True,
    ),
)

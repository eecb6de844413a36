"""The stage `answer`: the answers that a reader finds in the first passages of any systems, and how many are right."""

import collections
import functools
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import beir
from retrieval.data.sets.beir import Judged
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import exact_match, result_files
from retrieval.methods.reader import answer_choice, reader_rows, readers, tuned_lists
from retrieval.methods.reader.answer_choice import Span
from retrieval.methods.reader.chosen_weight import MODEL, VALIDATION, WEIGHT, told_of
from retrieval.methods.reader.readers import Reader, SpanFinder
from retrieval.methods.reader.tuned_lists import TUNED
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.runtime import hosts
from retrieval.search import encoding
from retrieval.stage_outputs import Run
from retrieval.stages import evaluate, evaluated_runs, run_files
from retrieval.stages.collection import set_names, train_unless
from retrieval.stages.rankings import Ranking, others
from retrieval.stages.run_files import Lists

_log = logging.getLogger(__name__)

FOLDER = result_files.ANSWERED
SPLIT = "read"
WITHOUT, CUT, READ = "questions without an answer", "paragraphs cut to a row", "paragraphs"


class _Read(NamedTuple):
    """What a reader found in the passages of a system.

    Attributes:
      rows: [Q, K] of the passages.
      spans: of each question, all.
    """

    system: str
    value: Judged
    rows: np.ndarray
    spans: list[list[Span]]


def answer(run: Run) -> dict[str, Any]:
    """Writes `answered/`: `SET/SYSTEM.jsonl`, `results.json` and `per_query/`; returns weights and counts."""
    fields, folder = run.config.answer, run.folder / FOLDER
    names = _sets(source_paths.split(fields.sets), set_names(run.sets))
    if fields.validation:
        _check_validation(fields.validation, names, run.sets)
    systems = [system for system in fields.systems if system != TUNED]
    found = evaluated_runs.by_set(run, names, dict.fromkeys(systems, "answer.systems"))
    trainer = _trainer(run)
    tuned = tuned_lists.collections(trainer, names) if TUNED in fields.systems else {}
    reader = readers.open_reader(run, fields.model, MODEL)
    weight = reader.weight(fields.weight, fields.sums and not fields.validation)
    finder = SpanFinder(reader, fields.spans)
    sizes = {"shard_size": fields.shard_size, "batch_tokens": run.config.encode.batch_tokens}
    counts: dict[str, collections.Counter] = {}
    read: list[_Read] = []
    for name in [name for name in names if name in found or name in tuned]:
        counts[name] = collections.Counter()
        judged = beir.read_judged(run.sets / name)
        value, lists = run_files.read([*found.get(name, {}).values()], judged, run_files.ALLOW)
        if name in tuned:
            lists.append(tuned_lists.search(trainer, reader, tuned[name], judged, fields.paragraphs))
        place = run.sets / name, folder / "spans" / name
        read += _read_set(*place, value, lists, reader, finder, fields, sizes, counts[name])
    weights = _weights(read, fields, weight)
    return hosts.on_first(lambda: _finish(folder, run.sets, read, weights, fields.sums, counts))


def _sets(wanted: Sequence[str], names: Sequence[str]) -> list[str]:
    """The sets whose questions are answered.

    Raises:
      UserError: one is not there.
    """
    for name in wanted:
        if name not in names:
            raise unknown_name("set in config.answer.sets", name, names)
    return [name for name in names if name in wanted or not wanted]


def _check_validation(name: str, names: Sequence[str], sets: Path) -> None:
    """Checks the set that is to choose the weight, before all its passages are read.

    Args:
      names: of the sets whose questions are answered.

    Raises:
      UserError: it is not among them, or has no answers.
    """
    if name not in names:
        left_out = name in set_names(sets)
        raise (
            UserError(f"config.answer.validation={name}: config.answer.sets leaves that set out; name it there too")
            if left_out
            else unknown_name("set in config.answer.validation", name, names)
        )
    if not beir.answers_file(sets / name):
        raise UserError(
            f"config.answer.validation={name}: its questions have no answers: name a set that has some, or set "
            "config.answer.weight"
        )


def _read_set(
    folder: Path,
    store: Path,
    value: Judged,
    lists: Sequence[Lists],
    reader: Reader,
    finder: SpanFinder,
    fields: ConfigDict,
    sizes: Mapping[str, int],
    counts: collections.Counter,
) -> Iterator[_Read]:
    """The spans of the first passages of every system; a passage of a question is read once.

    Args:
      folder: of the set.
      store: where what the reader says is kept.
      lists: of the systems.
      fields: of `config.answer`.
      sizes: of files and batches.
    """
    first = [others(each.scores, each.rows, value.queries, value.own, fields.paragraphs) for each in lists]
    pairs = sorted(
        {(q, row) for _, rows_QK in first for q, rows in enumerate(rows_QK.tolist()) for row in rows if row >= 0}
    )
    if not pairs:
        raise UserError(f"set '{value.name}': the runs of {', '.join(fields.systems)} have no passage to read")
    lengths, vocabulary = reader.lengths, reader.vocabulary
    questions = [reader_rows.question_tokens(vocabulary, text, lengths) for text in value.queries.values()]
    with CandidateTexts(folder / "corpus.jsonl") as texts:
        if missing := [row for _, row in pairs if row >= len(texts)]:
            raise UserError(
                f"{folder / 'corpus.jsonl'}: no text of the candidate '{value.candidates[missing[0]]}', which a run "
                "names: take a set with all texts"
            )

        def rows_of(members: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
            return [[reader_rows.row_of(vocabulary, questions[q], texts[row], lengths).ids] for q, row in members]

        members = ((f"{q} {row}", (q, row)) for q, row in pairs)
        options = {"longest": lengths.row, "multiple": finder.mesh.size, **sizes}
        encoding.encode(store, "pairs", members, len(pairs), rows_of, finder, **options)
        values_PM = encoding.load_of_all_hosts(store, "pairs")
        rows = {}
        for (q, row), values in zip(pairs, values_PM):
            text = texts[row].text
            laid = reader_rows.row_of(vocabulary, questions[q], texts[row], lengths)
            counts[READ] += 1
            counts[CUT] += laid.cut > 0
            rows[q, row] = readers.spans_of(values, laid, text, 0, 0.0, reader.selects)
    for each, (scores_QK, rows_QK) in zip(lists, first):
        spans = [_of_question(q, rows_QK[q], scores_QK[q], rows, reader.selects) for q in range(len(rows_QK))]
        yield _Read(each.system, value, rows_QK, spans)


def _of_question(
    q: int, rows_K: np.ndarray, scores_K: np.ndarray, found: Mapping[tuple[int, int], list[Span]], selects: bool
) -> list[Span]:
    """The spans of all passages of a question, with rank and score of the passage in this system's list."""
    return [
        span._replace(rank=rank, retriever=span.retriever if selects else score)
        for rank, (row, score) in enumerate(zip(rows_K.tolist(), scores_K.tolist()))
        if row >= 0
        for span in found[q, row]
    ]


def _weights(read: Sequence[_Read], fields: ConfigDict, weight: float) -> dict[str, tuple[float, int]]:
    """The weight of the reader by system, and how many questions chose it.

    Args:
      fields: of `config.answer`.
      weight: where no set chooses.

    Raises:
      UserError: the set that is to choose has no run, or no answers.
    """
    if not fields.validation:
        return {each.system: (weight, 0) for each in read}
    weights = {}
    for system in dict.fromkeys(each.system for each in read):
        of_set = [each for each in read if each.system == system and each.value.name == fields.validation]
        if not of_set or not of_set[0].value.answers:
            raise UserError(
                f"config.answer.validation={fields.validation}: no set of that name with answers has a run of "
                f"'{system}': name one of this run's sets, or set config.answer.weight"
            )
        ids, spans = _answered(of_set[0])
        right = functools.partial(_right, of_set[0].value, ids)
        weights[system] = answer_choice.best_weight(spans, right, fields.sums)[0], len(ids)
    return weights


def _right(value: Judged, ids: Sequence[str], number: int, text: str) -> float:
    """The exact match of an answer to the question of a number; of regular expressions the anchored one."""
    known, question = value.answers[ids[number]], value.queries[ids[number]]
    return next(iter(exact_match.scores(text, known.values, known.are_patterns, question).values()))


def _answered(read: _Read) -> tuple[list[str], list[list[Span]]]:
    """The questions whose answers are known, and their spans."""
    known = [(id, spans) for id, spans in zip(read.value.queries, read.spans) if id in read.value.answers]
    return [id for id, _ in known], [spans for _, spans in known]


def _finish(
    folder: Path,
    sets: Path,
    read: Sequence[_Read],
    weights: Mapping[str, tuple[float, int]],
    sums: bool,
    counts: Mapping[str, collections.Counter],
) -> dict[str, Any]:
    """Writes answers and metrics; returns what is told of them."""
    results, told, scores = [], {}, {}
    for each in read:
        weight, validation = weights[each.system]
        ranked = [answer_choice.ranked(spans, weight, sums) for spans in each.spans]
        path = folder / each.value.name / f"{each.system.replace(' ', '_')}.jsonl"
        files.write_text(path, "".join(_lines(each, ranked)))
        without = sum(not spans for spans in ranked)
        if without:
            _log.warning("answer: %s, %s: %d %s", each.value.name, each.system, without, WITHOUT)
        told[told_of(each.value.name, each.system)] = {
            WEIGHT: weight,
            VALIDATION: validation,
            WITHOUT: without,
            **counts[each.value.name],
        }
        found = evaluate.Scores(
            Ranking(f"{each.system}+reader", np.zeros((0, 0)), each.rows), SPLIT, *_metrics(each, ranked)
        )
        scores.setdefault(each.value.name, []).append(found)
        results += evaluate.result_rows(each.value.name, found)
    for name, of_set in scores.items():
        evaluate.write_per_query(folder, name, [each for each in of_set if each.values])
    files.write_json(folder / result_files.NAME, results)
    for name, of_set in counts.items():
        if of_set[CUT]:
            _log.warning(
                "answer: %s: %d of %d paragraphs are cut to a row of the reader", name, of_set[CUT], of_set[READ]
            )
    return told


def _lines(read: _Read, ranked: Sequence[Sequence[Span]]) -> Iterator[str]:
    """A line for every question, best answer first."""
    for (id, question), rows_K, spans in zip(read.value.queries.items(), read.rows, ranked):
        answers = [
            {
                "answer": span.text,
                "docid": read.value.candidates[rows_K[span.rank]],
                "start": span.start,
                "end": span.end,
                "score": round(span.score, 6),
                "reader": round(span.reader, 6),
                "retriever": round(span.retriever, 6),
            }
            for span in spans[:5]
        ]
        yield json.dumps({"_id": id, "question": question, "answers": answers}, ensure_ascii=False) + "\n"


def _metrics(read: _Read, ranked: Sequence[Sequence[Span]]) -> tuple[list[str], dict[str, np.ndarray]]:
    """The questions whose answers are known, and metric -> value of each."""
    ids, values = [], collections.defaultdict(list)
    for id, spans in zip(read.value.queries, ranked):
        if known := read.value.answers.get(id):
            ids.append(id)
            found = exact_match.scores(
                answer_choice.text_of(spans), known.values, known.are_patterns, read.value.queries[id]
            )
            for metric, value in found.items():
                values[metric].append(value)
    return ids, {metric: np.array(of_metric) for metric, of_metric in values.items()}


def check_systems(systems: Sequence[str]) -> None:
    """Checks that there is a system, and none twice.

    Raises:
      UserError: there is none, or one is there twice.
    """
    if not systems or len(set(systems)) != len(systems):
        raise UserError(f"config.answer.systems={tuple(systems)}: name one or more, each once")


def fetch(run: Run) -> None:
    """Copies down the reader, and what its question tower searches, where these are on a store."""
    readers.KIND.fetch(run, run.config.answer.model, MODEL)
    if TUNED in run.config.answer.systems:
        tuned_lists.fetch(_trainer(run))


def inputs(run: Run) -> list[Path]:
    """The records of the reader, and of the embeddings that its question tower searches."""
    own = list(readers.KIND.inputs(run, run.config.answer.model, MODEL))
    return [*own, *tuned_lists.inputs(_trainer(run))] if TUNED in run.config.answer.systems else own


def _trainer(run: Run) -> Run:
    """The run that trained the reader."""
    return readers.KIND.trainer(run, run.config.answer.model, MODEL)


def check(run: Run) -> None:
    """Checks that there is a reader, and runs to read.

    Raises:
      UserError: there is none, or the runs are too short.
    """
    fields = run.config.answer
    readers.check(run, fields.model, MODEL)
    if TUNED in fields.systems:
        tuned_lists.check(_trainer(run))
        if len(fields.systems) == 1:
            return
    evaluated_runs.check(run, "answer", fields.paragraphs, f"answer.paragraphs={fields.paragraphs}")


def read(model: str) -> list[str | Read]:
    """What the stage reads: texts, the runs over them, and the run's own model where `model` names none."""
    return [Read("sets", same=True), "evaluate", *train_unless(model)]


STAGES.register(
    "answer",
    Stage(
        answer,
        check_config=(of_fields(check_systems, "answer.systems"),),
        check=(check,),
        fields=("answer",),
        uses=("encode.batch_tokens",),
        reads=of_fields(read, "answer.model"),
        files=inputs,
        fetch=fetch,
        writes=(FOLDER,),
        everywhere=True,
    ),
)

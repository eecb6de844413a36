"""The stage `spans`: training questions with retrieved paragraphs, and where in these their answers stand."""

import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval import files, text_files
from retrieval.config.fields import of_fields
from retrieval.data.corpora import source_paths
from retrieval.data.sets import beir, nq_dev, orqa_split, qa, splits
from retrieval.data.sets.answers import Answers
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation import runs
from retrieval.identifiers import in_run_file
from retrieval.methods.reader import early_candidates, span_shards
from retrieval.methods.reader.early_candidates import EarlyCandidates
from retrieval.methods.reader.reader_rows import RowLengths
from retrieval.methods.reader.span_shards import Retrieved
from retrieval.pipeline.stage import STAGES, Read, Stage
from retrieval.recipes.trained_model import open_trained
from retrieval.search.index_kind import INDEXES
from retrieval.stage_outputs import Run
from retrieval.stages import indexes, mine
from retrieval.stages.collection import open_collection, set_names

_log = logging.getLogger(__name__)

FOLDER = "spans"
_PART = 5_000  # questions whose lists are held at a time


class _Question(NamedTuple):
    """A training question; `golds` are the ids of judged passages, where there are some."""

    id: str
    text: str
    answers: Answers
    golds: Sequence[str] = ()


def write_spans(run: Run) -> dict[str, Any]:
    """Writes `spans/`: shards of questions, and `stats.json`; returns what that says.

    Raises:
      UserError: a file or an index is not what it should be, or no question is left.
    """
    config, source = run.config, run.before(FOLDER)
    name = _set(config.spans.set or config.split.set, set_names(run.sets))
    if config.spans.questions:
        tested = name, len(beir.read_queries(run.sets / name / "queries.jsonl"))
        read, counts = _of_files(config.spans.questions, config.sets.qa_patterns, tested)
    else:
        read, counts = _of_set(run.training), {}
    questions, left_out = _not_evaluated(read, run.sets)
    vocabulary, folder = run.load_vocabulary(), run.labelled(FOLDER)
    with CandidateTexts(run.sets / name / "corpus.jsonl", {id for each in questions for id in each.golds}) as texts:
        if config.spans.run:
            lists = _of_run(Path(config.spans.run), questions, run.sets / name, _deep(config.spans), config.runs.third)
        else:
            lists = _searched(config.spans, source, name, questions, config.evaluate.depth)
        early = _early(config.spans, source, name, texts, questions)
        retrieved = _retrieved(questions, lists, texts, config.spans.depth, config.spans.gold, early)
        lengths = RowLengths(config.data.query_length, config.data.document_length)
        statistics = span_shards.write(
            retrieved,
            vocabulary,
            folder,
            config.split.shards,
            lengths,
            config.spans.most,
            config.spans.asked,
            config.spans.early,
        )
        if early:
            statistics["embeddings"] = early.write(folder / span_shards.CANDIDATES)
    files.remove_temporaries(folder)
    statistics |= {"left out": left_out, "vocabulary": vocabulary.fingerprint, **counts}
    _tell(statistics)
    return statistics


def _set(name: str, names: Sequence[str]) -> str:
    """The set whose passages are read: the one that is named, or the only one."""
    if name or len(names) != 1:
        if name not in names:
            raise unknown_name("set in config.spans.set", name, names)
        return name
    return names[0]


def _of_set(training: Path) -> list[_Question]:
    """The training questions of the divided set, with their judged passages."""
    judged = beir.read_judged(training)
    return [
        _Question(id, judged.queries[id], judged.answers[id], list(golds))
        for id, golds in judged.qrels[splits.TRAIN].items()
        if id in judged.answers
    ]


def _of_files(paths: str, patterns: bool, tested: tuple[str, int]) -> tuple[list[_Question], dict[str, Any]]:
    """The questions of files that ORQA trains on, and the counts of its division beside the published ones.

    Args:
      patterns: whether the answers are regular expressions.
      tested: the set whose passages are read, and how many questions it has.
    """
    queries, known = qa.read_together(map(Path, source_paths.split(paths)), patterns)
    is_dev = orqa_split.is_held_out(list(queries.values()))
    to_train_on = [
        _Question(id, text, known[id]) for (id, text), held_out in zip(queries.items(), is_dev) if not held_out
    ]
    published = orqa_split.published_for(len(queries))
    asked, count = tested
    _log.info(
        "spans: ORQA's division: %d to train on, %d held out, %d in the set '%s'%s",
        *(len(to_train_on), is_dev.sum(), count, asked),
        "".join(
            f"; published for {name}: {its.train}, {its.dev} and {its.test} to test on"
            for name, its in published.items()
        ),
    )
    counts = {"train": len(to_train_on), "dev": int(is_dev.sum())}
    division = counts | {"published": {name: its._asdict() for name, its in published.items()}}
    return to_train_on, {"division": division | {"sets": {asked: count}}}


def _not_evaluated(questions: Sequence[_Question], sets: Path) -> tuple[list[_Question], dict[str, int]]:
    """The questions that are asked neither by an evaluation set nor by NQ's dev set, and how many those are."""
    asked = {
        splits.wording(query)
        for name in set_names(sets)
        for query in beir.read_queries(sets / name / "queries.jsonl").values()
    }
    left_out = {"questions of evaluation sets": 0, "questions of NQ's dev set": 0}
    to_train_on = []
    for question in questions:
        if nq_dev.asks(question.text):
            left_out["questions of NQ's dev set"] += 1
        elif splits.wording(question.text) in asked:
            left_out["questions of evaluation sets"] += 1
        else:
            to_train_on.append(question)
    if not to_train_on:
        counted = ", ".join(f"{count} {what}" for what, count in left_out.items())
        raise UserError(f"stage 'spans': no question is left to train on, of {len(questions)}: {counted}")
    return to_train_on, left_out


def _searched(
    fields: ConfigDict, source: Run, name: str, questions: Sequence[_Question], deepest: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Scores and rows of each question's passages, of an index.

    Args:
      fields: of `config.spans`.
      deepest: results that an index is made for, `config.evaluate.depth`.
    """
    kind = INDEXES[fields.system]
    texts = [question.text for question in questions]
    asked: Any = texts if kind.of_words else mine.embedded(open_trained(source), source.holder("train").folder, texts)
    options_of = functools.partial(indexes.options_of, config=source.holder("index").config)
    deep = _deep(fields)
    search = mine.open_search(kind, open_collection(source, name), options_of, max(deep, deepest))
    for start in range(0, len(texts), _PART):
        yield from zip(*search(asked[start : start + _PART], deep))


def _deep(fields: ConfigDict) -> int:
    """Passages of a question that are looked for."""
    return max(fields.depth, fields.early)


def _early(
    fields: ConfigDict, source: Run, name: str, texts: CandidateTexts, questions: Sequence[_Question]
) -> EarlyCandidates | None:
    """What keeps the candidates that the question tower is trained with; None where it is not."""
    if not fields.early:
        return None
    asked = [question.text for question in questions]
    return EarlyCandidates(source.holder("train"), open_collection(source, name), texts, asked)


def _of_run(
    path: Path, questions: Sequence[_Question], folder: Path, depth: int, third: str
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """The same, of a run file, which may have lists of questions that are not trained on."""
    candidates = [candidate.id for candidate in beir.read_candidates(folder / "corpus.jsonl")]
    ids = [question.id for question in questions]
    asked = set(map(in_run_file, ids))
    others = [id for id in runs.ids_in_runs([path], text_files.lines)[0] if id not in asked]
    scores_QK, rows_QK = runs.read_run(path, text_files.lines, [*ids, *others], candidates, third)
    without = int((rows_QK[: len(ids), 0] < 0).sum())
    for number, what in ((len(others), "are of questions that are not trained on"), (without, "questions have none")):
        if number:
            _log.warning("%s: lists: %d %s", path, number, what)
    if without == len(ids):
        raise UserError(f"{path}: no list of any question that is trained on; is it the run of other questions?")
    yield from zip(scores_QK[: len(ids), :depth], rows_QK[: len(ids), :depth])


def _retrieved(
    questions: Sequence[_Question],
    lists: Iterator[tuple[np.ndarray, np.ndarray]],
    texts: CandidateTexts,
    depth: int,
    takes_gold: bool,
    early: EarlyCandidates | None,
) -> Iterator[Retrieved]:
    for number, (question, (scores_K, rows_K)) in enumerate(zip(questions, lists, strict=True)):
        deep = [(row, score) for row, score in zip(rows_K.tolist(), scores_K.tolist()) if row >= 0]
        passages, known = deep[:depth], question.answers
        golds = [texts.row_of[id] for id in question.golds if id in texts.row_of]
        if takes_gold and golds and not {row for row, _ in passages} & set(golds):
            lowest = passages[-1][1] if passages else 0.0
            passages[max(0, min(depth, len(rows_K)) - 1) :] = [(golds[0], lowest)]
        rows = list(dict.fromkeys(row for row, _ in passages + deep))[: len(rows_K)]  # those that are read come first
        compared = functools.partial(early.of, number, known, rows) if early else None
        yield Retrieved(question.text, known, [texts[row] for row, _ in passages], [s for _, s in passages], compared)


def _tell(statistics: dict[str, Any]) -> None:
    """Says what was written, and what was left out."""
    _log.info(
        "spans: %d questions, %.2f places of answers each", statistics["questions"], statistics["spans per question"]
    )
    counted = (
        span_shards.WITHOUT,
        span_shards.SLOW,
        span_shards.CUT,
        span_shards.BEHIND,
        span_shards.MORE,
        span_shards.UNMARKED,
        span_shards.DEEP,
        span_shards.FEWER,
    )
    for what in counted:
        if number := statistics.get(what):
            first = statistics["first"].get(what)
            _log.warning("spans: %d %s%s", number, what, f", the first: {first}" if first else "")
    for what, number in statistics["left out"].items():
        if number:
            _log.warning("spans: left out %d %s: they are not to be trained on", number, what)


def read(system: str, run_file: str, early: int) -> list[str | Read]:
    """What the stage reads: the texts, what is searched unless there is a run file, and the question tower's."""
    searched = () if run_file else mine.needs(system, "config.spans.system")
    towers = ("train", "encode") if early else ()
    return ["prepare", Read("sets", same=True), *(Read(stage, earlier=True) for stage in (*searched, *towers))]


def check(run: Run) -> None:
    """Checks that there are questions, and passages with an index or a run.

    Raises:
      UserError: there are none.
    """
    config, source = run.config, run.before(FOLDER)
    if config.spans.early:
        early_candidates.check(source, config.spans.early, config.spans.depth)
    divided = run.holder("sets").config.split.set
    if not (config.spans.questions or divided):
        raise UserError(
            "stage 'spans' needs questions with answers: set config.split.set to an evaluation set that has them, such "
            "as squad, or config.spans.questions to files such as NQ-open.train.jsonl"
        )
    if not (config.spans.questions or mine.has_answers(run, divided)):
        raise UserError(
            f"config.split.set={divided}: its questions have no answers to look for: split a set that has them, such "
            "as squad, or name files in config.spans.questions"
        )
    for field in ("questions", "run"):
        source_paths.checked(f"config.spans.{field}", source_paths.split(config.spans[field]))
    for path in inputs(config.spans):
        if str(path) == config.spans.run:
            runs.check_beginning(path, text_files.lines)
        else:
            qa.check_beginning(path, config.sets.qa_patterns)
    reads = read(config.spans.system, config.spans.run, config.spans.early)
    needed = [other.stage for other in reads if isinstance(other, Read) and other.earlier]
    for need in needed:
        if need not in source.holder(need).config.stages:
            raise UserError(
                f"config.spans.system={config.spans.system} is made by {' and '.join(needed)}, and '{need}' is "
                "no stage before 'spans': add it there, set config.base to a run that has it, or name a run file in "
                "config.spans.run"
            )


def inputs(fields: ConfigDict) -> Sequence[Path]:
    """The files that `config.spans` names."""
    named = [*source_paths.split(fields.questions), *source_paths.split(fields.run)]
    return source_paths.existing([Path(path) for path in named])


STAGES.register(
    "spans",
    Stage(
        write_spans,
        check=(
            check,
            Run.check_vocabulary,
        ),
        fields=("spans", "split", "sets.qa_patterns", "runs.third", "data.query_length", "data.document_length"),
        reads=of_fields(read, "spans.system", "spans.run", "spans.early"),
        files=lambda run: [*inputs(run.config.spans), *run.vocabulary_inputs()],
        writes=("spans",),
    ),
)

"""The formats of evaluation sets and of labelled examples: their names, how they look, and who reads them."""

import contextlib
import functools
import itertools
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval.data.corpora import tfds_source
from retrieval.data.labelled import dpr, grouping, jsonl_pairs
from retrieval.data.labelled.grouping import Counts, Example, Groups
from retrieval.data.sets import answers, beir, msmarco, natural_questions, qa, reqa, text_files, trec
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.errors import UserError

_log = logging.getLogger(__name__)

DPR, JSONL, TRIPLES, ID_TRIPLES = "dpr", "jsonl", "triples", "id_triples"
QA, CORPUS = "qa", "corpus"


class Format(NamedTuple):
    """What people call a format, the setting that takes it, and a line of it."""

    what: str
    setting: str
    example: str


SETS = {
    "pydocs": Format("held-out docstrings of the installed packages", "--config.sets.pydocs=True", "def f(): ..."),
    "reqa": Format(
        "SQuAD v1.1, or TFDS, as ReQA",
        "--config.sets.reqa=FILE.json,… or tfds:squad",
        '{"data": [{"title": "T", "paragraphs": [{"context": "A b.", "qas": [{"id": "1", "question": "q?", '
        '"answers": [{"text": "b", "answer_start": 2}]}]}]}]}',
    ),
    "nq": Format(
        "Natural Questions, full or simplified, or TFDS, as ReQA",
        "--config.sets.nq=FILE.jsonl.gz,… or tfds:natural_questions",
        '{"example_id": 1, "question_text": "q", "document_text": "<P> a </P>", "annotations": […], …}',
    ),
    "beir": Format(
        "BEIR folders: corpus.jsonl, queries.jsonl, qrels/NAME.tsv",
        "--config.sets.beir=FOLDER,…",
        '{"_id": "d1", "title": "T", "text": "words"}',
    ),
    "msmarco": Format(
        "MS MARCO: passages or documents, queries and qrels, as TSV",
        "--config.sets.msmarco=collection.tsv,queries.tsv,qrels.tsv",
        "1185869⇥0⇥0⇥1",
    ),
    "trec": Format(
        "TREC: passages or documents (TSV as MS MARCO's, or BEIR's corpus.jsonl), topics (SGML or TSV), qrels",
        "--config.sets.trec=corpus.jsonl,topics.txt,qrels.txt",
        "<top> <num> Number: 301 <title> organized crime <desc> … </top>",
    ),
    "labelled": Format(
        "labelled examples (below): the texts of a file are its candidates",
        "--config.sets.labelled=FILE,…",
        '{"query": "q", "positives": ["a"], "negatives": ["b"]}',
    ),
    QA: Format(
        "open-domain questions with answers (below), over DPR's passages or the run's corpus",
        "--config.sets.qa=psgs_w100.tsv,QUESTIONS or corpus,QUESTIONS",
        "id⇥text⇥title",
    ),
}

QUESTIONS = {
    "dpr": Format("DPR's questions, TSV with a Python list", "nq-test.qa.csv, topics.dpr.nq.dev.txt", "q⇥['a', 'b']"),
    "nq_open": Format("NQ-open, JSON lines", "NQ-open.dev.jsonl", '{"question": "q", "answer": ["a", "b"]}'),
    "web_questions": Format(
        "WebQuestions, one array", "test.json", '[{"qId": "1", "qText": "q", "answers": ["a", "b"]}]'
    ),
    "curated_trec": Format(
        "CuratedTREC, TSV with regular expressions", "large2470-test.tsv", "1⇥factoid⇥q⇥Mt\\.? Everest"
    ),
}

LABELLED = {
    DPR: Format(
        "DPR's JSON, one array",
        "--config.pairs.files=FILE.json,…",
        '[{"question": "q", "answers": ["a"], "positive_ctxs": [{"title": "T", "text": "a", "passage_id": "1"}], '
        '"negative_ctxs": [], "hard_negative_ctxs": [{"title": "T", "text": "b", "passage_id": "2"}]}]',
    ),
    JSONL: Format(
        "JSON lines: lists, sentence-transformers' fields, or Tevatron's",
        "--config.pairs.files=FILE.jsonl,…",
        '{"anchor": "q", "positive": "a", "negative": "b"}',
    ),
    TRIPLES: Format("MS MARCO's triples of texts", "--config.pairs.files=triples.train.tsv,…", "q⇥positive⇥negative"),
    ID_TRIPLES: Format(
        "MS MARCO's triples of ids",
        "--config.pairs.files=qidpidtriples.tsv,… --config.pairs.queries=queries.tsv "
        "--config.pairs.collection=collection.tsv",
        "1000094⇥5399011⇥4239068",
    ),
}

# Of passages they are numbers, of documents a D is before them.
_IDS = re.compile(r"[0-9]+(\tD?[0-9]+){2}")
_ALL = sys.maxsize
_FILES_OF_A_SET = dict.fromkeys(("msmarco", "trec"), ("passages", "queries", "qrels")) | {QA: ("passages", "questions")}


def split(value: str) -> list[str]:
    """The parts of a field that takes several."""
    return [part for part in value.split(",") if part]


def read_sets(config: ConfigDict, folder: Path, corpus: Callable[[], Iterable[Candidate]]) -> Iterator[RetrievalSet]:
    """The evaluation sets that a config names, but for pydocs.

    Args:
      folder: where temporary files may lie.
      corpus: gives the passages of the prepared corpus.

    Raises:
      UserError: a file is not what its format says.
    """
    sets = config.sets
    if sets.reqa:
        yield reqa.read_squad(split(sets.reqa))
    if sets.nq:
        yield natural_questions.read_nq(split(sets.nq))
    for name in ("msmarco", "trec"):
        if sets[name]:
            yield trec.read_set(name, *map(Path, split(sets[name])))
    if sets.qa:
        passages, questions = split(sets.qa)
        read = corpus if passages == CORPUS else functools.partial(qa.read_passages, Path(passages))
        yield qa.read_set(QA, read, Path(questions), sets.qa_patterns)
    for path in map(Path, split(sets.labelled)):
        with grouped(config, [path], folder, pool=_ALL) as (groups, counts):
            value = grouping.evaluation_set(set_name(path), groups)
        log(counts, str(path))
        way_out = f"make a BEIR folder of it, with 'patterns' in {beir.ANSWERS}"
        answers.warn_of_patterns(path, value.queries, value.answers, way_out)
        yield value
    for path in map(Path, split(sets.beir)):
        yield beir.read_folder(path)


def set_name(path: Path) -> str:
    """The name of the set that is made of a labelled file."""
    return path.name.partition(".")[0]


def set_files(config: ConfigDict) -> list[Path]:
    """The files and folders of the evaluation sets; what TFDS holds is known by its name and version alone."""
    sets = config.sets
    fields = (sets.reqa, sets.nq, sets.msmarco, sets.trec, sets.labelled, sets.beir)
    sources = [source for field in fields for source in split(field)] + qa_files(config)
    paths = [Path(source) for source in sources if not tfds_source.is_source(source)]
    return paths + (_text_files(config) if sets.labelled else [])


def qa_files(config: ConfigDict) -> list[str]:
    """The files of open-domain questions and of their passages, where these are not the corpus."""
    passages, *questions = split(config.sets.qa) or [CORPUS]
    return [*([] if passages == CORPUS else [passages]), *questions]


def has_answers(config: ConfigDict, name: str) -> bool:
    """Whether the questions of a judged evaluation set that a config names have answers."""
    folders = [Path(folder) for folder in split(config.sets.beir)]
    of_beir = any(path.resolve().name == name and (path / beir.ANSWERS).is_file() for path in folders)
    labelled_files = [path for path in map(Path, split(config.sets.labelled)) if set_name(path) == name]
    of_dpr = any(path.is_file() and format_of(config, path) == DPR and dpr.has_answers(path) for path in labelled_files)
    return of_beir or of_dpr or name in ("reqa", "nq")


def has_answers_alone(config: ConfigDict) -> bool:
    """Whether a config names open-domain questions and no other evaluation set."""
    return bool(config.sets[QA]) and not any(config.sets[name] for name in SETS if name != QA)


def pair_files(config: ConfigDict) -> list[Path]:
    """The files of labelled examples, and those that have the texts of their ids."""
    return [*map(Path, split(config.pairs.files)), *_text_files(config)]


def _text_files(config: ConfigDict) -> list[Path]:
    return [Path(path) for path in (config.pairs.queries, config.pairs.collection) if path]


@contextlib.contextmanager
def grouped(
    config: ConfigDict, paths: Sequence[Path], folder: Path, pool: int, more: Iterable[Example] = ()
) -> Iterator[tuple[Groups, Counts]]:
    """The labelled examples of some files by query, in the order of `split.seed`, and what is counted on the way.

    Args:
      pool: negatives that a query keeps.
      more: other examples.

    Raises:
      UserError: a file is not what its format says.
    """
    counts = Counts()
    examples = (example for path in paths for example in _read(config, path, folder, pool, counts))
    with grouping.grouped(itertools.chain(more, examples), folder, pool, counts, seed=config.split.seed) as groups:
        yield groups, counts


def log(counts: Counts, name: str) -> None:
    """Says what was read and what was left out."""
    _log.info("%s: %d examples of %d queries", name, counts.examples, counts.queries)
    for what, number in counts.left_out.items():
        if number:
            first = f", the first at {counts.first[what]}" if what in counts.first else ""
            _log.warning("%s: left out %d %s%s", name, number, what, first)


def check_counts(config: ConfigDict) -> None:
    """Checks how many files the fields of sets have that take two or three of different kinds.

    Raises:
      UserError: not as many.
    """
    for name, kinds in _FILES_OF_A_SET.items():
        found = split(config.sets[name])
        if found and len(found) != len(kinds):
            raise UserError(
                f"config.sets.{name}={config.sets[name]}: {len(found)} files, but {('two', 'three')[len(kinds) - 2]} "
                f"are needed, of {', '.join(kinds)}: {SETS[name].setting}"
            )


def check_labelled(config: ConfigDict, paths: Sequence[Path]) -> None:
    """Checks that the format of labelled files is known, and that there are texts for ids.

    Raises:
      UserError: it is not, or there are none.
    """
    for path in paths:
        if format_of(config, path) == ID_TRIPLES:
            for field in ("queries", "collection"):
                if not config.pairs[field]:
                    raise UserError(f"{path}: triples of ids, whose texts are elsewhere: set config.pairs.{field}")


def format_of(config: ConfigDict, path: Path) -> str:
    """The name of the format of a labelled file: what its beginning tells, and of lines with tabs config.pairs.format.

    JSON needs no name, so the field can name one file's format beside files of JSON, in pairs.files and sets.labelled.

    Raises:
      UserError: it tells nothing, or may be texts or ids.
    """
    if (first := trec.first_character(path)) in ("[", "{"):
        return DPR if first == "[" else JSONL
    if config.pairs.format:
        return config.pairs.format
    _, line = next(text_files.lines(path), ("", ""))
    fields = line.split("\t")
    if len(fields) != 3:
        raise UserError(
            f"{path}, line 1: no format that is known, {len(fields)} fields between tabs; README.md shows what "
            f"{', '.join(LABELLED)} look like"
        )
    if _IDS.fullmatch(line):
        return ID_TRIPLES
    # MS MARCO v2 has ids such as msmarco_passage_01_552: no model is to be trained on these as if they were texts.
    if (config.pairs.queries or config.pairs.collection) and all(len(field.split()) < 2 for field in fields):
        raise UserError(
            f"{path}, line 1: three words between tabs, which may be ids, whose texts config.pairs.queries and "
            f"config.pairs.collection have, or texts: set config.pairs.format={ID_TRIPLES} or {TRIPLES}"
        )
    return TRIPLES


def _read(config: ConfigDict, path: Path, folder: Path, pool: int, counts: Counts) -> Iterator[Example]:
    readers = {DPR: dpr.read, JSONL: jsonl_pairs.read, TRIPLES: msmarco.read_triples}
    if (name := format_of(config, path)) in readers:
        return readers[name](path, counts)
    check_labelled(config, [path])
    queries, collection = _text_files(config)
    return msmarco.read_id_triples(path, queries, collection, folder, pool, counts)

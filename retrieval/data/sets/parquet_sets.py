"""The format of evaluation sets 'parquet': data sets of Hugging Face's hub with a corpus, queries and qrels as Parquet.

    corpus/SPLIT-00000-of-00001.parquet     _id, text; a title where there is one
    queries/SPLIT-00000-of-00001.parquet    _id, text
    qrels/SPLIT-00000-of-00001.parquet      query-id, corpus-id (or a list of them); score, where judgements have grades
    relevance/SPLIT-00000-of-00001.parquet  in its place: query-id, positive-corpus-ids

A folder with several splits of a corpus has a set for each, of its name: NanoBEIR in one folder has 13. One corpus with
several splits of judgements is one set, of the folder's name, with a rule of relevance for each.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from retrieval.common.errors import UserError, listed
from retrieval.common.parsing import parquet_files, scalars, text_files
from retrieval.common.runtime import hub
from retrieval.data.corpora.source_paths import checked, split
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.set_format import Context, Options, SetFormat, register

CORPUS, QUERIES, QRELS = "corpus", "queries", "qrels"
_FOLDERS = {CORPUS: (CORPUS,), QUERIES: (QUERIES,), QRELS: (QRELS, "default", "data", "relevance")}
_PATTERNS = tuple(f"{name}/*{parquet_files.SUFFIX}" for names in _FOLDERS.values() for name in names)
_SPLIT = re.compile(r"(.+?)(-\d+-of-\d+)?\.parquet")
_TEST = "test"  # the rule of a set that has one
_OF_ONE_SET = {"train", "dev", "validation", _TEST}  # splits that are no sets of their own
_OF_QUERY, _OF_DOCUMENTS = ("query-id",), ("corpus-id", "positive-corpus-ids")
_OF_EMPTY = "judgements of what is empty, left out"


_Files = dict[str, list[Path]]  # split -> its files, in order


class _Place(NamedTuple):
    """The files of a set; those of its judgements by their rule."""

    name: str
    corpus: list[Path]
    queries: list[Path]
    qrels: _Files


@register
class ParquetSets(SetFormat):
    """Judgements without a score are relevant."""

    name = "parquet"
    what = "folders or data sets of Hugging Face's hub with corpus, queries and qrels as Parquet, such as NanoBEIR"
    setting = "--config.sets.parquet=FOLDER,hf:NAME,…"
    example = "corpus/test-00000-of-00001.parquet with the columns _id, text"
    of_folders = True

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        for name, corpus, queries, qrels in _all_places(value):
            texts = {candidate.id: candidate.text for candidate in _texts(queries)}
            judged = {rule: (paths[0], list(_judgements(paths))) for rule, paths in qrels.items()}
            yield beir.without_empty(name, functools.partial(_texts, corpus), texts, judged, CORPUS, _OF_EMPTY)

    def names(self, value: str) -> list[str]:
        return [place.name for place in _all_places(value)]

    def inputs(self, value: str, options: Options) -> list[Path]:
        of_places = ([place.corpus, place.queries, *place.qrels.values()] for place in _all_places(value))
        return [path for kinds in of_places for paths in kinds for path in paths]

    def check(self, value: str, options: Options, has_corpus: bool) -> None:
        checked("config.sets.parquet", [source for source in split(value) if not hub.is_name(source)], of_folders=True)
        _all_places(value)


def _all_places(value: str) -> list[_Place]:
    return [place for source in split(value) for place in _places(source)]


def _places(source: str) -> list[_Place]:
    """The sets of a folder, or of a data set of the hub.

    Raises:
      UserError: files are missing, or those of a split.
    """
    folder = hub.data_set(source, _PATTERNS) if hub.is_name(source) else Path(source)
    last = source.removeprefix(hub.PREFIX).partition("@")[0] if hub.is_name(source) else str(folder.resolve())
    splits = {kind: _splits(folder, kind) for kind in _FOLDERS}
    for kind, of_kind in splits.items():
        if not of_kind:
            names = " nor ".join(_FOLDERS[kind])
            raise UserError(f"{source}: no Parquet file in {names}; an evaluation set has {kind}/SPLIT.parquet")
    corpus, queries, qrels = splits.values()
    if len(corpus) == len(queries) == 1 and not corpus.keys() == queries.keys() == qrels.keys() - _OF_ONE_SET:
        rules = {_TEST: next(iter(qrels.values()))} if len(qrels) == 1 else qrels
        (of_corpus,), (of_queries,) = corpus.values(), queries.values()
        return [_Place(last.rpartition("/")[2], of_corpus, of_queries, rules)]
    for name in qrels:
        if lacking := [kind for kind in (CORPUS, QUERIES) if name not in splits[kind]]:
            there = listed(splits[lacking[0]])
            raise UserError(f"{source}: the split '{name}' of qrels has no {lacking[0]}; there are {there}")
    return [_Place(name, corpus[name], queries[name], {_TEST: paths}) for name, paths in qrels.items()]


def _splits(folder: Path, kind: str) -> _Files:
    for name in _FOLDERS[kind]:
        files: _Files = {}
        for path in sorted((folder / name).glob("*")):
            if match := _SPLIT.fullmatch(path.name):
                files.setdefault(match[1], []).append(path)
        if files:
            return files
    return {}


def _texts(paths: Sequence[Path]) -> Iterator[Candidate]:
    """The rows of some files; a title that is not there is ''."""
    return (text for *_, text in beir.distinct(paths[0], _rows(paths)))


def _rows(paths: Sequence[Path]) -> Iterator[tuple[str, str, Candidate, Candidate]]:
    for path in paths:
        there = parquet_files.columns(path)
        of_id = _column(path, there, "_id", "id")
        names = [of_id, _column(path, there, "text"), *(name for name in there if name == "title")]
        for at, row in parquet_files.rows(path, names):
            id = text_files.required(scalars.of_value(row[of_id], of_id, at), of_id, at)
            text = Candidate(id, *(text_files.string(row, name, at, default="") for name in ("title", "text")))
            yield at, id, text, text


def _judgements(paths: Sequence[Path]) -> Iterator[relevance.Row]:
    for path in paths:
        there = parquet_files.columns(path)
        query, documents = (_column(path, there, *names) for names in (_OF_QUERY, _OF_DOCUMENTS))
        grades = [name for name in there if name == relevance.HEADER[2]]
        for at, row in parquet_files.rows(path, [query, documents, *grades]):
            grade = relevance.grade(str(row[grades[0]]), at) if grades else 1
            for id in row[documents] if isinstance(row[documents], list) else [row[documents]]:
                yield at, scalars.of_value(row[query], query, at), scalars.of_value(id, documents, at), grade


def _column(path: Path, there: Sequence[str], *names: str) -> str:
    for name in names:
        if there.count(name) == 1:
            return name
    raise UserError(f"{path}: not one column '{names[0]}'; there are {listed(there)}")

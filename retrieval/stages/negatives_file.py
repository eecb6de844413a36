"""Labelled pairs of any model's hard negatives, as a file: what the command `retrieval mine` does.

A folder beside it, or the one that is named, has what a process that is killed leaves for the next one:

    settings.json       what the embeddings are of
    candidates.jsonl    every document once
    embeddings/         of queries and documents, as `encoding` writes them
    judged-.../         scores of a reranker
"""

import contextlib
import dataclasses
import logging
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval import LOCK, files, terminal
from retrieval.config import experiment
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import labelled_format, negatives_format
from retrieval.data.labelled.negatives_format import FORMATS, Mined, Wanted
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.errors import UserError, unknown_name
from retrieval.models.encoder_folder import EncoderFolder
from retrieval.pipeline.run import Run
from retrieval.recipes import text_embedder
from retrieval.recipes.text_embedder import DOCUMENTS, EMBEDDERS, QUERIES
from retrieval.recipes.trained_model import TRAINED
from retrieval.search.mining import Rule
from retrieval.stages import labelled_groups, negatives_search
from retrieval.stages.negatives_search import Index, Judged, Part, Questions

_log = logging.getLogger(__name__)

TOP, RANDOM = "top", "random"
_SHARD = 8192  # texts of a file of embeddings
_LONGEST = 512  # tokens of a text or a pair, of models that take more
_MODEL, _RERANKER = "--model", "--reranker"
_COUNTED: tuple[str, ...] = ("positives", "negatives", "queries with fewer negatives", "queries without any")


class Asked(NamedTuple):
    """What is asked for; the command has the same names.

    Attributes:
      pairs: labelled examples, as `config.pairs.files` names them.
      collection: further candidates; '': the documents of the pairs alone.
      range_min, range_max: ranks, from 0 on, among the results that margins and `max_score` leave; None: enough.
      margin, relative_margin, max_score: as `mining.Rule` has them, to the worst positive of a query; None: none.
      sampling: TOP or RANDOM.
      cache: a folder that is kept; '': one beside the file, which is deleted once this is there.
    """

    pairs: str
    model: str
    out: Path
    collection: str = ""
    reranker: str = ""
    range_min: int = 0
    range_max: int | None = None
    negatives: int = 3
    margin: float | None = None
    relative_margin: float | None = None
    max_score: float | None = None
    sampling: str = TOP
    seed: int = 0
    format: str = "triplet"
    scores: bool = False
    cache: str = ""
    pairs_format: str = ""
    fields: str = ""
    queries: str = ""

    @property
    def about(self) -> Path:
        """The file beside the output that says what it was made from, and what was counted."""
        return self.out.with_name(f"{self.out.name}.about.json")


def write(asked: Asked) -> dict[str, Any]:
    """Writes the file, whole or not at all, and `Asked.about`; returns what that has of counts.

    Raises:
      UserError: a setting, a file or the model does not do, no query has a negative left, or another file is there.
    """
    check(asked)
    run = _run(asked)
    _check_models(asked, run)
    made_of = _made_of(asked, run)
    settings = {name: value for name, value in asked._asdict().items() if name not in ("out", "cache", *made_of)}
    if asked.out.exists():
        return _there(asked, settings | made_of)
    cache = Path(asked.cache or f"{asked.out}.cache")
    cache.mkdir(parents=True, exist_ok=True)
    files.lock(cache)
    files.remove_temporaries(cache)
    _check_cache(cache, {name: made_of[name] for name in ("pairs", "collection", "model")} | _reading(asked))
    with _opened(asked, run, cache) as (candidates, questions, counts):
        index = Index(cache / "embeddings")
        if not index.is_whole():
            model = EMBEDDERS.open(run, asked.model, _MODEL)
            model.write_queries(index.folder, QUERIES, questions.texts, len(questions.texts))
            model.write_documents(index.folder, DOCUMENTS, candidates, len(candidates))
        rule = rule_of(asked, questions.most_positives)
        depth = min(rule.last + questions.most_taken_out, len(candidates))
        judged = None
        if asked.reranker:
            folder = cache / f"judged-{files.fingerprint([made_of['reranker'], depth])}"
            scorer = TRAINED["reranker"].open(_for_reranker(asked, run), asked.reranker, _RERANKER)
            judged = Judged(scorer, folder, candidates)
        with files.atomic(asked.out) as temporary:
            parts = negatives_search.parts(index, judged, questions, candidates, rule, depth, asked.seed)
            mined = _mined(questions, candidates, parts, counts, asked.negatives)
            rows = negatives_format.write(temporary, mined, asked.format, Wanted(asked.negatives, asked.scores))
            if not (rows and counts["negatives"]):
                raise _nothing_left(asked, counts)
            counts["rows"] = rows
            files.write_json(asked.about, {"made of": settings | made_of, "counts": counts})
    if not asked.cache:
        files.remove(cache)
    return counts


def check(asked: Asked) -> None:
    """Checks what is asked for, before anything is read.

    Raises:
      UserError: a value may not be, or two do not fit each other.
    """
    if asked.format not in FORMATS:
        raise unknown_name("--format", asked.format, FORMATS)
    if asked.sampling not in (TOP, RANDOM):
        raise unknown_name("--sampling", asked.sampling, (TOP, RANDOM))
    negatives_format.check_name(asked.out)
    if asked.negatives < 1 or asked.range_min < 0:
        raise UserError(
            f"--negatives={asked.negatives} --range-min={asked.range_min}: one negative at least, and no rank below 0"
        )
    if asked.range_max is not None and (room := max(0, asked.range_max - asked.range_min)) < asked.negatives:
        raise UserError(
            f"--range-min={asked.range_min} --range-max={asked.range_max}: room for {room} of --negatives="
            f"{asked.negatives}: raise --range-max, or lower the others"
        )
    for name in ("margin", "relative_margin"):
        if (value := getattr(asked, name)) is not None and not 0 <= value < np.inf:
            raise UserError(f"--{name.replace('_', '-')}={value}: a number of at least 0 is needed")
    for flag, value, folders in (("PAIRS", asked.pairs, None), ("--collection", asked.collection, False)):
        source_paths.checked(flag, source_paths.split(value), folders)


def rule_of(asked: Asked, most_positives: int) -> Rule:
    """The rule, whose last rank is as sentence-transformers has it where none is given.

    Args:
      most_positives: of a query.
    """
    leaves_out = any(value is not None for value in (asked.margin, asked.relative_margin, asked.max_score))
    last = asked.range_max
    if last is None:
        last = asked.range_min + asked.negatives * (10 if leaves_out else 1) + most_positives
    return Rule(
        asked.negatives,
        asked.range_min + 1,
        last,
        asked.margin,
        asked.relative_margin,
        most=np.inf if asked.max_score is None else asked.max_score,
        top=asked.sampling == TOP,
        among_left=True,
    )


def _run(asked: Asked) -> Run:
    """What models are opened by: lengths, types and the readers of labelled examples are fields of a config."""
    config = experiment.defaults()
    config.model.dtype = "float32"
    config.encode.update(batch_tokens=16_384, shard_size=_SHARD)
    config.data.update(query_length=_LONGEST, document_length=_LONGEST)
    config.pairs.update(files=asked.pairs, format=asked.pairs_format, fields=asked.fields)
    config.pairs.update(queries=asked.queries, collection=asked.collection if asked.queries else "")
    return Run(config, Path(), LOCK)


def _for_reranker(asked: Asked, run: Run) -> Run:
    """The same with the lengths that a reranker has positions for: of a query, and of it and a document."""
    config = run.config.copy_and_resolve_references()
    if folder := TRAINED["reranker"].published(asked.reranker, _RERANKER):
        longest = min(_LONGEST, EncoderFolder.open(folder).sizes["max_length"])
        config.rerank.length = longest
    return dataclasses.replace(run, config=config)


def _check_models(asked: Asked, run: Run) -> None:
    """Checks that the model embeds, and that the reranker, where there is one, reads pairs."""
    if text_embedder.kind_of(asked.model, _MODEL, run) is not EMBEDDERS:
        raise UserError(f"{_MODEL}={asked.model}: it reads pairs, and an embedder is needed; write {_RERANKER} for it")
    EMBEDDERS.check(run, asked.model, _MODEL)
    if asked.reranker:
        if text_embedder.kind_of(asked.reranker, _RERANKER, run) is EMBEDDERS:
            raise UserError(f"{_RERANKER}={asked.reranker}: an embedder, and a model that reads pairs is needed")
        TRAINED["reranker"].check(_for_reranker(asked, run), asked.reranker, _RERANKER)


def _made_of(asked: Asked, run: Run) -> dict[str, Any]:
    """The sums of all files that the output depends on."""
    named = {
        "pairs": labelled_groups.inputs(run.config),
        "collection": [Path(asked.collection)] if asked.collection else [],
        "model": EMBEDDERS.inputs(run, asked.model, _MODEL),
        "reranker": TRAINED["reranker"].inputs(run, asked.reranker, _RERANKER) if asked.reranker else [],
    }
    return {
        what: files.fingerprint([each["sum"] for path in paths for each in files.describe(path)])
        for what, paths in named.items()
    }


def _reading(asked: Asked) -> dict[str, Any]:
    """What else decides which texts there are, and their order."""
    return {name: getattr(asked, name) for name in ("pairs_format", "fields", "queries", "seed")}


def _there(asked: Asked, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The counts of an output that is there, if it is the one that is asked for."""
    found = files.read_json(asked.about) if asked.about.is_file() else {}
    if found.get("made of") != settings:
        raise UserError(f"--out={asked.out}: it is there, of other settings or files; name another, or delete it")
    _log.info("%s: it is there, of the same settings", asked.out)
    return found["counts"]


def _check_cache(cache: Path, settings: Mapping[str, Any]) -> None:
    """Checks that what an earlier process left is of the same texts and model; writes what it is of."""
    path = cache / "settings.json"
    if path.is_file() and files.read_json(path) != settings:
        raise UserError(f"{cache}: embeddings of other texts, or by another model; name another --cache, or delete it")
    files.write_json(path, settings)


@contextlib.contextmanager
def _opened(asked: Asked, run: Run, cache: Path) -> Iterator[tuple[CandidateTexts, Questions, dict[str, Any]]]:
    """The candidates, the queries with the rows of their positives, and what is counted so far."""
    paths = labelled_format.files(run.config.pairs.files)
    settings = labelled_groups.settings(run.config)._replace(seed=asked.seed)
    collection = Path(asked.collection) if asked.collection else None
    with labelled_format.grouped(paths, settings, cache, sys.maxsize) as (groups, read):
        path = cache / "candidates.jsonl"
        left_out = negatives_search.write_candidates(path, collection, groups)
        read.log("mine")
        with CandidateTexts(path) as candidates:
            questions = negatives_search.questions_of(groups, candidates.keys_N)
            if not questions.texts:
                raise UserError(f"{asked.pairs}: no query with a positive is left; name files of labelled examples")
            of_files = {what: number for what, number in read.left_out.items() if number}
            counts = {"queries": len(questions.texts), "candidates": len(candidates), "left out": of_files | left_out}
            yield candidates, questions, counts


def _mined(
    questions: Questions, candidates: CandidateTexts, parts: Iterable[Part], counts: dict[str, Any], wanted: int
) -> Iterator[Mined]:
    """The queries with their documents; when all have been taken, `counts` has what was drawn and left out."""
    left_out, found = Counter(counts["left out"]), Counter(dict.fromkeys(_COUNTED, 0))
    sums = np.zeros(2)
    with terminal.progress(total=len(questions.texts), desc="mine") as progress:
        for start, drawn, of_positives in parts:
            left_out["results that are positives"] += drawn.positives
            left_out["results that are the query itself"] += drawn.others
            left_out["results too close to the positive"] += drawn.too_close
            left_out["results above the highest score"] += drawn.too_high
            fewer, none = (drawn.left_Q < wanted).sum(), (drawn.left_Q == 0).sum()
            sizes = (sum(map(len, values)) for values in (of_positives, drawn.rows))
            found.update(dict(zip(_COUNTED, map(int, (*sizes, fewer, none)))))
            for place, (rows, scores, own) in enumerate(zip(drawn.rows, drawn.scores, of_positives), start):
                sums += own.sum(), scores.sum()
                positives = [candidates[row] for row in questions.positives[place]]
                negatives = [candidates[row] for row in rows]
                yield Mined(questions.texts[place], positives, negatives, own.tolist(), scores.tolist())
            progress.update(len(drawn.rows))
    counts["left out"] = {what: number for what, number in left_out.items() if number}
    counts.update(dict(found))
    for side, total in zip(_COUNTED, sums):
        counts[f"mean score of {side}"] = round(float(total / max(1, found[side])), 6)


def _nothing_left(asked: Asked, counts: Mapping[str, Any]) -> UserError:
    told = ", ".join(f"{what} {number}" for what, number in counts["left out"].items())
    fewer = f"no query has {asked.negatives} negatives" if counts["negatives"] else "no query has a negative"
    return UserError(
        f"{fewer} left among {counts['candidates']} candidates ({told or 'nothing was left out'}): raise --range-max, "
        "lower the margins or --negatives, or name a --collection"
    )

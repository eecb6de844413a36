"""The stage `impressions`: ranks the news that MIND's users were shown, and measures it as the official evaluation."""

import collections
import datetime
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.common.parsing import parquet_files, text_files
from retrieval.data.corpora import source_paths
from retrieval.data.labelled import labelled_format
from retrieval.data.sets import beir
from retrieval.evaluation import display
from retrieval.methods.mind import impressions, set_and_format
from retrieval.methods.mind.set_and_format import Impression
from retrieval.runs.pipeline.run import Run
from retrieval.runs.pipeline.stage import STAGES, Read, Stage
from retrieval.runs.ranking import indexes, rankings
from retrieval.runs.ranking.collection import BASELINES, TRAINED, Collection, open_collection
from retrieval.runs.ranking.ranked_lists import Among
from retrieval.search.index_kind import EXACT, INDEXES

_SET = set_and_format.Mind.name

Scorer = Callable[[Sequence[Impression]], Iterable[np.ndarray]]
System = tuple[str, Scorer]


class History(NamedTuple):
    """What is known from impressions before the test.

    Attributes:
      users: those that were seen.
      clicks: of each of the news, how often it was clicked.
      first: when each of the news was first on a page; later impressions are among those that tell.
    """

    users: set[str]
    clicks: collections.Counter[str]
    first: dict[str, datetime.datetime]


def rank_impressions(run: Run) -> dict[str, Any]:
    """Writes `impressions/`: a prediction file for each system, and `impressions.json` and `.md` with the metrics.

    Raises:
      UserError: the set was made of other impressions.
    """
    (news, behaviors), trained_on = _files(run)
    pages, history = _read(news, behaviors, trained_on, run.owner("sets").config.sets.mind_split)
    shown = [page for page in pages if page.is_asked]
    collection = open_collection(run, _SET)
    ids = [candidate.id for candidate in beir.read_candidates(run.sets / _SET / "corpus.jsonl")]
    # Where the clicks are hidden there are no judgements, and none are needed.
    value = beir.Judged(_SET, beir.read_queries(run.sets / _SET / "queries.jsonl"), ids, {}, {})
    if list(value.queries) != [impression.id for impression in shown]:
        raise UserError(f"{run.sets / _SET}: of other impressions than config.sets.mind has now; --stage=sets first")
    rows = []
    folder = run.folder / "impressions"
    for system, scorer in _systems(collection, value, history, run.owner("index").config.index.words):
        scores = list(scorer(shown))
        lines = _predictions(pages, {item.id: of for item, of in zip(shown, scores)})
        files.write_text(folder / f"{system.replace(' ', '_')}.txt", "".join(f"{line}\n" for line in lines))
        rows += _rows(system, [(item, of) for item, of in zip(shown, scores) if item.is_judged], history)
    files.write_json(folder / "impressions.json", rows)
    files.write_text(folder / "impressions.md", _markdown(rows))
    return {"impressions": len(shown), "users before": len(history.users)}


def _predictions(pages: Sequence[Impression], scores: Mapping[str, np.ndarray]) -> Iterator[str]:
    """The lines of a prediction file: one for each page, which ranks all that was on it, as the official program asks.

    News that news.tsv does not have come last. A page that is not asked for keeps its order.
    """
    for page in pages:
        ranks_N = np.arange(1, len(page.known) + 1)
        if page.id in scores:
            is_known_N = np.array(page.known)
            names = [f"{page.id} {id}" for id in page.shown]
            ranks_N[~is_known_N] = np.arange(len(names) + 1, len(ranks_N) + 1)
            ranks_N[is_known_N] = impressions.ranks(scores[page.id], names)
        yield f"{page.id} [{','.join(map(str, ranks_N))}]"


def _read(news_path: Path, behaviors: Path, trained_on: Iterable[Path], time: str) -> tuple[list[Impression], History]:
    """The impressions of the test, those too that are not asked for, and what those before them tell.

    Args:
      trained_on: other files of impressions.
      time: `sets.mind_split`, when the test begins, in whatever file an impression is; '' where all of `behaviors` are
        of it, and all of the other files come before it.
    """
    news = set_and_format.read_news(news_path)
    history = History(set(), collections.Counter(), {})
    shown: list[Impression] = []
    for path in [behaviors, *trained_on]:
        for impression in set_and_format.read_behaviors(path, news):
            is_before = set_and_format.is_before(impression, time)
            for id in impression.shown:
                history.first[id] = min(impression.time, history.first.get(id, impression.time))
            if path == behaviors and not is_before:
                shown.append(impression)
            if is_before if time else path != behaviors:
                history.users.add(impression.user)
                history.clicks.update(itertools.compress(impression.shown, impression.clicked))
    return shown, history


def _trained_on(labelled: str, behaviors: Path) -> Iterator[Path]:
    """Of the files in `pairs.files`, those of other impressions."""
    for path in labelled_format.files(labelled):
        _, line = ("", "") if parquet_files.is_parquet(path) else next(text_files.lines(path), ("", ""))
        if path.resolve() != behaviors.resolve() and set_and_format.is_behavior(line):
            yield path


def _systems(where: Collection, value: beir.Judged, history: History, words: Iterable[str]) -> Iterator[System]:
    """The name of each system, and what scores the news of impressions."""

    def by_news(value: Callable[[str], float]) -> Scorer:
        return lambda shown: (np.array([value(id) for id in item.shown], float) for item in shown)

    def by_rows(among: Among) -> Scorer:
        return lambda shown: (among(n, np.array([row_of[id] for id in item.shown])) for n, item in enumerate(shown))

    yield "popularity", by_news(lambda id: history.clicks[id])
    yield "most recent", by_news(lambda id: (history.first[id] - datetime.datetime.min).total_seconds())
    row_of = {id: row for row, id in enumerate(value.candidates)}
    texts = list(value.queries.values())
    for kind in indexes.kinds_of_words_of(where, words):
        index = indexes.open_words(kind, where, len(row_of))
        yield kind.system_of(index), by_rows(functools.partial(rankings.by_words, index, len(row_of), texts))
    for system, name in (*zip(BASELINES, BASELINES), (TRAINED, INDEXES[EXACT].system)):
        if where.has_embeddings(system):
            where.check_embeddings(value, system)
            yield name, by_rows(rankings.by_embeddings(where, system))


def _rows(system: str, ranked: Sequence[tuple[Impression, np.ndarray]], history: History) -> Iterator[dict]:
    """The metrics over all impressions, and over those of users and of news that were not seen before.

    Args:
      ranked: judged impressions, each with the scores of what was shown.
    """
    shown = [item for item, _ in ranked]
    measured = [impressions.of_impression(of, np.array(item.clicked)) for item, of in ranked]
    parts: dict[str, Callable[[Impression], bool]] = {
        "all": lambda item: True,
        "cold users": lambda item: item.user not in history.users,
        "no history": lambda item: not item.history,
        "cold news": lambda item: not any(map(history.clicks.get, itertools.compress(item.shown, item.clicked))),
    }
    for part, is_in in parts.items():
        if chosen := list(itertools.compress(measured, map(is_in, shown))):
            yield {"system": system, "impressions of": part, "count": len(chosen), "metrics": impressions.table(chosen)}


def _markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "# MIND\n\nThe clicks are hidden: there are predictions, and no metrics.\n"
    header = ["system", "impressions of", "how many", *impressions.METRICS]

    def in_percent(value: float, plus_minus: float | None) -> str:  # a single impression has no interval
        return f"{100 * value:.2f}" + ("" if plus_minus is None else f" ± {100 * plus_minus:.2f}")

    cells = [[*list(row.values())[:3], *(in_percent(**value) for value in row["metrics"].values())] for row in rows]
    introduction = "In percent, with 95 % intervals over impressions. Cold: no impression or no click before the test."
    return f"# MIND\n\n{introduction}\n\n{display.markdown(header, cells, left=2)}\n"


def _files(run: Run) -> tuple[list[Path], Iterator[Path]]:
    """The files of news and impressions, and those of other impressions that the run or its base has learnt from."""
    paths = [Path(path) for path in source_paths.split(run.owner("sets").config.sets.mind)]
    return paths, _trained_on(run.owner("pairs").config.pairs.files, paths[-1]) if paths else iter(())


def inputs(run: Run) -> Sequence[Path]:
    """The files of news and impressions."""
    own, others = _files(run)
    return source_paths.existing([*own, *others])


def check(run: Run) -> None:
    """Checks that there is a set of impressions, none of which the base has learnt from."""
    shown, learnt = run.owner("sets"), run.owner("pairs")
    begins, ended = shown.config.sets.mind_split, learnt.config.sets.mind_split
    if not (paths := list(map(Path, source_paths.split(shown.config.sets.mind)))):
        raise UserError("stage 'impressions' ranks MIND's: set config.sets.mind=news.tsv,behaviors.tsv")
    of_pairs = source_paths.split(learnt.config.pairs.files) if "pairs" in learnt.config.stages else []
    if learnt.folder == shown.folder or paths[-1].resolve() not in [Path(path).resolve() for path in of_pairs]:
        return
    if not ended or not begins or datetime.datetime.fromisoformat(begins) < datetime.datetime.fromisoformat(ended):
        way = "at any time: set config.sets.mind to others"
        way = f"before {ended}: set that time, or a later one" if ended else way
        what = f"{learnt.display_path} has learnt from the impressions of {paths[-1]}"
        raise UserError(f"config.sets.mind_split='{begins}': {what} {way}")


STAGES.register(
    "impressions",
    Stage(
        rank_impressions,
        check=(check,),
        fields=("sets.mind", "sets.mind_split"),
        reads=(Read("sets", must_match=True), Read("encode", must_match=True), "index"),
        files=inputs,
        writes=("impressions",),
    ),
)

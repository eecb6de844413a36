"""MIND (Wu et al. 2020), the Microsoft News Dataset: what users were shown on a page, and what they clicked.

    news.tsv        news id, category, sub-category, title, abstract, URL, entities of title and of abstract
    behaviors.tsv   impression id, user, time, ids of the news that the user clicked before, news shown with -1 or -0
                    (-1: clicked). The official test half has none of these labels; its first line tells. Older files
                    have no impression id, for which the number of the line stands

A query is a user's history: the titles that they clicked, with `SEPARATOR` between them. The newest is first, so that a
cut loses the oldest (Lu et al. 2021, section 4.4). A candidate is a news article, its title and its abstract.
"""

import datetime
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from retrieval.common.errors import UserError
from retrieval.common.parsing import text_files
from retrieval.data.corpora.source_paths import split
from retrieval.data.labelled import labelled_format
from retrieval.data.labelled.grouping import Counts, Example, example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings
from retrieval.data.sets import beir, relevance
from retrieval.data.sets.beir import Candidate, RetrievalSet
from retrieval.data.sets.set_format import Context, Options, SetFormat, register
from retrieval.data.tokenizers.vocab import SEPARATOR

_log = logging.getLogger(__name__)

_NEWS = 8  # columns
_BEHAVIORS = ("impression id", "user", "time", "history", "impressions")
_OLDER = len(_BEHAVIORS) - 1
_TIME = "%m/%d/%Y %I:%M:%S %p"
_SHOWN = re.compile(r"(\S+)-([01])")

SPLIT = "sets.mind_split"


class Impression(NamedTuple):
    """What a user was shown at a time.

    Attributes:
      history: ids of the news that the user clicked before, the oldest first.
      shown: ids of the news on the page that `read_news` has, in the order of the file.
      clicked: of each of these, whether it was clicked; empty where the file does not tell.
      known: of each of the news on the page, whether it is one of `shown`.
    """

    id: str
    user: str
    time: datetime.datetime
    history: tuple[str, ...]
    shown: tuple[str, ...]
    clicked: tuple[bool, ...]
    known: tuple[bool, ...]

    @property
    def is_asked(self) -> bool:
        """Whether the page is to be ranked: it is judged, or its clicks are hidden."""
        return self.is_judged or bool(self.shown and not self.clicked)

    @property
    def is_judged(self) -> bool:
        """Whether some of the news were clicked and some were not: otherwise every ranking is as good."""
        return any(self.clicked) and not all(self.clicked)


def is_time(value: object) -> bool:
    """Whether a value of `config.sets.mind_split` is '' or a time without a zone."""
    try:
        # MIND's own times have no zone, and one with a zone cannot be compared to them.
        return value == "" or bool(isinstance(value, str) and datetime.datetime.fromisoformat(value).tzinfo is None)
    except ValueError:
        return False


def read_news(path: Path) -> dict[str, Candidate]:
    """News id -> title and abstract; where there is no abstract, the title is the text.

    Raises:
      UserError: a line has not eight columns, no title, or an id that is there twice; with the line.
    """
    news: dict[str, Candidate] = {}
    again = 0
    for at, line in text_files.lines(path):
        fields = line.split("\t")
        if len(fields) != _NEWS:
            raise UserError(f"{at}: {len(fields)} columns, and news.tsv of MIND has {_NEWS}; name that file first")
        id, title, abstract = fields[0], fields[3].strip(), fields[4].strip()
        if not title:
            raise UserError(f"{at}: the news '{id}' has no title; drop the line")
        item = Candidate(id, title, abstract) if abstract else Candidate(id, "", title)
        again += beir.check_id(id, "news id", at) in news
        if news.setdefault(id, item) != item:
            raise UserError(f"{at}: the news id '{id}' is there twice, with another text; ids must be distinct")
    relevance.log_again(path, "news", again)
    if not news:
        raise UserError(f"{path}: no news in it; news.tsv of MIND is needed")
    return news


def read_behaviors(path: Path, news: Mapping[str, Candidate], counts: Counts | None = None) -> Iterator[Impression]:
    """The impressions of a file, one after the other.

    Args:
      counts: is told what is left out: news that `news` has not, in histories and on pages.

    Raises:
      UserError: a line is not of MIND; with the line.
    """
    counts, ids = Counts() if counts is None else counts, set[str]()
    is_older = is_labelled = False  # the first line tells
    for number, (at, line) in enumerate(text_files.lines(path), 1):
        fields = line.split("\t")
        if number == 1:
            is_older, is_labelled = len(fields) == _OLDER, any(map(_SHOWN.fullmatch, fields[-1].split()))
        fields = [str(number), *fields] if is_older else fields
        if len(fields) != len(_BEHAVIORS):
            wanted = ", ".join(_BEHAVIORS)
            raise UserError(f"{at}: {len(fields)} columns, and behaviors.tsv of MIND has {len(_BEHAVIORS)}: {wanted}")
        id, user, time, history, shown = fields
        if beir.check_id(id, "impression id", at) in ids:
            raise UserError(f"{at}: the impression id '{id}' is there twice; ids must be distinct")
        ids.add(id)
        page = _page(shown, is_labelled, at)
        sides = {
            "clicks of histories on unknown news": history.split(),
            "unknown news on pages": [item for item, _ in page],
        }
        for what, items in sides.items():
            for _ in (item for item in items if item not in news):
                counts.leave_out(what, at)
        # The ids of `news` themselves: millions of impressions name the same ones.
        before, there = (tuple(news[item].id for item in items if item in news) for items in sides.values())
        known = tuple(item in news for item, _ in page)
        clicks = tuple(clicked for item, clicked in page if item in news) if is_labelled else ()
        yield Impression(id, user, _time(time, at), before, there, clicks, known)


def is_behavior(line: str) -> bool:
    """Whether a line looks like one of behaviors.tsv."""
    *_, shown = fields = line.split("\t")
    return len(fields) in (_OLDER, len(_BEHAVIORS)) and bool(shown) and all(map(_SHOWN.fullmatch, shown.split()))


def history_of(impression: Impression, news: Mapping[str, Candidate]) -> str:
    """The titles that the user clicked, the newest first; of a user without a history the separator alone."""
    titles = [news[id].title or news[id].text for id in reversed(impression.history)]
    return f" {SEPARATOR} ".join(titles) or SEPARATOR


def is_before(impression: Impression, time: str) -> bool:
    """Whether an impression is before the set, by the value of `SPLIT`; where that is '' it is of the set."""
    return bool(time) and impression.time < datetime.datetime.fromisoformat(time)


@register
class Mind(SetFormat):
    """The news on the pages of its impressions are the candidates, the clicked ones the relevant ones."""

    name = "mind"
    what = "MIND: news and impressions, as TSV"
    setting = "--config.sets.mind=news.tsv,behaviors.tsv"
    example = "1⇥U1⇥11/14/2019 9:05:58 AM⇥N1 N2⇥N3-1 N4-0"
    options = (SPLIT,)
    parts = ("news", "impressions")

    def read(self, value: str, context: Context) -> Iterator[RetrievalSet]:
        news_path, behaviors = map(Path, split(value))
        news, counts = read_news(news_path), Counts()
        queries, qrels, shown, without_history = {}, {}, {}, 0
        histories: dict[str, str] = {}  # a user has the same one on many pages: each text once
        for impression in read_behaviors(behaviors, news, counts):
            at = f"impression '{impression.id}'"
            if is_before(impression, context.options[SPLIT]):
                counts.leave_out("impressions before config.sets.mind_split, which are trained on", at)
            elif not impression.is_asked:
                counts.leave_out("impressions without a click, or with nothing else", at)
            else:
                without_history += not impression.history
                history = history_of(impression, news)
                queries[impression.id] = histories.setdefault(history, history)
                shown |= dict.fromkeys(impression.shown)
            if impression.id in queries and impression.is_judged:
                qrels[impression.id] = {id: 1 for id, hit in zip(impression.shown, impression.clicked) if hit}
        counts.log_left_out(str(behaviors))
        if without_history:
            _log.info("%s: %d impressions without a history, which stay", behaviors, without_history)
        if not queries:
            raise UserError(f"{behaviors}: no impression is left to evaluate; look at config.sets.mind_split")
        if not qrels:
            _log.warning("%s: does not tell what was clicked, so pages are ranked and not measured", behaviors)
        # In the order of news.tsv: equal scores keep that of candidates, and a page may list what was clicked first.
        candidates = [candidate for id, candidate in news.items() if id in shown]
        yield RetrievalSet(self.name, queries, candidates, {"test": qrels} if qrels else {})

    def check_path(self, path: Path, options: Options) -> None:
        at, line = next(text_files.lines(path), (str(path), ""))
        if len(line.split("\t")) not in (_NEWS, _OLDER, len(_BEHAVIORS)):
            raise UserError(f"{at}: no file of MIND; {self.setting} is needed")


@labelled_format.register
class MindClicks(LabelledFormat):
    """Impressions from `config.sets.mind_split` on are left out: the set is made of these."""

    name = "mind"
    what = "MIND's impressions"
    setting = "--config.pairs.files=behaviors.tsv,… --config.pairs.collection=news.tsv"
    example = "1⇥U1⇥11/13/2019 9:05:58 AM⇥N1⇥N3-1 N4-0"
    of_pages = True
    needs = ("collection",)

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        settings, counts = reading.settings, reading.counts
        news = read_news(Path(settings.collection))
        for impression in read_behaviors(path, news, counts):
            at = f"{path}, impression '{impression.id}'"
            if settings.until and not is_before(impression, settings.until):
                counts.leave_out("impressions of the evaluation set", at)
            elif not impression.history:
                counts.leave_out("impressions of users without a history", at)
            elif not any(impression.clicked):
                counts.leave_out("impressions without a click", at)
            else:
                sides = ([], [])
                for id, clicked in zip(impression.shown, impression.clicked):
                    sides[not clicked].append(news[id])
                if made := example(history_of(impression, news), *sides, at, counts):
                    yield made

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        return is_behavior(line)


def _time(text: str, at: str) -> datetime.datetime:
    try:
        return datetime.datetime.strptime(text, _TIME)
    except ValueError:
        raise UserError(f"{at}: the time '{text}' is not written as 11/14/2019 9:05:58 AM; mend the line") from None


def _page(text: str, is_labelled: bool, at: str) -> list[tuple[str, bool]]:
    """The news of a page, and whether each was clicked; where the file does not tell, as if none had been."""
    matches = {item: _SHOWN.fullmatch(item) for item in text.split()}
    if not matches or any(bool(match) != is_labelled for match in matches.values()):
        way = "N3-1 or N3-0" if is_labelled else "N3, which does not say whether it was clicked"
        raise UserError(f"{at}: '{text}': news that was shown is needed, each written as {way}, as in the first line")
    return [(match[1], match[2] == "1") if (match := matches[item]) else (item, False) for item in text.split()]

"""Impressions of MIND as labelled examples: a user's history, the news that were clicked, and those that were not."""

from collections.abc import Iterator
from pathlib import Path

from retrieval.data.labelled.grouping import Example, example
from retrieval.data.labelled.labelled_format import LabelledFormat, Reading, Settings, register
from retrieval.errors import UserError
from retrieval.methods.mind import mind_set


@register
class MindClicks(LabelledFormat):
    """Impressions from `config.sets.mind_split` on are left out: the set is made of these."""

    name = "mind"
    what = "MIND's impressions"
    setting = "--config.pairs.files=behaviors.tsv,… --config.pairs.collection=news.tsv"
    example = "1⇥U1⇥11/13/2019 9:05:58 AM⇥N1⇥N3-1 N4-0"
    of_pages = True

    def read(self, path: Path, reading: Reading) -> Iterator[Example]:
        settings, counts = reading.settings, reading.counts
        news = mind_set.read_news(Path(settings.collection))
        for impression in mind_set.read_behaviors(path, news, counts):
            at = f"{path}, impression '{impression.id}'"
            if not mind_set.is_before(impression, settings.until):
                counts.leave_out("impressions of the evaluation set", at)
            elif not impression.history:
                counts.leave_out("impressions of users without a history", at)
            elif not any(impression.clicked):
                counts.leave_out("impressions without a click", at)
            else:
                sides = ([], [])
                for id, clicked in zip(impression.shown, impression.clicked):
                    sides[not clicked].append(news[id])
                if made := example(mind_set.history_of(impression, news), *sides, at, counts):
                    yield made

    def recognises(self, path: Path, line: str, settings: Settings) -> bool:
        return mind_set.is_behavior(line)

    def check(self, path: Path, settings: Settings) -> None:
        if not settings.collection:
            raise UserError(
                f"{path}: impressions of MIND, whose news are elsewhere: set config.pairs.collection=news.tsv"
            )

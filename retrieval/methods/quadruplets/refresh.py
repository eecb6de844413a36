"""The refresh 'quadruplets': simple and hard negatives (Liu et al. 2021, QuadrupletBERT, section 2.4).

The simple ones come by chance, others in every version. The hard ones are ranked high by the model as it is.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.data.labelled import pair_shards
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.runs.fitting.refresh_kind import REFRESHES
from retrieval.runs.fitting.versions import Counts, RefreshInputs, Write
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pairs.hard_negatives import Mined, Mining, Question, Searched
from retrieval.runs.pairs.mined_negatives import Layout, NegativesRefresh, check_left
from retrieval.search.mining import Rule, at_random

# What is told of simple negatives too.
_SIMPLE = ("negatives", "results of equal text", "results with an answer")


class QuadrupletsRefresh(NegativesRefresh):
    """As 'negatives', with simple negatives before the hard ones."""

    name = "quadruplets"
    what = "simple and hard negatives of the training questions"

    def check(self, config: ConfigDict) -> None:
        """Checks that examples have a place for both."""
        if config.data.negatives != 2 or not config.data.rates.quadruplets:
            raise UserError(
                "config.mine.refresh_makes=quadruplets makes a simple and a hard negative for each example: set "
                "config.data.rates.quadruplets=1 and config.data.negatives=2"
            )
        super().check(config)

    def writer(
        self,
        layout: Layout,
        mining: Mining,
        inputs: RefreshInputs,
        questions: Sequence[Question],
        candidates: CandidateTexts,
        mined: Mined,
    ) -> Write:
        """As `NegativesRefresh.writer`."""
        count = mining.rule.count
        texts, search = [each.text for each in questions], at_random(len(candidates), mining.seed + inputs.version)
        by_chance = Searched(questions, candidates, texts, search)
        simple = hard_negatives.mine(mining._replace(rule=Rule(count, first=1, last=count)), by_chance, inputs.version)
        rows = [np.concatenate(both) for both in zip(simple.rows, mined.rows)]
        check_left(questions, rows, layout, mining.answers)
        counts = mined.counts | {f"simple {name}": simple.counts[name] for name in _SIMPLE if name in simple.counts}

        def write(folder: Path) -> Counts:
            pair_shards.write_pairs(
                _Examples(questions, candidates, rows),
                inputs.vocabulary,
                folder,
                layout.shards,
                layout.positives,
                simple=[len(first) for first, both in zip(simple.rows, rows) if len(both)],
                prefixes=inputs.prefixes,
            )
            return counts

        return write


@dataclasses.dataclass(frozen=True)
class _Examples:
    """The questions with their texts, each time that they are iterated over."""

    questions: Sequence[Question]
    candidates: CandidateTexts
    negatives: Sequence[np.ndarray]

    def __iter__(self) -> Iterator[Example]:
        return hard_negatives.mined_examples(self.questions, self.candidates, self.negatives)


REFRESHES.register(QuadrupletsRefresh.name, QuadrupletsRefresh())

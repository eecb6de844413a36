"""The refresh 'quadruplets': simple and hard negatives (Liu et al. 2021, QuadrupletBERT, section 2.4).

The simple ones come by chance, others in every version. The hard ones are ranked high by the model as it is.
"""

from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.runs.fitting.refresh_kind import REFRESHES
from retrieval.runs.fitting.versions import Counts, Write
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pairs.hard_negatives import MinedExamples, Searched
from retrieval.runs.pairs.mined_negatives import MinedVersion, NegativesRefresh
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
            way = "set config.data.rates.quadruplets=1 and config.data.negatives=2"
            raise UserError(f"config.mine.refresh_makes=quadruplets makes a simple and a hard negative: {way}")
        super().check(config)

    def writer(self, version: MinedVersion) -> Write:
        """As `NegativesRefresh.writer`."""
        mining, mined, number = version.mining, version.mined, version.inputs.version
        questions, candidates, count = version.questions, version.candidates, mining.rule.count
        texts, search = [each.text for each in questions], at_random(len(candidates), mining.seed + number)
        by_chance = Searched(questions, candidates, texts, search)
        simple = hard_negatives.mine(mining._replace(rule=Rule(count, first=1, last=count)), by_chance, number)
        rows = [np.concatenate(both) for both in zip(simple.rows, mined.rows)]
        version.check_left(rows)
        counts = mined.counts | {f"simple {name}": simple.counts[name] for name in _SIMPLE if name in simple.counts}

        def write(folder: Path) -> Counts:
            numbers = [len(first) for first, both in zip(simple.rows, rows) if len(both)]
            version.write(folder, MinedExamples(questions, candidates, rows), numbers)
            return counts

        return write


REFRESHES.register(QuadrupletsRefresh.name, QuadrupletsRefresh())

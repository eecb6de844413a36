"""The refresh 'negatives': hard negatives, mined with the model as it is (ANCE, Xiong et al. 2021)."""

import array
import itertools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.common.errors import UserError
from retrieval.data.labelled import grouping, pair_shards
from retrieval.data.labelled.grouping import Example
from retrieval.data.sets.row_texts import CandidateTexts
from retrieval.recipes.recipe import guide_of, has_teacher, recipe_of
from retrieval.recipes.towers import candidate_windows, query_tokens
from retrieval.runs.fitting import examples, held_out_questions
from retrieval.runs.fitting.refresh import RefreshKind
from retrieval.runs.fitting.refresh_kind import REFRESHES
from retrieval.runs.fitting.versions import Counts, RefreshInputs, Write
from retrieval.runs.pairs import hard_negatives
from retrieval.runs.pairs.hard_negatives import Mined, MinedExamples, Mining, Question, Searched
from retrieval.runs.pipeline.run import Run
from retrieval.search import windows
from retrieval.search.exact import ExactIndex


class MinedVersion(NamedTuple):
    """Mined negatives that are to be written as the stage `pairs` wrote version 0.

    Attributes:
      writer: the config of that stage's run.
      least: labelled pairs of a version at least; 0 where batches have other examples, too.
      questions: those that were mined for.
    """

    writer: ConfigDict
    least: int
    mining: Mining
    inputs: RefreshInputs
    questions: Sequence[Question]
    candidates: CandidateTexts
    mined: Mined

    def check_left(self, rows: Sequence[np.ndarray]) -> None:
        """Checks a version before it is written: what is there is taken as it is, by every start to come.

        Args:
          rows: of each question's negatives.
        """
        left = [len(question.positives) for question, negatives in zip(self.questions, rows) if len(negatives)]
        pairs_left = sum(min(count, self.writer.pairs.positives or count) for count in left)
        if pairs_left < self.least:
            few = f"{pairs_left} labelled pairs and no batch of config.train.batch_size={self.least}"
            way = "in a new --workdir, raise config.mine.last or lower the margins of config.mine"
            way += hard_negatives.WITHOUT_ANSWERS if self.mining.answers else ""
            what = f"of {len(self.questions)} training questions {len(left)} have a negative left"
            raise UserError(f"{what}, which are {few}: {way}")

    def write(self, folder: Path, groups: Iterable[Example], simple: Sequence[int] | None = None) -> None:
        """Writes shards of examples; `simple` is as of `pair_shards.PairWriter`."""
        vocabulary, prefixes = self.inputs.vocabulary, self.inputs.prefixes
        positives, shards = self.writer.pairs.positives, self.writer.split.shards
        pair_shards.PairWriter(groups, vocabulary, positives, simple=simple, prefixes=prefixes).write(folder, shards)


class NegativesRefresh(RefreshKind):
    """The pairs of a share of the training questions, with negatives that the model ranks high."""

    name = "negatives"
    what = "hard negatives of the training questions"
    needs = ("sets",)

    def check(self, config: ConfigDict) -> None:
        """Checks that batches take negatives, which have no teacher's scores, and which are mined."""
        every, recipe = f"config.mine.refresh_every={config.mine.refresh_every}", recipe_of(config)
        if not config.data.negatives:
            raise UserError(f"{every} mines hard negatives, and config.data.negatives=0 takes none: raise that")
        if not recipe.has_towers:
            raise UserError(f"{every} mines with the embeddings of the model, and {recipe.label} has none: set 0")
        if has_teacher(recipe):
            why = "learns from a teacher's scores, which negatives mined anew would lack"
            raise UserError(f"config.train.loss={config.train.loss} {why}: set config.mine.refresh_every=0")
        if guide := guide_of(recipe):
            why = "embeds the pairs before training, and negatives mined anew would lack it"
            raise UserError(f"config.train.guide={guide} {why}: set it to '', or config.mine.refresh_every=0")
        hard_negatives.check(config.data.negatives, config.mine)

    def check_run(self, run: Run) -> None:
        """Checks that there are training questions to mine for."""
        hard_negatives.check_questions(run)

    def check_pairs(self, config: ConfigDict, pairs: Path) -> None:
        """A version is mined for a share of the questions, and may be too small where version 0 is not."""
        statistics, share, batch_size = pairs / "stats.json", config.mine.refresh_share, config.train.batch_size
        if examples.unlabelled(config) or not statistics.exists():
            return
        trained_on = files.read_json(statistics)["pairs with negatives"]
        if trained_on >= batch_size > (drawn := int(share * trained_on)):  # or one more
            few = f"of {trained_on} labelled pairs are {drawn}, fewer than config.train.batch_size={batch_size}"
            raise UserError(f"config.mine.refresh_share={share} {few}: raise the share, or lower the batch")

    def make(self, run: Run, inputs: RefreshInputs, publish: Callable[[Write], None]) -> None:
        """As `RefreshKind.make`.

        Raises:
          UserError: no question has a negative, or too few for a batch.
        """
        config, writer = run.config, run.owner("pairs").config
        least = 0 if examples.unlabelled(config) else config.train.batch_size
        mining = hard_negatives.mining_of(config.mine, config.split.seed)
        file = run.sets / held_out_questions.divided_set(run) / "corpus.jsonl"
        with hard_negatives.open_questions(run.training, file, needs_answers=mining.answers) as (questions, candidates):
            drawn = hard_negatives.draw(questions, config.mine.refresh_share, config.split.seed, inputs.version)
            queries_QE, index = _embedded(config, inputs, drawn, candidates)
            searched = Searched(drawn, candidates, queries_QE, index.search)
            mined = hard_negatives.mine(mining, searched, inputs.version)
            publish(self.writer(MinedVersion(writer, least, mining, inputs, drawn, candidates, mined)))

    def writer(self, version: MinedVersion) -> Write:
        """What writes the version, of mined negatives.

        Raises:
          UserError: it would be too small for a batch.
        """
        mined, counts = version.mined, grouping.Counts()
        version.check_left(mined.rows)
        made = MinedExamples(version.questions, version.candidates, mined.rows)

        def write(folder: Path) -> Counts:
            seed, count = version.writer.split.seed, version.mining.rule.count
            with grouping.grouped(made, folder, count, counts, seed=seed) as groups:
                version.write(folder, groups)
            return mined.counts

        return write

    def summary(self, counts: Counts) -> tuple[str, dict[str, float]]:
        """As `RefreshKind.summary`."""
        numbers = {"RR": counts["RR"], "negatives": counts["negatives"] / counts["questions"]}
        return f"negatives of {counts['questions']} questions", numbers


def _embedded(
    config: ConfigDict, inputs: RefreshInputs, questions: Sequence[Question], candidates: CandidateTexts
) -> tuple[np.ndarray, windows.Index]:
    """The embeddings of questions [Q, E], and exact search over all candidates, of which a shard's texts are held."""
    vocabulary, embedder = inputs.vocabulary, inputs.embedder
    tokens = query_tokens(config, vocabulary, [question.text for question in questions])
    queries_QE = embedder.embed_rows(embedder.queries(inputs.params), tokens)
    tower = embedder.documents(inputs.params)
    # Room for as many as there may be: the system gives memory to what is written alone.
    windows_WE = np.empty((len(candidates) * config.encode.windows, queries_QE.shape[1]), np.float32)
    owners = array.array("i")
    for start in range(0, len(candidates), config.encode.shard_size):
        rows = range(start, min(start + config.encode.shard_size, len(candidates)))
        cut = candidate_windows(config, vocabulary, [candidates[row] for row in rows])
        tokens = list(itertools.chain.from_iterable(cut))
        windows_WE[len(owners) : len(owners) + len(tokens)] = embedder.embed_rows(tower, tokens)
        owners.extend(row for row, windows_of_text in zip(rows, cut) for _ in windows_of_text)
    index = ExactIndex(windows_WE[: len(owners)], mesh=inputs.mesh)
    return queries_QE, windows.over_candidates(index, np.asarray(owners))


REFRESHES.register(NegativesRefresh.name, NegativesRefresh())

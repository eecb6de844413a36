"""Versions of the labelled pairs: how one is mined from a model's parameters, where it lies, and batches of it.

Version 0 is what the stage `pairs` wrote. The others lie in `refreshed/`, whole or not at all.
"""

import array
import functools
import itertools
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from retrieval import files
from retrieval.data.labelled import grouping, pair_shards
from retrieval.data.labelled.grouping import Counts, Example
from retrieval.data.sets.candidate_texts import CandidateTexts
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError
from retrieval.recipes import examples
from retrieval.recipes.towers import Embedder, candidate_windows, query_tokens
from retrieval.runtime import hosts
from retrieval.search import windows
from retrieval.search.exact import ExactIndex
from retrieval.stage_outputs import Run
from retrieval.stages import hard_negatives
from retrieval.stages.hard_negatives import Mined, Question

_log = logging.getLogger(__name__)

FOLDER = "refreshed"
_VERSION, _STATISTICS = "version.json", "mined.json"


class Versions:
    """Batches of one version of the pairs after another."""

    def __init__(self, run: Run, vocabulary: Vocabulary, mesh: jax.sharding.Mesh):
        """Begins with version 0.

        Raises:
          UserError: it has fewer examples than a batch has rows, or the next ones will have.
        """
        config, folder = run.config, run.folder
        if not examples.unlabelled(config):
            _check_share(run.pairs / "stats.json", config.mine.refresh_share, config.train.batch_size)

        def make(version: int) -> examples.Batches:
            return examples.make_batches(
                run, vocabulary, mesh, folder_of(folder, version) if version else None, version
            )

        self._folder, self._make = folder, make
        self._version, self._batches = 0, make(0)

    def __iter__(self) -> "Versions":
        return self

    def __next__(self) -> dict[str, jax.Array]:
        return next(self._batches)

    def turn_to(self, version: int) -> None:
        """From now on the batches are of this version, from its beginning.

        Raises:
          UserError: its files are not what was written, or too few.
        """
        files.verify_manifest(folder_of(self._folder, version), "delete the newest checkpoint, and train again")
        self._version, self._batches = version, self._make(version)

    def save(self, folder: Path) -> None:
        """Writes version and position into `folder`."""
        if hosts.is_first():
            files.write_json(folder / _VERSION, self._version)
        self._batches.save(folder)

    def restore(self, folder: Path) -> None:
        """Goes back to a saved position, of whatever version.

        Raises:
          UserError: there is none, or the version is not what it was.
        """
        if (version := files.read_json(folder / _VERSION)) != self._version:
            self.turn_to(version)
        self._batches.restore(folder)


def mine(
    run: Run, vocabulary: Vocabulary, embedder: Embedder, mesh: jax.sharding.Mesh, params: Any, version: int
) -> None:
    """Mines a version with parameters, and writes it. Every process of the mesh takes its part.

    Raises:
      UserError: no question has a negative, or too few for a batch.
    """
    config, settings, mining = run.config, run.holder("pairs").config, hard_negatives.mining_of(run.config)
    file = run.sets / examples.divided_set(run) / "corpus.jsonl"
    with hard_negatives.open_questions(run.training, file, needs_answers=mining.answers) as (questions, candidates):
        drawn = hard_negatives.draw(questions, config.mine.refresh_share, config.split.seed, version)
        queries_QE, index = _embedded(config, vocabulary, embedder, params, mesh, drawn, candidates)
        mined = hard_negatives.mine(mining, drawn, candidates, index.search, queries_QE, version)
        if not examples.unlabelled(config):
            _check_left(drawn, mined, settings.pairs.positives, config.train.batch_size, mining.answers)
        write = functools.partial(
            _write,
            folder_of(run.folder, version),
            hard_negatives.mined_examples(drawn, candidates, mined.rows),
            vocabulary,
            pool=config.mine.negatives,
            seed=settings.split.seed,
            shards=settings.split.shards,
            positives=settings.pairs.positives,
            counts=mined.counts | {"step": version * config.mine.refresh_every},
        )
        hosts.on_first(write)


def statistics(folder: Path, version: int) -> dict[str, Any]:
    """What was counted when a version was mined."""
    return files.read_json(folder_of(folder, version) / _STATISTICS)


def folder_of(folder: Path, version: int) -> Path:
    """Where a version lies in the folder of a run."""
    return folder / FOLDER / f"{version:05d}"


def drop_unneeded(folder: Path, version: int, every: int, lag: int, kept: Collection[int]) -> None:
    """Deletes the versions that are of no more use when this one is to come.

    Args:
      every, lag: the fields `mine.refresh_every` and `mine.refresh_lag`.
      kept: the steps of the checkpoints that a run may go on from.
    """
    place = folder / FOLDER
    files.remove_temporaries(place)
    # The batch of step s was of version (s - 1 - lag) // every. While they lag, the next one may be there already. The
    # version before may be read by others at this moment.
    needed = {version - 1, version} | {(step - 1 - behind) // every for step in kept for behind in (0, lag)}
    for path in place.glob("*"):
        if path.name.isdecimal() and int(path.name) not in needed:
            files.remove(path)


def is_there(folder: Path, version: int) -> bool:
    """Whether a version has been written, and is what was written."""
    path = folder_of(folder, version)
    if not path.exists():
        return False
    try:
        files.verify_manifest(path, "it is made again")
    except UserError as error:
        _log.warning("%s", error)
        return False
    return True


def _check_share(statistics: Path, share: float, batch_size: int) -> None:
    """A version is mined for a share of the questions, and may be too small where version 0 is not."""
    if not statistics.exists():
        return
    there = files.read_json(statistics)["pairs with negatives"]
    if there >= batch_size > (left := round(share * there)):
        raise UserError(
            f"config.mine.refresh_share={share} of {there} labelled pairs are {left}, fewer than "
            f"config.train.batch_size={batch_size}: training would end at the first refresh; raise the share, such as "
            "to 1, or lower the batch"
        )


def _check_left(questions: Sequence[Question], mined: Mined, most: int, batch_size: int, answers: bool) -> None:
    """Said before it is written: what is there is taken as it is, by every start to come.

    Args:
      most: the labelled pairs of a question at most; 0: one for each positive.
      answers: whether passages that hold an answer were left out.
    """
    left = [question for question, rows in zip(questions, mined.rows) if len(rows)]
    pairs_left = sum(min(len(question.positives), most or len(question.positives)) for question in left)
    if pairs_left < batch_size:
        raise UserError(
            f"of {len(questions)} training questions {len(left)} have a negative left, which are {pairs_left} labelled "
            f"pairs and no batch of config.train.batch_size={batch_size}: in a new --workdir, raise "
            "config.mine.last or lower the margins of config.mine"
            + (", or set config.mine.answers=False" if answers else "")
        )


def _embedded(
    config: ConfigDict,
    vocabulary: Vocabulary,
    embedder: Embedder,
    params: Any,
    mesh: jax.sharding.Mesh,
    questions: Sequence[Question],
    candidates: CandidateTexts,
) -> tuple[np.ndarray, windows.Index]:
    """The embeddings of questions [Q, E], and exact search over all candidates, of which a shard's texts are held."""
    tokens = query_tokens(config, vocabulary, [question.text for question in questions])
    queries_QE = embedder.embed_rows(embedder.queries(params), tokens)
    tower = embedder.documents(params)
    # Room for as many as there may be: the system gives memory to what is written alone.
    windows_WE = np.empty((len(candidates) * config.encode.windows, queries_QE.shape[1]), np.float32)
    owners = array.array("i")
    for start in range(0, len(candidates), config.encode.shard_size):
        rows = range(start, min(start + config.encode.shard_size, len(candidates)))
        cut = candidate_windows(config, vocabulary, [candidates[row] for row in rows])
        tokens = list(itertools.chain.from_iterable(cut))
        windows_WE[len(owners) : len(owners) + len(tokens)] = embedder.embed_rows(tower, tokens)
        owners.extend(row for row, own in zip(rows, cut) for _ in own)
    index = ExactIndex(windows_WE[: len(owners)], mesh=mesh)
    return queries_QE, windows.over_candidates(index, np.asarray(owners))


def _write(
    folder: Path,
    mined: Iterable[Example],
    vocabulary: Vocabulary,
    *,
    pool: int,
    seed: int,
    shards: int,
    positives: int,
    counts: Mapping[str, Any],
) -> None:
    """Writes a version as the stage `pairs` writes its shards, whole or not at all; `counts` is told beside them."""
    with files.atomic(folder) as temporary:
        temporary.mkdir()
        with grouping.grouped(mined, temporary, pool, Counts(), seed=seed) as groups:
            pair_shards.write_pairs(groups, vocabulary, temporary, shards, positives)
        files.write_json(temporary / _STATISTICS, counts)
        files.write_manifest(temporary)

"""The stage `weigh`: how much each word of a passage counts, by a trained DeepCT, for the index `deepct`."""

import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from retrieval.config.fields import SWITCH, Field, declare, whole
from retrieval.data.sets.beir import Candidate
from retrieval.errors import UserError
from retrieval.models.deepct import DeepCT
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.initial_parameters import check_vocabulary, load_parameters
from retrieval.recipes.recipe import recipe_of
from retrieval.recipes.term_weigher import Scale, TermWeigher
from retrieval.stage_outputs import Run
from retrieval.stages import passage_lines
from retrieval.stages.collection import collections, of_pairs
from retrieval.stages.passage_lines import Lines

_log = logging.getLogger(__name__)

FOLDER = "term_weights"
KEPT, WITHOUT = "words kept", "passages without a word"

declare(
    "weigh",
    scale=Field(100, whole(1), "a word of weight 1 counts so many times in its passage"),
    square_root=Field(False, SWITCH, "whether the root of a weight counts: more words stay, for k1 18 and b 0.7"),
    batch_size=Field(64, whole(1), "passages of a batch"),
    shard_size=Field(4096, whole(1), "passages of a shard: a run that was cut off goes on with the next one"),
)


def weigh(run: Run) -> dict[str, Any]:
    """Writes `term_weights/NAME.jsonl` for every collection; returns the counts of each."""
    weigher = functools.cache(functools.partial(_weigher, run))
    make = functools.partial(_lines, weigh=lambda passages: weigher().weigh(passages))
    size, counts = run.config.weigh.shard_size, {}
    for item in collections(run):
        path = run.folder / FOLDER / f"{item.name}.jsonl"
        counts[item.name] = own = passage_lines.write(path, item, size, make)
        _log.info("%s: %s", path.name, ", ".join(f"{what} {number:,}" for what, number in own.items()))
    return counts


def _lines(passages: Sequence[Candidate], weigh: Callable[[Sequence[Candidate]], list[dict[str, int]]]) -> Lines:
    frequencies = weigh(passages)
    lines = [
        json.dumps({"_id": passage.id, "frequencies": words}, ensure_ascii=False) + "\n"
        for passage, words in zip(passages, frequencies)
    ]
    return Lines(lines, Counter({KEPT: sum(map(len, frequencies)), WITHOUT: sum(not words for words in frequencies)}))


def _weigher(run: Run) -> TermWeigher:
    holder, vocabulary = run.holder("train").folder, run.load_vocabulary()
    check_vocabulary(run, holder, "config.base")
    config, model = load_parameters(holder, len(vocabulary), run.config.mesh)
    assert isinstance(model, DeepCT), "`check` refuses others"
    own = run.config.weigh
    return TermWeigher(config, vocabulary, model, Scale(own.scale, own.square_root), own.batch_size)


def check(run: Run) -> None:
    """Checks that the model of the run weighs words.

    Raises:
      UserError: it does not.
    """
    holder = run.holder("train")
    trained = run.config if holder.folder == run.folder else holder.config
    if recipe_of(trained).kind != "terms":
        raise UserError(
            f"stage 'weigh' needs a model that weighs words, and {holder.place} has {recipe_of(trained).label}: set "
            "config.recipe=deepct, or config.base to a run of one"
        )


STAGES.register(
    "weigh",
    Stage(
        weigh,
        check=(check, Run.check_vocabulary),
        reads="checkpoint, sets, passages",
        writes="`term_weights/NAME.jsonl`: how often each word of a passage counts",
        settings=("weigh", "encode.corpus"),
        needs=("prepare", "sets", "train"),
        also=of_pairs,
        inputs=Run.vocabulary_inputs,
        outputs=(FOLDER,),
        everywhere=True,
    ),
)

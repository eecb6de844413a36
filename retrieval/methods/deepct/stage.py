"""The stage `weigh`: how much each word of a passage counts, by a trained DeepCT, for the index `deepct`."""

import functools
import json
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

from retrieval.data.sets.beir import Candidate
from retrieval.methods.deepct.model import DeepCT
from retrieval.methods.deepct.term_weigher import Scale, TermWeigher
from retrieval.pipeline.stage import STAGES, Stage
from retrieval.recipes.trained_model import Trained, check_kind, open_trained
from retrieval.runtime import platforms
from retrieval.stage_outputs import Run
from retrieval.stages import passage_lines
from retrieval.stages.collection import collections, of_pairs
from retrieval.stages.passage_lines import Lines

_log = logging.getLogger(__name__)

FOLDER = "term_weights"
KEPT, WITHOUT = "words kept", "passages without a word"


def weigh(run: Run) -> dict[str, Any]:
    """Writes `term_weights/NAME.jsonl` for every collection; returns the counts of each."""
    fields = run.config.weigh
    weigher = functools.cache(lambda: _weigher(open_trained(run), fields))  # none where all is weighed
    make = functools.partial(_lines, weigher=weigher)
    counts = passage_lines.write_all(run.folder / FOLDER, collections(run), fields.shard_size, make)
    for name, of_collection in counts.items():
        _log.info("%s: %s", name, ", ".join(f"{what} {number:,}" for what, number in of_collection.items()))
    return counts


def _lines(passages: Sequence[Candidate], weigher: Callable[[], TermWeigher]) -> Lines:
    frequencies = weigher().weigh(passages)
    lines = [
        json.dumps({"_id": passage.id, "frequencies": words}, ensure_ascii=False) + "\n"
        for passage, words in zip(passages, frequencies)
    ]
    without, long = sum(not words for words in frequencies), weigher().cut(passages)
    return Lines(lines, Counter({KEPT: sum(map(len, frequencies)), WITHOUT: without, passage_lines.LONG: long}))


def _weigher(trained: Trained, fields: ConfigDict) -> TermWeigher:
    """What weighs words with a trained model, as `config.weigh` says."""
    assert isinstance(trained.model, DeepCT), "the stage's check refuses others"
    return TermWeigher(*trained, Scale(fields.scale, fields.square_root), fields.batch_size)


STAGES.register(
    "weigh",
    Stage(
        weigh,
        check=(
            lambda run: check_kind(run, "terms", "stage 'weigh' needs a model that weighs words", "deepct"),
            Run.check_vocabulary,
            platforms.check,
        ),
        fields=("weigh", "encode.corpus"),
        reads=lambda config: ("prepare", "sets", "train", *of_pairs(config)),
        files=Run.vocabulary_inputs,
        writes=(FOLDER,),
        everywhere=True,
    ),
)

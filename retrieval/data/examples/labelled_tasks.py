"""Tasks over labelled examples, which the stage `pairs` writes as shards; `pair_shards` says what a record has."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from retrieval import files
from retrieval.data.examples.task_kind import Shards, Stored, TaskKind
from retrieval.data.examples.token_rows import Record, Specials, document_row
from retrieval.data.labelled import known_positives, pair_shards
from retrieval.libraries import tf

_log = logging.getLogger(__name__)


_INTEGERS = (
    "query",
    "titles",
    "title_lengths",
    "texts",
    "text_lengths",
    "document_id",
    "known",
    "simple",
    pair_shards.GUIDE,
)
LABELLED = Shards(
    pair_shards.PATTERN, {**dict.fromkeys(_INTEGERS, "int64"), **dict.fromkeys(("counts", "teacher"), "float32")}
)


class LabelledTask(TaskKind):
    """A task that reads every labelled example."""

    is_labelled = True
    shards = LABELLED

    def epoch(self, stored: Stored, negatives: int) -> int:
        """As `TaskKind.epoch`. With negatives an example is made only of the records that have some."""
        if not stored.labelled:
            raise self.no_example("no stage has written pairs, see config.pairs.files and config.split.set")
        written = files.read_json(stored.labelled / "stats.json")
        size = written["pairs with negatives" if negatives else "pairs"]
        if not size:
            raise self.no_example(f"none has a negative, and config.data.negatives={negatives}: set that to 0")
        _warn_of_left_out(written, size)
        return size

    def is_drawn(self, record: Record, negatives: int) -> tf.Tensor:
        """As `TaskKind.is_drawn`."""
        return tf.size(record["document_id"]) > 1 if negatives else tf.constant(True)


def known_ids(folder: Path | None) -> Callable[[Record], tf.Tensor]:
    """What gives the ids of all known positives of a record's query, of the folder of the labelled examples."""
    assert folder, "a task without labelled examples has ended the run"
    ids, starts = map(tf.constant, known_positives.read(folder))
    return lambda record: ids[starts[record["known"][0]] : starts[record["known"][0] + 1]]


def documents(record: Record, chosen: tf.Tensor, length: int, specials: Specials) -> Sequence[tf.Tensor]:
    """The rows of some of a record's texts, `[CLS] title [SEP] text [SEP]`, at most so long.

    Args:
      chosen: their places among the record's texts, [K].
    """
    ragged: Any = tf.RaggedTensor  # whose constructors the stubs lack
    titles = ragged.from_row_lengths(record["titles"], record["title_lengths"])
    texts = ragged.from_row_lengths(record["texts"], record["text_lengths"])
    return [
        document_row(titles[chosen[place]], texts[chosen[place]], length, specials)
        for place in range(chosen.shape[0] or 0)
    ]


def _warn_of_left_out(written: Mapping[str, Any], size: int) -> None:
    """Says how many pairs and positives are not trained on."""
    if without := written["pairs"] - size:
        _log.warning("%d of %d labelled pairs have no negative, and are left out", without, written["pairs"])
    if behind := written["positives left out"]:
        known = written["pairs"] + behind
        _log.warning(
            "%d of %d positives (%.0f %%) are not trained on, as config.pairs.positives asks for; they are no "
            "negatives of their queries",
            *(behind, known, 100 * behind / known),
        )

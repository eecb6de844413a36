"""ORQA's division of training questions (Lee et al. 2019): a tenth is held out, by a hash of the question."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from retrieval.libraries import tf

_BUCKETS, _TENTH = 100_000, 10
_ALIKE = 0.02  # the part of a set's questions by which a copy of it differs, at most


class Division(NamedTuple):
    """How many questions there are to train on, to validate on and to test on."""

    train: int
    dev: int
    test: int


# As ORQA publishes them; those after it use the same.
PUBLISHED = {
    "NQ-open": Division(79_168, 8_757, 3_610),
    "WebQuestions": Division(3_417, 361, 2_032),
    "CuratedTREC": Division(1_353, 133, 694),
}


def is_held_out(questions: Sequence[str]) -> np.ndarray:
    """Which training questions ORQA validates on, bool [N]: TensorFlow's hash (FarmHash) of the question as it is."""
    if not questions:
        return np.zeros(0, bool)
    return tf.strings.to_hash_bucket_fast(list(questions), _BUCKETS).numpy() % _TENTH == 0


def published_for(questions: int) -> dict[str, Division]:
    """By its name the data set whose training questions, those held out among them, are about as many, if any is."""
    sizes = {name: division.train + division.dev for name, division in PUBLISHED.items()}
    return {name: PUBLISHED[name] for name, size in sizes.items() if abs(size - questions) <= _ALIKE * size}

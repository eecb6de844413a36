"""ORQA's division of training questions (Lee et al. 2019): a tenth is held out, by a hash of the question."""

from collections.abc import Sequence

import numpy as np

from retrieval.libraries import tf

_BUCKETS, _TENTH = 100_000, 10


def is_held_out(questions: Sequence[str]) -> np.ndarray:
    """Which training questions ORQA validates on, bool [N]: TensorFlow's hash (FarmHash) of the question as it is."""
    if not questions:
        return np.zeros(0, bool)
    return tf.strings.to_hash_bucket_fast(list(questions), _BUCKETS).numpy() % _TENTH == 0

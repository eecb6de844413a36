"""A mixture of tasks, each with a seed of its own."""

from typing import Any

import seqio
import tensorflow as tf

from retrieval.runtime import hashing


class SeededMixture(seqio.Mixture):
    """Each task draws by a seed of its own. seqio gives all of them the same one, and so the same passages at once."""

    def get_task_dataset(self, task: seqio.Task, *args: Any) -> tf.data.Dataset:
        """As seqio's; the arguments are its own, of which the sixth is the seed."""
        keys, lengths, split, use_cached, shuffle, seed, *others = args
        task_seed = None if seed is None else hashing.number(str(seed), task.name) >> 33  # 31 bits
        return super().get_task_dataset(task, keys, lengths, split, use_cached, shuffle, task_seed, *others)

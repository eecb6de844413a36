"""Classes of seqio with ways of our own. To import it takes seconds: who needs one does so in a function."""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

from retrieval.common.runtime import hashing
from retrieval.data.examples.example_kind import ExampleKind, Lengths


class Converter(seqio.FeatureConverter):
    """Examples of one kind to rows, as `ExampleKind` has them."""

    TASK_FEATURES = MODEL_FEATURES = {}
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, kind: ExampleKind, lengths: Lengths, sep_id: int):
        """Args are the kind, the lengths of its fields, and the id of [SEP]."""
        super().__init__(pack=False, apply_length_check=False)
        spec = seqio.FeatureConverter.FeatureSpec
        self._kind, self._sep_id = kind, sep_id
        fields = {name: field for name, field in kind.fields.items() if name in lengths}
        self.TASK_FEATURES = {name: spec(tf.as_dtype(f.dtype), len(f.shape) or 1) for name, f in fields.items()}
        rows = kind.row_specs(lengths).items()
        self.MODEL_FEATURES = {name: spec(tf.as_dtype(dtype), len(shape)) for name, (shape, dtype) in rows}

    def get_model_feature_lengths(self, task_feature_lengths: Lengths) -> Lengths:
        """The last axis of each field."""
        return {name: shape[-1] for name, (shape, _) in self._kind.row_specs(task_feature_lengths).items()}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Lengths) -> tf.data.Dataset:
        return ds.map(lambda example: self._kind.row(example, task_feature_lengths, self._sep_id))


class SeededMixture(seqio.Mixture):
    """Each task draws by a seed of its own. seqio gives all of them the same one, and so the same passages at once."""

    def get_task_dataset(self, task: seqio.Task, *args: Any) -> tf.data.Dataset:
        """As seqio's; the arguments are its own, of which the sixth is the seed."""
        keys, lengths, split, use_cached, shuffle, seed, *others = args
        task_seed = None if seed is None else hashing.number(str(seed), task.name) >> 33  # 31 bits
        return super().get_task_dataset(task, keys, lengths, split, use_cached, shuffle, task_seed, *others)

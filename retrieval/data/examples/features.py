"""The feature converter of seqio: what a task yields, to rows of fixed shape that a model takes."""

from collections.abc import Mapping

import seqio
import tensorflow as tf

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
        self.MODEL_FEATURES = {
            name: spec(tf.as_dtype(dtype), len(shape)) for name, (shape, dtype) in kind.row_specs(lengths).items()
        }

    def get_model_feature_lengths(self, task_feature_lengths: Lengths) -> Lengths:
        """The last axis of each field."""
        return {name: shape[-1] for name, (shape, _) in self._kind.row_specs(task_feature_lengths).items()}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Lengths) -> tf.data.Dataset:
        return ds.map(lambda example: self._kind.row(example, task_feature_lengths, self._sep_id))

"""Feature converters: what a task yields, to arrays of fixed shape that a model takes."""

from collections.abc import Mapping
from typing import Any

import seqio
import tensorflow as tf

_Spec = seqio.FeatureConverter.FeatureSpec


class TwoTowerConverter(seqio.FeatureConverter):
    """Pairs to padded rows, with one document per query or more: the positive, then hard negatives.

    A task's example (query 8, document 8 long, [CLS] = 2, [SEP] = 3):

        query [2 7 8 3]   document [[2 5 3 9 6 3]]   document_id [41]   log_q [-9.2]

    becomes

        query [2 7 8 3 0 0 0 0]           query_types [0 0 0 0 0 0 0 0]
        document [[2 5 3 9 6 3 0 0]]      document_types [[0 0 0 1 1 1 0 0]]
        document_id [41]                  log_q [-9.2]

    Where an example has the ids of its query's known positives, `positive_ids`, or a teacher's scores, `teacher`, these
    stay as they are.

    Types are BERT's: 1 after the first [SEP]. The leading axis of a document, of size 1 + hard negatives, is the
    shape that every loss takes.
    """

    TASK_FEATURES = {
        "query": _Spec(tf.int32),
        "document": _Spec(tf.int32, rank=2),
        "document_id": _Spec(tf.int32),
        "log_q": _Spec(tf.float32),
    }
    MODEL_FEATURES = {
        "query": _Spec(tf.int32),
        "query_types": _Spec(tf.int32),
        "document": _Spec(tf.int32, rank=2),
        "document_types": _Spec(tf.int32, rank=2),
        "document_id": _Spec(tf.int32),
        "log_q": _Spec(tf.float32),
    }
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, sep_id: int, positives: bool = False, teacher: bool = False):
        """Args are the id of [SEP], and whether examples have `positive_ids` and `teacher`."""
        super().__init__(pack=False, apply_length_check=False)
        self._sep_id = sep_id
        self._more = _optional(positives, teacher)
        self.TASK_FEATURES = {**self.TASK_FEATURES, **self._more}
        self.MODEL_FEATURES = {**self.MODEL_FEATURES, **self._more}

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """Rows have the task's lengths."""
        return {name: task_feature_lengths[name.removesuffix("_types")] for name in self.MODEL_FEATURES}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            K = task_feature_lengths["document_id"]
            document = _pad(example["document"], task_feature_lengths["document"], rows=K)
            query = _pad(example["query"], task_feature_lengths["query"])
            converted = {
                "query": query,
                "query_types": tf.zeros_like(query),
                "document": document,
                "document_types": _types(document, self._sep_id),
                "document_id": tf.ensure_shape(example["document_id"], [K]),
                "log_q": tf.ensure_shape(example["log_q"], [K]),
            }
            return converted | {
                name: tf.ensure_shape(example[name], [task_feature_lengths[name]]) for name in self._more
            }

        return ds.map(convert)


class JoinedConverter(seqio.FeatureConverter):
    """Pairs to rows that hold a query and a document each, as a reranker reads them (Nogueira & Cho 2019).

    A task's example (documents 9 long, [CLS] = 2, [SEP] = 3)

        query [2 7 8 3]   document [[2 5 3 9 6 3]]   document_id [41]

    becomes

        pair [[2 7 8 3 5 9 6 3 0]]   pair_types [[0 0 0 0 1 1 1 1 0]]   document_id [41]

    The query keeps its length. The document, its title and text without the [SEP] between them, is cut to the rest.
    """

    TASK_FEATURES = {
        "query": _Spec(tf.int32),
        "document": _Spec(tf.int32, rank=2),
        "document_id": _Spec(tf.int32),
        "log_q": _Spec(tf.float32),  # which no loss of scores reads
    }
    MODEL_FEATURES = {
        "pair": _Spec(tf.int32, rank=2),
        "pair_types": _Spec(tf.int32, rank=2),
        "document_id": _Spec(tf.int32),
    }
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, sep_id: int, teacher: bool = False):
        """Args are the id of [SEP], and whether examples have `teacher`."""
        super().__init__(pack=False, apply_length_check=False)
        self._sep_id = sep_id
        self._more = _optional(False, teacher)
        self.TASK_FEATURES = {**self.TASK_FEATURES, **self._more}
        self.MODEL_FEATURES = {**self.MODEL_FEATURES, **self._more}

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """A row is as long as a document alone would be."""
        length = task_feature_lengths["document"]
        same = {name: task_feature_lengths[name] for name in ("document_id", *self._more)}
        return {"pair": length, "pair_types": length, **same}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            K, length = task_feature_lengths["document_id"], task_feature_lengths["document"]
            pair = _joined(example["query"], example["document"], self._sep_id, [K, length])
            return {
                "pair": pair,
                "pair_types": _types(pair, self._sep_id),
                **{name: tf.ensure_shape(example[name], [K]) for name in ("document_id", *self._more)},
            }

        return ds.map(convert)


class MlmConverter(seqio.FeatureConverter):
    """Masked texts to padded rows; `weights` is 1 for a position to predict and 0 for padding.

    text [2 4 7 3], positions [1], labels [8], lengths 6 and 2, become

        text [2 4 7 3 0 0]   positions [1 0]   labels [8 0]   weights [1. 0.]
    """

    TASK_FEATURES = {name: _Spec(tf.int32) for name in ("text", "positions", "labels")}
    MODEL_FEATURES = TASK_FEATURES | {"weights": _Spec(tf.float32)}
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self) -> None:
        super().__init__(pack=False, apply_length_check=False)

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """As the task's; there is a weight for every position."""
        return {**task_feature_lengths, "weights": task_feature_lengths["positions"]}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            example = {**example, "weights": tf.ones_like(example["labels"], tf.float32)}
            lengths = self.get_model_feature_lengths(task_feature_lengths)
            return {name: _pad(values, lengths[name]) for name, values in example.items()}

        return ds.map(convert)


class NextSentenceConverter(MlmConverter):
    """Masked pairs of texts to padded rows, with [SEP] = 3.

    text [2 4 3 7 3], positions [3], labels [8], is_random [1], lengths 7 and 2, become what `MlmConverter` makes, and

        text_types [0 0 0 1 1 0 0]   is_random [1]
    """

    TASK_FEATURES = {**MlmConverter.TASK_FEATURES, "is_random": _Spec(tf.int32)}
    MODEL_FEATURES = {**MlmConverter.MODEL_FEATURES, "is_random": _Spec(tf.int32), "text_types": _Spec(tf.int32)}

    def __init__(self, sep_id: int):
        """The argument is the id of [SEP]."""
        super().__init__()
        self._sep_id = sep_id

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """As `MlmConverter`; there is a type for every token."""
        lengths = super().get_model_feature_lengths(task_feature_lengths)
        return {**lengths, "text_types": task_feature_lengths["text"]}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        rows = super()._convert_features(ds, task_feature_lengths)
        return rows.map(lambda row: {**row, "text_types": _types(_unmasked(row), self._sep_id)})


def _unmasked(row: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """The text as it was: a token at random, in place of one of the first text, may be [SEP]."""
    places, labels = (tf.boolean_mask(row[name], row["weights"] > 0) for name in ("positions", "labels"))
    return tf.tensor_scatter_nd_update(row["text"], places[:, None], labels)


class TermsConverter(seqio.FeatureConverter):
    """Passages whose words are weighed, to padded rows.

    text [2 7 8 3], targets [0 1 0 0], counts [0 1 0 0], length 5, become

        text [2 7 8 3 0]   text_types [0 0 0 0 0]   targets [0 1 0 0 0]   counts [0 1 0 0 0]
    """

    TASK_FEATURES = {"text": _Spec(tf.int32), "targets": _Spec(tf.float32), "counts": _Spec(tf.float32)}
    MODEL_FEATURES = TASK_FEATURES | {"text_types": _Spec(tf.int32)}
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, sep_id: int):
        """The argument is the id of [SEP]."""
        super().__init__(pack=False, apply_length_check=False)
        self._sep_id = sep_id

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """Rows have the task's lengths."""
        return {**task_feature_lengths, "text_types": task_feature_lengths["text"]}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            rows = {name: _pad(example[name], task_feature_lengths[name]) for name in self.TASK_FEATURES}
            return rows | {"text_types": _types(rows["text"], self._sep_id)}

        return ds.map(convert)


class SpansConverter(seqio.FeatureConverter):
    """Questions with paragraphs, whose rows `reader_rows` made. [SEP] = 3, rows 8 long:

    pair [[2 7 3 5 3 9 6 3]]   spans [[0 5 6]]   paragraph [0]   retrieved [1.5]

    becomes the same with

    pair_types [[0 0 0 1 1 1 1 1]]   inside [[0 0 0 0 0 1 1 0]]

    `inside` has the tokens between the last two [SEP] of a row. Where the question tower is trained too, `question`,
    `candidates` and `holds` stay as they are.
    """

    TASK_FEATURES = {
        "pair": _Spec(tf.int32, rank=2),
        "spans": _Spec(tf.int32, rank=2),
        "paragraph": _Spec(tf.int32),
        "retrieved": _Spec(tf.float32),
    }
    MODEL_FEATURES = TASK_FEATURES | {"pair_types": _Spec(tf.int32, rank=2), "inside": _Spec(tf.int32, rank=2)}
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, sep_id: int, candidates: bool = False):
        """Args are the id of [SEP], and whether examples have what the question tower is trained with."""
        super().__init__(pack=False, apply_length_check=False)
        self._sep_id = sep_id
        self._more = {name: _Spec(tf.int32) for name in ("question", "candidates", "holds") if candidates}
        self.TASK_FEATURES = {**self.TASK_FEATURES, **self._more}
        self.MODEL_FEATURES = {**self.MODEL_FEATURES, **self._more}

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """Rows have the task's lengths."""
        length = task_feature_lengths["pair"]
        return {**task_feature_lengths, "pair_types": length, "inside": length}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        K, length, S, N = (task_feature_lengths[name] for name in ("paragraph", "pair", "spans", "retrieved"))

        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            pair = tf.ensure_shape(example["pair"], [K, length])
            is_sep = tf.cast(pair == self._sep_id, tf.int32)
            behind = tf.cumsum(is_sep, axis=-1, reverse=True)
            return {
                "pair": pair,
                "pair_types": _types(pair, self._sep_id),
                "inside": tf.cast((behind == 1) & (is_sep == 0) & (tf.cumsum(is_sep, axis=-1) > 0), tf.int32),
                "spans": tf.ensure_shape(example["spans"], [S, 3]),
                "paragraph": tf.ensure_shape(example["paragraph"], [K]),
                "retrieved": tf.ensure_shape(example["retrieved"], [N]),
                **{name: tf.ensure_shape(example[name], [task_feature_lengths[name]]) for name in self._more},
            }

        return ds.map(convert)


class GenerationConverter(seqio.FeatureConverter):
    """Sources and targets to padded rows.

    source [2 5 3 9 6 3], target [2 7 8 3], lengths 8 and 6, [SEP] = 3, become

        source [2 5 3 9 6 3 0 0]   source_types [0 0 0 1 1 1 0 0]   target [2 7 8 3 0 0]
    """

    TASK_FEATURES = {name: _Spec(tf.int32) for name in ("source", "target")}
    MODEL_FEATURES = TASK_FEATURES | {"source_types": _Spec(tf.int32)}
    PACKING_FEATURE_DTYPES: Mapping[str, tf.dtypes.DType] = {}

    def __init__(self, sep_id: int):
        """The argument is the id of [SEP]."""
        super().__init__(pack=False, apply_length_check=False)
        self._sep_id = sep_id

    def get_model_feature_lengths(self, task_feature_lengths: Mapping[str, int]) -> Mapping[str, int]:
        """Rows have the task's lengths."""
        return {**task_feature_lengths, "source_types": task_feature_lengths["source"]}

    def _convert_features(self, ds: tf.data.Dataset, task_feature_lengths: Mapping[str, int]) -> tf.data.Dataset:
        def convert(example: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            source = _pad(example["source"], task_feature_lengths["source"])
            target = _pad(example["target"], task_feature_lengths["target"])
            return {"source": source, "source_types": _types(source, self._sep_id), "target": target}

        return ds.map(convert)


def _optional(positives: bool, teacher: bool) -> dict[str, _Spec]:
    """The features that examples have only where somebody asks for them."""
    specs = {"positive_ids": (positives, _Spec(tf.int32)), "teacher": (teacher, _Spec(tf.float32))}
    return {name: spec for name, (is_asked_for, spec) in specs.items() if is_asked_for}


def _pad(ids: tf.Tensor, length: int, rows: int | None = None) -> tf.Tensor:
    """Ids [N] or, where `rows` is given, [rows, N], cut or filled up with zeros to `length`."""
    ids = ids[..., :length]  # pyright: ignore[reportArgumentType] (an ellipsis is allowed)
    blanks: Any = [[0, 0]] * (rows is not None) + [[0, tf.maximum(0, length - tf.shape(ids)[-1])]]
    return tf.ensure_shape(tf.pad(ids, blanks), [length] if rows is None else [rows, length])


def _joined(query: tf.Tensor, document: tf.Tensor, sep_id: int, shape: list[int]) -> tf.Tensor:
    """`[CLS] query [SEP]` and each of K documents as rows `[CLS] query [SEP] document [SEP]`, [K, L]."""
    K, length = shape
    bodies = document[:, 1:]  # without [CLS]
    ragged: Any = tf.ragged  # which the stubs lack
    bodies = ragged.boolean_mask(bodies, (bodies != 0) & (bodies != sep_id))[:, : length - tf.size(query) - 1]
    queries, ends = tf.tile(query[None], [K, 1]), tf.fill([K, 1], sep_id)
    return tf.ensure_shape(tf.concat([queries, bodies, ends], axis=1).to_tensor(shape=shape), shape)


def _types(ids: tf.Tensor, sep_id: int) -> tf.Tensor:
    """1 for the tokens after the first [SEP], 0 for the first text and for padding."""
    seen = tf.cumsum(tf.cast(ids == sep_id, tf.int32), axis=-1, exclusive=True)
    return tf.where(ids == 0, 0, tf.minimum(seen, 1))

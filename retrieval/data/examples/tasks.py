"""The seqio registry: the only file that adds tasks and mixtures to it."""

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import seqio
import tensorflow as tf

from retrieval import files, hashing
from retrieval.config.fields import NOT_NEGATIVE, SHARE, SWITCH, Field, declare, number, whole
from retrieval.data.examples import batches, pretraining
from retrieval.data.examples.pretraining import Specials
from retrieval.data.labelled import pair_shards
from retrieval.data.tokenizers.vocab import Vocabulary
from retrieval.errors import UserError, unknown_name

_log = logging.getLogger(__name__)

_PAIRS = {"ict": 0, "bfs": 1, "wlp": 2}  # task -> its column in a record's `counts`
_TEXTS = ("mlm",)
LABELLED = "pairs"
_PASSAGES = "passages-*.tfrecord"
TASKS = (*_PAIRS, *_TEXTS, LABELLED)

# The kinds of examples, in words.
KINDS = {"pair": "pairs of a query and a document", "masked": "masked texts"}

_HELD_OUT = number(
    "0, or a share from 0.0001 to below 1, such as 0.01", lambda value: value == 0 or 0.0001 <= value < 1
)
declare(
    "data.rates",
    ict=Field(0.0, NOT_NEGATIVE, "how often the inverse cloze task is drawn, beside the other tasks; 0: never"),
    bfs=Field(0.0, NOT_NEGATIVE, "how often body-first selection is drawn"),
    wlp=Field(0.0, NOT_NEGATIVE, "how often Wikipedia link prediction is drawn"),
    mlm=Field(0.0, NOT_NEGATIVE, "how often the masked language model's texts are drawn"),
    pairs=Field(0.0, NOT_NEGATIVE, "how often labelled examples are drawn: fine-tuning"),
)
declare(
    "data",
    ict_removal=Field(1.0, SHARE, "how often ICT takes the query's sentence out of the document; ORQA: 0.9"),
    whole_word=Field(False, SWITCH, "whether MLM masks all pieces of a word or none"),
    query_length=Field(64, whole(3), "tokens of a query, with [CLS] and [SEP]"),
    document_length=Field(288, whole(5), "tokens of a document, with its title, [CLS] and two [SEP]"),
    lanes=Field(256, whole(1), "streams of examples; a multiple of the hosts that divides train.batch_size and shards"),
    shuffle_buffer=Field(128, whole(1), "examples that each lane and task draws from; the shards are in random order"),
    held_out=Field(0.001, _HELD_OUT, "share of the passages that validate pre-training and are never its documents"),
    negatives=Field(0, whole(0), "hard negatives of a labelled example, drawn anew every epoch"),
)

_RECORD = {
    "document_id": tf.io.FixedLenFeature([], tf.int64),
    "counts": tf.io.FixedLenFeature([3], tf.int64),
} | {
    name: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    for name in ("title", "ids", "lengths", "lead_ids", "lead_lengths")
}


_DRAWS = 10_000  # held-out shares are multiples of its inverse
_MANY = 1000  # examples per lane: so many are never all in other lanes
_READ_BYTES = 2**18  # of a file at a time, as `tf.data.TFRecordDataset` does

_LABELLED_RECORD = {"counts": tf.io.FixedLenSequenceFeature([], tf.float32, allow_missing=True)} | {
    name: tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)
    for name in ("query", "titles", "title_lengths", "texts", "text_lengths", "document_id")
}

_POSITIVES = {"positive_ids": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True)}


def register(
    corpus: Path,
    vocabulary: Vocabulary,
    statistics: Mapping[str, Any],
    rates: Mapping[str, float],
    *,
    labelled: Path | None = None,
    ict_removal: float = 1.0,
    whole_word: bool = False,
    shuffle_buffer: int = 1024,
    held_out: float = 0.0,
    validation: bool = False,
    negatives: int = 0,
    positives: bool = False,
) -> tuple[str, dict[str, int]]:
    """Registers the tasks of `rates`; returns the name to get the dataset by, and the examples of each task's epoch.

    One task is registered under its own name, several also as a mixture such as 'ict+bfs+wlp'.

    Args:
      corpus: the folder that `prepare` wrote, and `statistics` its `stats.json`; only labelled pairs do without.
      rates: task -> mixing rate; a rate of 0 leaves the task out.
      whole_word: whether MLM masks all pieces of a word or none.
      labelled: the folder that `pairs.write_pairs` wrote, for the task 'pairs'.
      held_out: share of the corpus's passages that are never drawn, as far as documents go, or the only ones that
        are where `validation` is set; the names then end in '_validation'.
      negatives: hard negatives of an example. Only labelled records have any, and those that have none are left out.
      positives: whether an example has the ids of its query's known positives, as many as the lengths say.

    Raises:
      UserError: an unknown task, no task, a task that there is no example for, one of single texts among others, or
        a vocabulary that does not tell words apart.
    """
    rates = {task: rate for task, rate in rates.items() if rate}
    sizes = {task: counts["pairs"] for task, counts in statistics["tasks"].items()}
    if labelled and LABELLED in rates:
        written = files.read_json(labelled / "stats.json")
        sizes[LABELLED] = written["pairs with negatives" if negatives else "pairs"]
        if left_out := written["pairs"] - sizes[LABELLED]:
            _log.warning("%d of %d labelled pairs have no negative, and are left out", left_out, written["pairs"])
        if behind := written.get("positives left out"):
            known = written["pairs"] + behind
            _log.warning(
                "%d of %d positives (%.0f %%) are not trained on, as config.pairs.positives asks for; they are no "
                "negatives of their queries",
                *(behind, known, 100 * behind / known),
            )
        _warn_of_few(written, negatives)
    check_rates(rates)
    _check_sizes(rates, sizes, negatives)
    total = sum(rates.values())
    weights = {task: rate / total / sizes[task] for task, rate in rates.items()}
    specials = Specials.of(vocabulary)
    masked = functools.partial(pretraining.mlm, specials=specials, continues=_continues(vocabulary, whole_word))
    vocab = seqio.PassThroughVocabulary(len(vocabulary))
    functions = {
        "ict": functools.partial(pretraining.ict, specials=specials, removal=ict_removal),
        "bfs": functools.partial(pretraining.lead_to_passage, specials=specials),
        "wlp": functools.partial(pretraining.lead_to_passage, specials=specials),
        **dict.fromkeys(_TEXTS, masked),
        LABELLED: functools.partial(pretraining.labelled, specials=specials, weight=weights.get(LABELLED, 0.0)),
    }
    suffix = "_validation" if validation else ""
    chosen = dict(negatives=negatives, held_out=held_out, validation=validation)
    skipped = _skipped(corpus, rates, sizes)
    for task in rates:
        seqio.TaskRegistry.remove(task + suffix)
        seqio.TaskRegistry.add(
            task + suffix,
            source=_source(task, corpus, labelled, skipped.get(task, 0), positives),
            preprocessors=[
                _int32,
                functools.partial(_filter, is_drawn=functools.partial(_is_drawn, task=task, **chosen)),
                _example(functions[task], _column_weights(task, weights)),
            ],
            output_features=_output_features("mlm" if task in _TEXTS else "pair", vocab, positives),
            shuffle_buffer_size=shuffle_buffer,
        )
    examples = {task: sizes[task] for task in rates}
    if len(rates) == 1:
        return next(iter(rates)) + suffix, examples
    name = "+".join(rates) + suffix
    seqio.MixtureRegistry.remove(name)
    seqio.MixtureRegistry.add(name, [(task + suffix, rate) for task, rate in rates.items()], mixture_cls=_Mixture)
    return name, examples


class _Mixture(seqio.Mixture):
    """Each task draws by a seed of its own. seqio gives all of them the same one, and so the same passages at once."""

    def get_task_dataset(self, task: seqio.Task, *args: Any) -> tf.data.Dataset:
        """As seqio's; the arguments are its own, of which the sixth is the seed."""
        keys, lengths, split, use_cached, shuffle, seed, *others = args
        own = None if seed is None else hashing.number(str(seed), task.name) >> 33  # 31 bits
        return super().get_task_dataset(task, keys, lengths, split, use_cached, shuffle, own, *others)


def check_rates(rates: Mapping[str, float]) -> None:
    """Checks that tasks can be mixed.

    Raises:
      UserError: an unknown task, a negative rate, or no task.
    """
    for task, rate in rates.items():
        if task not in TASKS:
            raise unknown_name("task", task, TASKS)
        if rate < 0:
            raise UserError(f"task '{task}': the rate is {rate}; it must not be negative")
    given = [task for task, rate in rates.items() if rate]
    if not given:
        raise UserError(
            f"no task has a rate above 0 in config.data.rates; known: {', '.join(TASKS)}: set one, such as "
            "config.data.rates.ict=1"
        )


def kind(task: str) -> str:
    """The kind of examples that a task gives: 'pair' or 'masked'."""
    return "masked" if task in _TEXTS else "pair"


def check_lanes(examples: Mapping[str, int], lanes: int, held_out: float = 0.0) -> None:
    """Checks that every lane has an example of every task that has been registered.

    seqio repeats a lane's records before our filters: where these let none pass, it would look for one for ever.

    Args:
      examples: of each task's epoch. Of many not all can be in other lanes, and no file is opened.
      held_out: share of those of the corpus that is not drawn.

    Raises:
      UserError: a lane has none, or a file cannot be read.
    """
    for name, count in examples.items():
        if count * (1.0 if name == LABELLED else 1.0 - held_out) >= _MANY * lanes:
            continue
        found = _lanes_with_examples(seqio.TaskRegistry.get(name), lanes)
        if lacking := [lane for lane in range(lanes) if lane not in found]:
            raise UserError(
                f"task '{name}': {count} examples, none of them in {len(lacking)} of config.data.lanes={lanes}, first "
                f"{batches.lane_name(lacking[0])}: take fewer lanes (a divisor of the shards), more data, or "
                f"config.data.rates.{name}=0"
            )


def _continues(vocabulary: Vocabulary, whole_word: bool) -> list[bool] | None:
    """Which tokens go on with the word of the token before them; None where words do not matter."""
    if not whole_word:
        return None
    continues = [token.startswith("##") for token in vocabulary.tokens]
    if not any(continues):
        raise UserError(
            "config.data.whole_word=True, but no token of the vocabulary begins with '##', WordPiece's mark of a word "
            "that goes on: set config.data.whole_word=False"
        )
    return continues


def _skipped(corpus: Path, rates: Mapping[str, float], sizes: Mapping[str, int]) -> dict[str, int]:
    """The record of a file that each task of the passage shards begins with.

    All files of a lane are read at once. Two tasks that begin at the same record would draw the same passages.
    """
    readers = [task for task in rates if task in ("ict", "bfs")]
    files_there = max(1, len(list(corpus.glob(_PASSAGES))))
    records = max(sizes.get(task, 0) for task in (*readers, "mlm")) // files_there
    return {task: records * place // len(readers) for place, task in enumerate(readers)}


def _source(task: str, corpus: Path, labelled: Path | None, skipped: int, positives: bool) -> Any:
    # seqio declares that it takes more than this.
    if task == LABELLED:
        assert labelled, "`_check_sizes` refuses the task without its files"
        return _shards(labelled, pair_shards.PATTERN, _LABELLED_RECORD | (_POSITIVES if positives else {}))
    return _shards(corpus, "links-*.tfrecord" if task == "wlp" else _PASSAGES, _RECORD, skipped)


def _shards(folder: Path, pattern: str, record: Mapping[str, Any], skipped: int = 0) -> seqio.TFExampleDataSource:
    """Records of files that are found in the folder by their names alone.

    A position that is saved holds the paths of files. When training goes on, the folder may have another one, and what
    lies at the old one may be of another run.

    Args:
      skipped: the first records of each file, which come last.
    """

    def read(path: tf.Tensor) -> tf.data.Dataset:
        name = tf.strings.regex_replace(path, ".*/", "")
        # What `tf.data.TFRecordDataset` stands on: the state of that has the path once more.
        records = tf.raw_ops.TFRecordDataset(
            filenames=[tf.strings.join([f"{folder}/", name])], compression_type="", buffer_size=_READ_BYTES
        )
        dataset = tf.data.experimental.from_variant(records, tf.TensorSpec([], tf.string))
        return dataset.skip(skipped).concatenate(dataset.take(skipped)) if skipped else dataset

    reader: Any = read  # of tensors, where seqio declares texts
    return seqio.TFExampleDataSource({"train": str(folder / pattern)}, record, reader_cls=reader)


def _column_weights(task: str, weights: Mapping[str, float]) -> dict[int, float]:
    """Column of the task's `counts` -> rate / epoch: what `pretraining.log_q` takes.

    Labelled documents are not those of the corpus: only their own task draws them, and knows how often.
    """
    return (
        {}
        if task in (*_TEXTS, LABELLED)
        else {_PAIRS[name]: weight for name, weight in weights.items() if name in _PAIRS}
    )


def _check_sizes(rates: Mapping[str, float], sizes: Mapping[str, int], negatives: int) -> None:
    for task in rates:
        if not sizes.get(task):
            why = "the corpus has none"
            if task == LABELLED:
                why = "no stage has written pairs, see config.pairs.files and config.split.set"
            if task == LABELLED and task in sizes:
                why = f"none has a negative, and config.data.negatives={negatives}: set that to 0"
            raise UserError(f"task '{task}' has no example: {why}; or set config.data.rates.{task}=0")


def _warn_of_few(written: Mapping[str, Any], negatives: int) -> None:
    """Says which queries have negatives, but fewer than an example draws. Pairs of an older version do not tell."""
    by_count = written.get("queries by negatives", {}).items()
    if few := [(int(count), *told) for count, told in by_count if 0 < int(count) < negatives]:
        count, _, first = few[0]
        _log.warning(
            "%d queries have fewer negatives than config.data.negatives=%d, and their examples have some twice or more "
            "often, which count as often in the loss; the first has %d: %s",
            *(sum(number for _, number, _ in few), negatives, count, first),
        )


def _lanes_with_examples(task: seqio.Task, lanes: int) -> set[int]:
    """Reads every file up to the first record that is one of the task's; seqio deals the files out in this order."""
    source: Any = task.source  # of `_source`, which parses records
    is_drawn = task.preprocessors[1].keywords["is_drawn"]
    try:
        return {
            number % lanes
            for number, path in enumerate(source.list_shards("train"))
            if any(is_drawn(_narrow(source.parse_fn(record))) for record in _records(path))
        }
    except tf.errors.OpError as error:
        raise batches.unreadable(f"task '{task.name}'", error) from error


def _records(path: str) -> Iterator[bytes]:
    """The records of a TFRecord file; a `tf.data.Dataset` of it would take a hundred times as long to begin."""
    with open(path, "rb") as file:
        while length := file.read(8):
            file.read(4)  # a sum, here and behind the record; the file has one of its own, which was compared
            yield file.read(int.from_bytes(length, "little"))
            file.read(4)


def _int32(dataset: tf.data.Dataset) -> tf.data.Dataset:
    return dataset.map(_narrow, tf.data.AUTOTUNE)


def _narrow(record: pretraining.Record) -> pretraining.Record:
    return {name: tf.cast(values, tf.int32) if values.dtype == tf.int64 else values for name, values in record.items()}


def _filter(dataset: tf.data.Dataset, is_drawn: Callable[[pretraining.Record], tf.Tensor]) -> tf.data.Dataset:
    return dataset.filter(is_drawn)


def _is_drawn(record: pretraining.Record, task: str, negatives: int, held_out: float, validation: bool) -> tf.Tensor:
    """Whether a record is one of the task's, on its side of what is held out.

    ICT needs two sentences, BFS a lead that is not the passage's own section, hard negatives a record that has some.
    """
    if task == LABELLED:
        return tf.size(record["document_id"]) > 1 if negatives else tf.constant(True)
    usable = record["counts"][_PAIRS[task]] > 0 if task in ("ict", "bfs") else tf.constant(True)
    if not held_out:
        return usable
    # The ids are hashes: their remainders are a fair draw.
    return usable & ((tf.math.floormod(record["document_id"], _DRAWS) < round(held_out * _DRAWS)) == validation)


def _example(function: Callable, weights: Mapping[int, float]) -> Callable:
    """Draws an example; one from the corpus has a single document, which `weights` tell how often is drawn."""

    @seqio.map_over_dataset(num_seeds=1, num_parallel_calls=None)
    def draw(record, seed, sequence_length):
        example = function(record, tf.cast(tf.stack(seed), tf.int32), sequence_length)
        if weights:
            example["document"] = example["document"][None]
            example["document_id"] = record["document_id"][None]
            example["log_q"] = pretraining.log_q(record["counts"], weights)[None]
        if P := sequence_length.get("positive_ids"):
            example["positive_ids"] = pretraining.positive_ids(record.get("positive_ids"), example["document_id"][0], P)
        return example

    return draw


def _output_features(kind: str, vocab: seqio.PassThroughVocabulary, positives: bool) -> dict[str, Any]:
    names = ("text", "positions", "labels") if kind == "mlm" else ("query", "document", "document_id", "log_q")
    names += ("positive_ids",) if positives else ()
    dtypes = {name: tf.float32 if name == "log_q" else tf.int32 for name in names}
    return {
        name: seqio.Feature(vocab, add_eos=False, dtype=dtype, rank=2 if name == "document" else 1)
        for name, dtype in dtypes.items()
    }

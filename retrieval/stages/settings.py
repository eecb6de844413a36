"""What the fields of a config may be: each by itself, and those that have to fit each other.

All of it is known before a run begins. What would otherwise stop it after hours, or never, is refused here.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.data.examples.tasks import TASKS
from retrieval.data.labelled.labelled_format import LABELLED
from retrieval.data.sets.set_format import SETS
from retrieval.data.shards.shard_steps import LOCAL
from retrieval.errors import UserError, unknown_name
from retrieval.evaluation.metrics import cutoff, is_of_answers, parse
from retrieval.models.autoencoder import REACHES, WIRINGS
from retrieval.models.transformer import DTYPES, REMAT
from retrieval.models.two_tower import ENCODERS, POOLINGS
from retrieval.recipes import examples, objective, validation
from retrieval.recipes import towers as models
from retrieval.search.words import STEMMERS, STOP_WORDS
from retrieval.stages import hard_negatives, metric_writers, mine, refresh, sets, train
from retrieval.stages.evaluate import ANSWERS, HITS, RANKING
from retrieval.stages.index import ACCENTS, DENSE
from retrieval.training.optimizer import OPTIMIZERS


class Kind(NamedTuple):
    """What a field may be, in words and as a function."""

    needed: str
    fits: Callable[[Any], bool]


def _whole(least: int) -> Kind:
    return Kind(f"a whole number of at least {least}", lambda value: type(value) is int and value >= least)


def _number(needed: str, fits: Callable[[float], bool]) -> Kind:
    return Kind(needed, lambda value: type(value) in (int, float) and math.isfinite(value) and fits(value))


_TEXT = Kind("a text", lambda value: isinstance(value, str))
_SWITCH = Kind("True or False", lambda value: isinstance(value, bool))
_TUPLE = Kind("a tuple", lambda value: isinstance(value, tuple | list))
_TEXTS = Kind(
    "a tuple of texts, such as \"('one', 'two')\"",
    lambda value: isinstance(value, tuple | list) and all(isinstance(item, str) for item in value),
)
_METRICS = Kind(
    "a tuple of metrics, such as \"('RR@10', 'R@1000')\", or ()",
    lambda value: _TEXTS.fits(value) and not any("," in name for name in value),
)
_STEPS = Kind(
    "the first and the last step, such as 10,15, or ()",
    lambda value: isinstance(value, tuple | list) and len(value) in (0, 2) and all(type(item) is int for item in value),
)
_LENGTHS = Kind(
    "a tuple of whole numbers of at least 3, such as 128,512, or ()",
    lambda value: isinstance(value, tuple | list) and all(type(item) is int and item >= 3 for item in value),
)
# In float32, less is as good as 0, and more is soon infinite.
_POSITIVE = _number("a number above 0 (from 1e-20 to 1e15)", lambda value: 1e-20 <= value <= 1e15)
_NOT_NEGATIVE = _number("a number from 0 to 1e15", lambda value: 0 <= value <= 1e15)
_SHARE = _number("a number from 0 to 1", lambda value: 0 <= value <= 1)
_SHARE_ABOVE = _number("a number above 0 and at most 1, such as 0.99", lambda value: 0 < value <= 1)
_SHARE_BELOW = _number("a number of at least 0 and below 1, such as 0.1", lambda value: 0 <= value < 1)
_SHARE_BETWEEN = _number("a share between 0 and 1, such as 0.1", lambda value: 0 < value < 1)
_HELD_OUT = _number(
    "0, or a share from 0.0001 to below 1, such as 0.01", lambda value: value == 0 or 0.0001 <= value < 1
)
_LICENSE = Kind(
    "a license's identifier, such as apache-2.0, or ''",
    lambda value: isinstance(value, str) and bool(re.fullmatch(r"([a-z0-9][a-z0-9.+-]*)?", value)),
)

_K1_B = Kind(
    "k1 from 0 on and b from 0 to 1, such as 0.9,0.4, or ()",
    lambda value: (
        isinstance(value, tuple | list)
        and (not value or (len(value) == 2 and _NOT_NEGATIVE.fits(value[0]) and _SHARE.fits(value[1])))
    ),
)
_SEED = Kind("a whole number from 0 to 4294967295", lambda value: type(value) is int and 0 <= value < 2**32)

_KINDS = dict(
    seed=_SEED,
    stages=_TEXTS,
    corpus=_TEXT,
    base=_TEXT,
    vocab=_TEXT,
    prepare=dict(
        runner=_TEXT,
        beam_options=_TEXTS,
        workers=_whole(1),
        shards=_whole(1),
        vocab_size=_whole(100),
        longest_passage=_whole(1),
        shortest_paragraph=_whole(0),
        least_passage=_whole(1),
        across_sections=_SWITCH,
        held_out=_SHARE_BELOW,
    ),
    data=dict(
        rates=dict.fromkeys(TASKS, _NOT_NEGATIVE),
        ict_removal=_SHARE,
        whole_word=_SWITCH,
        query_length=_whole(3),  # [CLS] token [SEP]
        document_length=_whole(5),  # [CLS] token [SEP] token [SEP]
        pack=dict(query=_SHARE, query_row=_whole(3), document=_SHARE, document_row=_whole(5)),
        lanes=_whole(1),
        shuffle_buffer=_whole(1),
        held_out=_HELD_OUT,
        negatives=_whole(0),
    ),
    model=dict(
        encoder=_TEXT,
        num_layers=_whole(1),
        hidden_size=_whole(1),
        num_heads=_whole(1),
        mlp_size=_whole(1),
        type_vocab_size=_whole(1),
        layer_norm_epsilon=_POSITIVE,
        dropout=_SHARE_BELOW,
        dtype=_TEXT,
        remat=_TEXT,
        unroll=_whole(1),
        positions=_whole(0),
        embed_dim=_whole(0),
        embed_norm=_SWITCH,
        pooling=_TEXT,
        tied=_SWITCH,
        normalize=_SWITCH,
        decoder=dict(layers=_whole(1), span=_whole(0), wiring=_TEXT, reach=_TEXT, latent=_whole(0), bias=_SWITCH),
    ),
    train=dict(
        steps=_whole(1),
        batch_size=_whole(1),
        accumulation=_whole(1),
        chunk_size=_whole(0),
        learning_rate=_POSITIVE,
        warmup_ratio=_SHARE,
        weight_decay=_NOT_NEGATIVE,
        clip_norm=_NOT_NEGATIVE,
        optimizer=_TEXT,
        lamb_norm_limit=_NOT_NEGATIVE,
        loss=_TEXT,
        temperature=_POSITIVE,
        margin=_POSITIVE,
        kl_weight=_NOT_NEGATIVE,
        free_bits=_NOT_NEGATIVE,
        symmetric=_SWITCH,
        other_positives=_TEXT,
        log_q=_SWITCH,
        init_from=_TEXT,
    ),
    mesh=dict(fsdp=_whole(1), replicate_below=_whole(0), rules=_TUPLE),
    plan=dict(topology=_TEXT),
    loop=dict(
        log_every=_whole(1),
        checkpoint_every=_whole(1),
        keep_checkpoints=_whole(1),
        validate_every=_whole(0),
        validate_queries=_whole(1),
        validate_candidates=_whole(2),
        best=_TEXT,
        wandb=_TEXT,
    ),
    profile=dict(steps=_STEPS),
    sets=dict(
        **{name: form.kind for name, form in SETS.items()},
        qa_patterns=_SWITCH,
        distractors=_whole(0),
    ),
    pairs=dict(files=_TEXT, format=_TEXT, queries=_TEXT, collection=_TEXT, positives=_whole(0), pool=_whole(1)),
    mine=dict(
        system=_TEXT,
        negatives=_whole(1),
        first=_whole(1),
        last=_whole(1),
        margin=_NOT_NEGATIVE,
        relative_margin=_SHARE_BELOW,
        answers=_SWITCH,
        refresh_every=_whole(0),
        refresh_share=_SHARE_ABOVE,
        refresh_lag=_whole(0),
        refresh_env=_TEXTS,
    ),
    split=dict(set=_TEXT, ratio=_SHARE_BETWEEN, validation=_SHARE_BETWEEN, seed=_whole(0), shards=_whole(1)),
    encode=dict(batch_tokens=_whole(1), shard_size=_whole(1), windows=_whole(1), untrained=_SWITCH, corpus=_SWITCH),
    index=dict(
        dense=_TEXT,
        recall_target=_SHARE_ABOVE,
        tune_queries=_whole(1),
        bm25_k1=_NOT_NEGATIVE,
        bm25_b=_SHARE,
        bm25_also=_K1_B,
        bm25_stop_words=_TEXT,
        bm25_stemmer=_TEXT,
        bm25_accents=_TEXT,
    ),
    evaluate=dict(depth=_whole(1), metrics=_METRICS, runs=_SWITCH),
    search=dict(k=_whole(1)),
    export=dict(license=_LICENSE),
    similarity=dict(lengths=_LENGTHS, pairs=_whole(1)),
)

_BEAM = ("DirectRunner", "DataflowRunner", "FlinkRunner", "SparkRunner", "PortableRunner", "PrismRunner")

# Fields that name one of several things: what these are, and their names.
_NAMES: dict[str, tuple[str, Collection[str]]] = {
    "prepare.runner": ("runner", (LOCAL, *_BEAM)),
    "model.encoder": ("encoder", ENCODERS),
    "model.dtype": ("dtype", DTYPES),
    "model.remat": ("remat", REMAT),
    "model.pooling": ("pooling", POOLINGS),
    "model.decoder.wiring": ("wiring", WIRINGS),
    "model.decoder.reach": ("reach", REACHES),
    "train.optimizer": ("optimizer", OPTIMIZERS),
    "train.loss": ("loss", objective.LOSSES),
    "train.other_positives": ("use of other positives", objective.OTHER_POSITIVES),
    "pairs.format": ("format", LABELLED),
    "mine.system": ("index", mine.SYSTEMS),
    "loop.best": ("metric", validation.METRICS),
    "index.dense": ("index", DENSE),
    "index.bm25_stop_words": ("list of stop words", STOP_WORDS),
    "index.bm25_stemmer": ("stemmer", STEMMERS),
    "index.bm25_accents": ("way with accents", ACCENTS),
}


def _flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


FIELDS: dict[str, Kind] = dict(_flatten(_KINDS))


def check_fields(config: ConfigDict) -> None:
    """Checks that the config has the fields that there are, and no others, each with a value that it may have.

    Raises:
      UserError: it has not; the message says what is needed.
    """
    values = dict(_flatten(config.to_dict()))
    for field in values:
        if field not in FIELDS:
            raise unknown_name("field", f"config.{field}", [f"config.{known}" for known in FIELDS])
    for field, rule in FIELDS.items():
        if field not in values:
            raise UserError(
                f"config.{field} is missing: a config starts from that of configs/ict_bfs_wlp.py, which has them all; "
                "for a work directory of an older version name its config too, --config=configs/NAME.py"
            )
        if not rule.fits(values[field]):
            raise UserError(f"config.{field}={_shown(values[field])}: {rule.needed} is needed")
    for field, (kind, names) in _NAMES.items():
        if kind == "runner" and "." in values[field]:  # Beam takes any class
            continue
        if values[field] not in names and not (kind == "format" and not values[field]):  # each file's is recognised
            raise unknown_name(f"{kind} in config.{field}", values[field], names)


def check_combinations(config: ConfigDict, stages: Collection[str]) -> None:
    """Checks that the fields which some stages read fit each other.

    Raises:
      UserError: they do not.
    """
    if {"train", "plan"} & set(stages):
        examples.check(config)
        models.check(config)
        objective.check(config)
    if "mine" in stages or config.mine.refresh_every:
        hard_negatives.check(config)
    if "train" in stages:
        train.check(config)
        refresh.check(config)
        metric_writers.check(config)
    if "train" in stages and config.loop.validate_every:
        validation.check(config)
    if "evaluate" in stages:
        _check_metrics(config)
    if "search" in stages and config.search.k > config.evaluate.depth:
        raise UserError(
            f"config.search.k={config.search.k}: no more than config.evaluate.depth={config.evaluate.depth} hits are "
            "looked for; lower the first or raise the second"
        )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) and value else repr(value)


def _check_metrics(config: ConfigDict) -> None:
    names = tuple(config.evaluate.metrics)
    if len(set(names)) != len(names):
        raise UserError(f"config.evaluate.metrics={_shown(names)}: one is there twice; leave it out")
    for name in names:
        try:
            if not is_of_answers(name):
                parse(name)
        except UserError as error:
            raise UserError(f"config.evaluate.metrics: {error}") from error
    of_answers = [name for name in names if is_of_answers(name)] or (ANSWERS if sets.has_unjudged(config) else ())
    by_judgements = [name for name in names if not is_of_answers(name)]
    if not (by_judgements or sets.has_answers_alone(config)):
        by_judgements = [*HITS, *RANKING]
    deepest = max((*by_judgements, *of_answers), key=cutoff)
    if config.evaluate.depth < cutoff(deepest):
        raise UserError(
            f"config.evaluate.depth={config.evaluate.depth} is too few results for the metric {deepest}: take at least "
            f"{cutoff(deepest)}"
        )

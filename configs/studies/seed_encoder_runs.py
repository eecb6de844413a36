"""The runs of `seed_encoder.py`: their sizes, their names and their configs."""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import dpr_mined, seed_encoder

SETS = {"squad": "reqa", "msmarco": "msmarco"}  # dataset -> the set's name
TITLES = {"squad": "SQuAD", "msmarco": "MS MARCO"}
SHARES = {"10": 0.08, "100": 0.8}  # of the labels, % -> of all questions; the rest is for the test
# Layers, and the span: None for all of a text.
DECODERS = {"short": None, "bert": None, "weak": (3, 2), "strong": (5, None), "wide": (3, None), "deep": (5, 2)}
LABELS = {
    "short": "MLM, as many steps",
    "bert": "MLM, as much compute",
    "weak": "MLM + weak decoder (3 layers, k = 2)",
    "strong": "MLM + strong decoder (5 layers, all)",
    "wide": "MLM + decoder of 3 layers, all",
    "deep": "MLM + decoder of 5 layers, k = 2",
}
# In-batch softmax with BM25's negatives; from there two-way NLL with BM25's, which stay, or with refreshed ones.
NEGATIVES = {"bm25": "BM25", "fixed": "BM25, alone", "ance": "refreshed, alone"}
MODELS = {
    "bm25": ("short", "bert", "weak", "strong"),
    "fixed": ("short", "weak"),
    "ance": ("short", "weak"),
}  # of all tables; the others are of Figure 3
METRICS = {"squad": ("RR", *(f"Success@{k}" for k in (1, 5, 10, 50, 100))), "msmarco": ("RR@10", "R@1000")}
ANSWERS = ("Answer@20", "Answer@100")  # of Table 4
DEPTH = {"squad": 100, "msmarco": 1000}
TRANSFER = ("cranfield", "cisi", "cacm", "npl")
_MASKED = 0.15


class Size(NamedTuple):
    """What a size of the study changes.

    Attributes:
      base: the size of the configs that its runs start from.
      seeds: each has a pre-training of each kind, and its own fine-tuning runs. One pre-training is one draw: that of
        MLM alone, which asks nothing of [CLS], is of use to fine-tuning or not (docs/results/seed-encoder.md).
      parallel: runs at a time.
      variations: pre-trainings of Figure 3.
      fields: what is changed in every run's config.
      pre_training: what is changed in config.train of pre-training; the steps are those of the weak decoder.
      fine_tuning: share of labels -> what is changed in config.train.
      alone: the same where the mined negatives are all there are.
      validations: of a run of `fine_tuning`.
      refreshes: of one of `alone`, which validates before each and at its end; up to the first it has BM25's negatives.
    """

    base: str
    seeds: tuple[int, ...]
    parallel: int
    variations: tuple[str, ...]
    fields: dict[str, dict[str, Any]]
    pre_training: dict[str, Any]
    fine_tuning: dict[str, dict[str, Any]]
    alone: dict[str, dict[str, Any]]
    validations: int
    refreshes: int


SIZES = {
    "paper": Size(
        base="paper",
        seeds=(0, 1, 2),
        parallel=1,
        variations=("weak", "strong", "wide", "deep"),
        fields=dict(model=dict(tied=True), data=dict(query_length=64, document_length=512)),
        pre_training={},
        fine_tuning={
            "10": dict(steps=30_000, batch_size=128, learning_rate=1e-5),
            "100": dict(steps=100_000, batch_size=128, learning_rate=1e-5),
        },
        alone={
            "10": dict(steps=30_000, batch_size=64, learning_rate=1e-6, optimizer="lamb", lamb_norm_limit=10.0),
            "100": dict(steps=100_000, batch_size=64, learning_rate=1e-6, optimizer="lamb", lamb_norm_limit=10.0),
        },
        validations=10,
        refreshes=9,
    ),
    "gpu": Size(
        base="local",
        seeds=(0, 1, 2),
        parallel=1,
        variations=("weak", "strong", "wide", "deep"),
        fields=dict(
            prepare=dict(vocab_size=16_000, longest_passage=126, shortest_paragraph=126),
            data=dict(document_length=128),
            model=dict(num_layers=4, hidden_size=256, num_heads=4, mlp_size=1024, dtype="bfloat16"),
            encode=dict(batch_tokens=262_144),
        ),
        pre_training=dict(steps=12_000, batch_size=256, learning_rate=1e-3),
        fine_tuning={
            "10": dict(steps=300, batch_size=128, learning_rate=5e-4),
            "100": dict(steps=1500, batch_size=128, learning_rate=5e-4),
        },
        alone={
            "10": dict(steps=300, batch_size=128, learning_rate=1.5e-4),
            "100": dict(steps=1500, batch_size=128, learning_rate=1.5e-4),
        },
        validations=5,
        refreshes=4,
    ),
    "local": Size(
        base="local",
        seeds=(0, 1, 2),
        parallel=2,
        variations=("weak", "strong"),
        fields=dict(
            prepare=dict(vocab_size=8000, longest_passage=62, shortest_paragraph=62, least_passage=16),
            data=dict(document_length=64),
        ),
        pre_training=dict(steps=800, batch_size=64, learning_rate=2e-3),
        fine_tuning={
            "10": dict(steps=100, batch_size=64, learning_rate=1e-3),
            "100": dict(steps=200, batch_size=64, learning_rate=1e-3),
        },
        alone={
            "10": dict(steps=250, batch_size=64, learning_rate=3e-4),
            "100": dict(steps=500, batch_size=64, learning_rate=3e-4),
        },
        validations=4,
        refreshes=4,
    ),
}


def fine_tuned(size: Size) -> list[tuple[str, str, str]]:
    """(pre-training, share, negatives) of every row: as in the paper, strong decoders have BM25's negatives alone."""
    rows = [(model, share, kind) for kind, models in MODELS.items() for share in SHARES for model in models]
    return rows + [(model, "100", "bm25") for model in size.variations if model not in MODELS["bm25"]]


def run_name(model: str, share: str, negatives: str, seed: int) -> str:
    """The name of a fine-tuning run."""
    return f"s{seed}-{share}-{model}-{negatives}"


def cost(config: ConfigDict) -> float:
    """Multiplications of pre-training for a token: layers, and the output layers for the tokens that are predicted.

    The vocabulary is trained on the corpus: one of another size would be another cost.

    Left out is what attention computes from pairs of tokens, a fiftieth of it in the paper's model.
    """
    model = config.model
    layer = 4 * model.hidden_size**2 + 2 * model.hidden_size * model.mlp_size
    predicted, layers = _MASKED, model.num_layers
    if config.recipe == "autoencoder":
        predicted, layers = 1 + _MASKED, layers + model.decoder.layers
    return layers * layer + predicted * config.prepare.vocab_size * model.hidden_size


def table(study: ConfigDict, size: Size, dataset: str) -> ConfigDict:
    """Every run by its name, those of a seed together."""
    runs = ConfigDict({"corpus": _prepare(study, size)})
    for seed in size.seeds:
        for model in dict.fromkeys((*MODELS["bm25"], *size.variations)):
            runs[pretrained(model, seed)] = _pretrain(size, model, seed)
        for share in SHARES:
            runs[split_run(share, seed)] = _split(study, size, dataset, share, seed)
        for model, share, negatives in fine_tuned(size):
            runs[run_name(model, share, negatives, seed)] = fine_tune(size, dataset, model, share, negatives, seed)
    return runs


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    config = sized(seed_encoder.get_config(size.base), size)
    config.stages = ("prepare",)
    config.corpus = study.get_ref("corpus")
    return config


def _pretrain(size: Size, model: str, seed: int) -> ConfigDict:
    config = sized(seed_encoder.get_config(size.base), size)
    config.seed = seed
    config.stages, config.base = ("train",), "corpus"
    config.train.update(size.pre_training)
    weak = cost(config)
    if DECODERS[model]:
        layers, span = DECODERS[model]
        config.model.decoder.update(layers=layers, span=config.data.document_length if span is None else span)
    else:
        config.recipe = "mlm"
    if model != "short":
        config.train.steps = round(config.train.steps * weak / cost(config))
    return config


def _split(study: ConfigDict, size: Size, dataset: str, share: str, seed: int) -> ConfigDict:
    """The questions divided, BM25 on those of the test, and its negatives for those of the training."""
    config = sized(dpr_mined.get_config(size.base), size)
    config.stages, config.base = ("sets", "index", "mine", "pairs", "evaluate", "report"), "corpus"
    name = SETS[dataset]
    config.sets[name] = study.get_ref("questions")
    if share == "100":
        config.sets.beir = study.get_ref("transfer")
    config.split.update(set=name, ratio=SHARES[share], seed=seed)
    config.index.dense = "exact"
    return _measured(config, dataset, share)


def _measured(config: ConfigDict, dataset: str, share: str) -> ConfigDict:
    metrics = (*METRICS[dataset], "nDCG@10", *(ANSWERS if (dataset, share) == ("squad", "100") else ()))
    config.evaluate.update(runs=False, metrics=metrics, depth=DEPTH[dataset])
    return config


def fine_tune(size: Size, dataset: str, model: str, share: str, negatives: str, seed: int) -> ConfigDict:
    """A run of Table 1: a pre-trained tower, a share of the labels and a kind of negatives."""
    config = sized(dpr_mined.get_config(size.base), size)
    config.seed = seed
    config.stages, config.base = ("train", "encode", "evaluate", "report"), split_run(share, seed)
    config.train.init_from = pretrained(model, seed)
    # [CLS] itself is the embedding (section 4.2). A projection, which would be drawn at random, makes the result one of
    # its seed: [CLS] vectors lie so close to each other that some projections take all of a short run to part them.
    config.model.embed_dim = 0
    config.train.update(size.fine_tuning[share])
    if negatives != "bm25":
        config.train.init_from = run_name(model, share, "bm25", seed)
        config.train.update(size.alone[share], loss="two_way_nll")
    every = config.train.steps // validations(size, negatives)
    config.loop.update(checkpoint_every=every, validate_every=every)
    config.mine.refresh_every = every if negatives == "ance" else 0
    return _measured(config, dataset, share)


def validations(size: Size, negatives: str) -> int:
    """How often a run validates."""
    return size.validations if negatives == "bm25" else size.refreshes + 1


def sized(config: ConfigDict, size: Size) -> ConfigDict:
    """The config at the size of the study: every tower and every text of pre-training ends in [CLS]."""
    config.update(size.fields)
    config.model.pooling = "cls"
    return config


def pretrained(model: str, seed: int) -> str:
    """The name of the pre-training that a seed starts from."""
    return f"pre-{model}-{seed}"


def split_run(share: str, seed: int) -> str:
    """The name of the run that divides the questions of a seed."""
    return f"s{seed}-{share}-search"

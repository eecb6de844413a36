"""The study of Lu et al. 2021 (SEED-Encoder), Tables 1 and 4, Figures 3 and 6: what a decoder in pre-training is
worth to a retriever, and what mining negatives anew is.

    python -m retrieval.study --config=configs/studies/seed_encoder.py:local --workdir=runs/seed \\
        --config.corpus=wikispeedia.xml.bz2 --config.questions=dev-v1.1.json \\
        --config.transfer=beir/cranfield,beir/cisi,beir/cacm,beir/npl

Sizes: 'paper' (a pod; 'paper,msmarco' takes the paper's passages: --config.questions=PASSAGES,QUERIES,QRELS of the
training queries), 'gpu' (one accelerator, minutes a run, it is hoped: it has not been run) and 'local' (2 CPU cores).
What came out is in docs/results/seed-encoder.md.

An encoder is pre-trained as 'bert' (MLM alone), 'weak' (and a decoder of 3 layers that sees 2 tokens back) and 'strong'
(of 5 layers that see all before it); 'wide' and 'deep' have one of the two (Figure 3). All take the same compute: what
is cheaper takes more steps. 'short' is MLM alone with the steps of the weak decoder, the paper's. Each is fine-tuned
with a tenth and all of the labels on BM25's negatives and those of its batch. Two go on from there, as in the paper, by
a loss that knows no negatives but the mined ones: those of BM25 once more, or what is mined anew in training (ANCE).
These are 'short' and 'weak': MLM of as much compute learns nothing in its first phase that could be gone on from.
Every seed draws its split, its batches and pre-trainings of its own: claims are judged over pre-trainings.
`transfer` are BEIR folders of these names, searched with what was learned from all of the labels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import dpr_mined, seed_encoder
from retrieval.configs.studies import lu_2021, parts
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

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


def get_config(size: str = "paper") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,msmarco'."""
    size, dataset = parts.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # MediaWiki exports, separated by commas, or 'pydocs'
    config.questions = ""  # files of SQuAD, or MS MARCO's passages, queries and qrels, separated by commas
    config.transfer = ""  # BEIR folders, separated by commas
    config.runs = _table(config, SIZES[size], dataset)
    config.report = _Tables(SIZES[size], dataset).report()
    return config


def _fine_tuned(size: Size) -> list[tuple[str, str, str]]:
    """(pre-training, share, negatives) of every row: as in the paper, strong decoders have BM25's negatives alone."""
    rows = [(model, share, kind) for kind, models in MODELS.items() for share in SHARES for model in models]
    return rows + [(model, "100", "bm25") for model in size.variations if model not in MODELS["bm25"]]


def _run_name(model: str, share: str, negatives: str, seed: int) -> str:
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


def _table(study: ConfigDict, size: Size, dataset: str) -> ConfigDict:
    """Every run by its name, those of a seed together."""
    runs = ConfigDict({"corpus": _prepare(study, size)})
    for seed in size.seeds:
        for model in dict.fromkeys((*MODELS["bm25"], *size.variations)):
            runs[_pretrained(model, seed)] = _pretrain(size, model, seed)
        for share in SHARES:
            runs[_split_run(share, seed)] = _split(study, size, dataset, share, seed)
        for model, share, negatives in _fine_tuned(size):
            runs[_run_name(model, share, negatives, seed)] = _fine_tune(size, dataset, model, share, negatives, seed)
    return runs


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    config = _sized(seed_encoder.get_config(size.base), size)
    config.stages = ("prepare",)
    config.corpus = study.get_ref("corpus")
    return config


def _pretrain(size: Size, model: str, seed: int) -> ConfigDict:
    config = _sized(seed_encoder.get_config(size.base), size)
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
    config = _sized(dpr_mined.get_config(size.base), size)
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


def _fine_tune(size: Size, dataset: str, model: str, share: str, negatives: str, seed: int) -> ConfigDict:
    """A run of Table 1: a pre-trained tower, a share of the labels and a kind of negatives."""
    config = _sized(dpr_mined.get_config(size.base), size)
    config.seed = seed
    config.stages, config.base = ("train", "encode", "evaluate", "report"), _split_run(share, seed)
    config.train.init_from = _pretrained(model, seed)
    # [CLS] itself is the embedding (section 4.2). A projection, which would be drawn at random, makes the result one of
    # its seed: [CLS] vectors lie so close to each other that some projections take all of a short run to part them.
    config.model.embed_dim = 0
    config.train.update(size.fine_tuning[share])
    if negatives != "bm25":
        config.train.init_from = _run_name(model, share, "bm25", seed)
        config.train.update(size.alone[share], loss="two_way_nll")
    every = config.train.steps // _validations(size, negatives)
    config.loop.update(checkpoint_every=every, validate_every=every)
    config.mine.refresh_every = every if negatives == "ance" else 0
    return _measured(config, dataset, share)


def _validations(size: Size, negatives: str) -> int:
    """How often a run validates."""
    return size.validations if negatives == "bm25" else size.refreshes + 1


def _sized(config: ConfigDict, size: Size) -> ConfigDict:
    """The config at the size of the study: every tower and every text of pre-training ends in [CLS]."""
    config.update(size.fields)
    config.model.pooling = "cls"
    return config


def _pretrained(model: str, seed: int) -> str:
    """The name of the pre-training that a seed starts from."""
    return f"pre-{model}-{seed}"


def _split_run(share: str, seed: int) -> str:
    """The name of the run that divides the questions of a seed."""
    return f"s{seed}-{share}-search"


class _Tables:
    """The report of a size and a dataset."""

    def __init__(self, size: Size, dataset: str):
        self._size, self._dataset, self._set, self._title = size, dataset, SETS[dataset], TITLES[dataset]
        self._metrics = METRICS[dataset]

    def report(self) -> Report:
        """Everything that the study shows."""
        return Report(
            f"A weak decoder and refreshed negatives on {self._title} (Lu et al. 2021)",
            "RR: mean reciprocal rank of the first right candidate; Success@k: share of the test questions with one "
            "among the first k; R@k: share of the right candidates that are.",
            [
                *(self._main(), *self._coverage(), self._transfer(), self._variations()),
                *(self._by_step(negatives) for negatives in NEGATIVES),
            ],
            [claim for share in SHARES for claim in self._claims(share)],
        )

    def _search(self, share: str) -> Cell:
        return self._cell([_split_run(share, seed) for seed in self._size.seeds], "bm25")

    def _model(self, model: str, share: str, negatives: str) -> Cell:
        return self._cell([_run_name(model, share, negatives, seed) for seed in self._size.seeds], "dense")

    def _cell(self, names: list[str], system: str) -> Cell:
        return Cell(tuple(names), system, self._set, "pair" if self._set == "reqa" else "test", self._metrics[0])

    def _rows(self, share: str, paper: dict[Any, Sequence[float]], *labels: str, **columns: Any) -> list[Row]:
        """BM25's row and those of every model, whose cells differ in `columns`; the rest of `columns` is for all."""
        (name, values), *others = columns.items()
        each = [(self._search(share), ["BM25 alone", ""], paper.get("search", ()))]
        for negatives, label in NEGATIVES.items():
            for model in MODELS[negatives]:
                cell = self._model(model, share, negatives)
                each.append((cell, [LABELS[model], label], paper.get((negatives, model), ())))
        return [Row([*labels, *more], cell.at(**dict(others)).each(**{name: values}), of) for cell, more, of in each]

    def _main(self) -> Table:
        taken = len(METRICS["msmarco"]) if self._dataset == "msmarco" else 1  # of the paper's MRR@10 and Recall@1k
        paper = {key: of[:taken] for key, of in {**lu_2021.TABLE_1, "search": lu_2021.SEARCH}.items()}
        rows = [
            row
            for share in SHARES
            for row in self._rows(share, paper if share == "100" else {}, f"{share} %", metric=self._metrics)
        ]
        shares = " and ".join(f"{100 * share:g} %" for share in SHARES.values())
        notes = (
            "In brackets the paper's numbers on MS MARCO's passages; beside RR its MRR@10. Of all questions "
            f"{' and '.join(SHARES)} % of the labels are {shares}, of which a tenth chooses the checkpoint."
        )
        return Table(f"Table 1: {self._title}", ["labels", "pre-training", "negatives", *self._metrics], rows, notes)

    def _coverage(self) -> list[Table]:
        """Table 4, where the answers are known."""
        if self._dataset != "squad":
            return []
        rows = self._rows("100", lu_2021.TABLE_4, metric=ANSWERS, split="answers")
        notes = "In brackets the paper's numbers on Natural Questions, over 21 million passages of Wikipedia."
        return [Table("Table 4: passages that hold the answer", ["pre-training", "negatives", *ANSWERS], rows, notes)]

    def _transfer(self) -> Table:
        rows = self._rows("100", {}, dataset=TRANSFER, split="test", metric="nDCG@10")
        notes = f"Nothing was learned from these collections: the labels are {self._title}'s."
        return Table("Transfer: nDCG@10", ["pre-training", "negatives", *TRANSFER], rows, notes)

    def _variations(self) -> Table:
        models = dict.fromkeys(("bert", *self._size.variations))
        rows = [Row([LABELS[model]], self._model(model, "100", "bm25").each(metric=self._metrics)) for model in models]
        notes = "Fine-tuned on all labels with BM25's negatives."
        return Table("Figure 3: decoders", ["pre-training", *self._metrics], rows, notes)

    def _by_step(self, negatives: str) -> Table:
        """Figure 6, a and b. Its other half, by labels, is in Table 1."""
        every = _fine_tune(self._size, self._dataset, "weak", "100", negatives, 0).loop.validate_every
        steps = [f"step {every * count}" for count in range(1, _validations(self._size, negatives) + 1)]
        rows = []
        for model in MODELS[negatives]:
            cell = self._model(model, "100", negatives).at(system="training", dataset="validation", metric="RR")
            rows.append(Row([LABELS[model]], cell.each(split=steps)))
        title = f"Figure 6: RR of the validation questions, {NEGATIVES[negatives]} negatives"
        return Table(title, ["pre-training", *steps], rows)

    def _claims(self, share: str) -> list[Claim]:
        short, bert, weak, strong = (self._model(model, share, "bm25") for model in MODELS["bm25"])
        fixed_short, fixed_weak = (self._model(model, share, "fixed") for model in MODELS["fixed"])
        new_short, new_weak = (self._model(model, share, "ance") for model in MODELS["ance"])
        claims = [
            ("BM25's negatives, the weak decoder beats MLM alone of as many steps", weak, short),
            ("BM25's negatives, the weak decoder beats MLM alone of as much compute", weak, bert),
            ("BM25's negatives, the weak decoder beats the strong one", weak, strong),
            ("BM25's negatives, MLM alone of as much compute beats the strong decoder", bert, strong),
            ("refreshed negatives, the weak decoder beats MLM alone of as many steps", new_weak, new_short),
            ("MLM alone of as many steps, refreshed negatives beat BM25's, each alone", new_short, fixed_short),
            ("weak decoder, refreshed negatives beat BM25's, each alone", new_weak, fixed_weak),
            ("weak decoder, refreshed negatives alone beat those of the batch with BM25's", new_weak, weak),
            ("weak decoder, refreshed, it beats BM25 itself", new_weak, self._search(share)),
        ]
        return [Claim(f"{share} %: {text}", better, worse) for text, better, worse in claims]

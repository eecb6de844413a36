"""The study of Lu et al. 2021 (SEED-Encoder), Tables 1 and 4, Figures 3, 5 and 6: what a decoder in pre-training is
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

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import dpr_mined, seed_encoder
from retrieval.configs.studies import argument, lu_2021, parts

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


def get_config(size: str = "paper") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,msmarco'."""
    size, dataset = argument.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # MediaWiki exports, separated by commas, or 'pydocs'
    config.questions = ""  # files of SQuAD, or MS MARCO's passages, queries and qrels, separated by commas
    config.transfer = ""  # BEIR folders, separated by commas
    config.parallel = SIZES[size].parallel  # runs at a time
    config.runs = _table(config, SIZES[size], dataset)
    config.report = ConfigDict(_Report(SIZES[size], dataset).spec())
    return config


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


def _table(study: ConfigDict, size: Size, dataset: str) -> ConfigDict:
    """Every run by its name, those of a seed together."""
    runs = ConfigDict({"corpus": _prepare(study, size)})
    for seed in size.seeds:
        for model in dict.fromkeys((*MODELS["bm25"], *size.variations)):
            runs[_pretrained(model, seed)] = _pretrain(size, model, seed)
        for share in SHARES:
            runs[_split_run(share, seed)] = _split(study, size, dataset, share, seed)
        for model, share, negatives in fine_tuned(size):
            runs[run_name(model, share, negatives, seed)] = _fine_tune(size, dataset, model, share, negatives, seed)
    return runs


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    config = _sized(seed_encoder.get_config(size.base), size)
    config.stages = ("prepare",)
    config.corpus = study.get_ref("corpus")
    return config


def _pretrain(size: Size, model: str, seed: int) -> ConfigDict:
    config = _sized(seed_encoder.get_config(size.base), size)
    config.seed = seed
    config.stages, config.base = ("train", "similarity"), "corpus"
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
    config = _sized(dpr_mined.get_config(size.base), size)
    config.seed = seed
    config.stages, config.base = ("train", "encode", "evaluate", "report"), _split_run(share, seed)
    config.train.init_from = _pretrained(model, seed)
    # [CLS] itself is the embedding (section 4.2). A projection, which would be drawn at random, makes the result one of
    # its seed: [CLS] vectors lie so close to each other that some projections take all of a short run to part them.
    config.model.embed_dim = 0
    config.train.update(size.fine_tuning[share])
    if negatives != "bm25":
        config.train.init_from = run_name(model, share, "bm25", seed)
        config.train.update(size.alone[share], loss="two_way_nll")
    every = config.train.steps // _validations(size, negatives)
    config.loop.update(checkpoint_every=every, validate_every=every)
    config.mine.refresh_every = every if negatives == "ance" else 0
    return _measured(config, dataset, share)


def _validations(size: Size, negatives: str) -> int:
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
    return f"s{seed}-{share}-search"


class _Report:
    """Tables, plots and claims, as `retrieval.studies.claims` reads them."""

    def __init__(self, size: Size, dataset: str):
        self._size = size
        self._dataset = dataset
        self._set = SETS[dataset]
        self._title = TITLES[dataset]

    def spec(self) -> dict[str, Any]:
        """Everything that the report shows."""
        return {
            "title": f"A weak decoder and refreshed negatives on {self._title} (Lu et al. 2021)",
            "preamble": [
                "RR: mean reciprocal rank of the first right candidate; Success@k: share of the test questions with "
                "one among the first k; R@k: share of the right candidates that are."
            ],
            "tables": [self._main(), *self._coverage(), self._transfer(), self._variations()],
            "plots": [
                self._similarity(),
                *(self._by_step(negatives) for negatives in NEGATIVES),
                *(self._by_labels(negatives) for negatives in NEGATIVES),
            ],
            "claims": [claim for share in SHARES for claim in self._claims(share)],
        }

    def _search(self, share: str, metric: str) -> dict[str, Any]:
        return self._cell([_split_run(share, seed) for seed in self._size.seeds], "bm25", metric)

    def _model(self, model: str, share: str, negatives: str, metric: str = "") -> dict[str, Any]:
        runs = [run_name(model, share, negatives, seed) for seed in self._size.seeds]
        return self._cell(runs, "dense", metric or METRICS[self._dataset][0])

    def _cell(self, runs: list[str], system: str, metric: str) -> dict[str, Any]:
        return dict(runs=runs, system=system, metric=metric, dataset=self._set, split=self._rule())

    def _rule(self) -> str:
        return "pair" if self._set == "reqa" else "test"

    def _main(self) -> dict[str, Any]:
        metrics, rows = METRICS[self._dataset], []
        for share in SHARES:
            label = f"{share} %"
            cells = [self._search(share, metric) for metric in metrics]
            rows.append(parts.row([label, "BM25 alone", ""], cells, self._paper(lu_2021.SEARCH, share)))
            for negatives, name in NEGATIVES.items():
                for model in MODELS[negatives]:
                    cells = [self._model(model, share, negatives, metric) for metric in metrics]
                    paper = self._paper(lu_2021.TABLE_1.get((negatives, model), ()), share)
                    rows.append(parts.row([label, LABELS[model], name], cells, paper))
        header = ["labels", "pre-training", "negatives", *metrics]
        shares = " and ".join(f"{100 * share:g} %" for share in SHARES.values())
        notes = (
            "In brackets the paper's numbers on MS MARCO's passages; beside RR its MRR@10. Of all questions "
            f"{' and '.join(SHARES)} % of the labels are {shares}, of which a tenth chooses the checkpoint."
        )
        return dict(title=f"Table 1: {self._title}", header=header, rows=rows, notes=notes)

    def _coverage(self) -> list[dict[str, Any]]:
        """Table 4, where the answers are known."""
        if self._dataset != "squad":
            return []

        def cells(cell: dict[str, Any]) -> list[dict[str, Any]]:
            return [cell | dict(metric=metric, split="answers") for metric in ANSWERS]

        rows = [parts.row(["BM25 alone", ""], cells(self._search("100", "")), lu_2021.TABLE_4["search"])]
        for negatives, name in NEGATIVES.items():
            for model in MODELS[negatives]:
                paper = lu_2021.TABLE_4.get((negatives, model), ())
                rows.append(parts.row([LABELS[model], name], cells(self._model(model, "100", negatives)), paper))
        notes = "In brackets the paper's numbers on Natural Questions, over 21 million passages of Wikipedia."
        header = ["pre-training", "negatives", *ANSWERS]
        return [dict(title="Table 4: passages that hold the answer", header=header, rows=rows, notes=notes)]

    def _paper(self, numbers: Sequence[float], share: str) -> Sequence[float]:
        """What of the paper's MRR@10 and Recall@1k belongs beside ours."""
        return numbers[: len(METRICS["msmarco"]) if self._dataset == "msmarco" else 1] if share == "100" else ()

    def _transfer(self) -> dict[str, Any]:
        def cells(cell: dict[str, Any]) -> list[dict[str, Any]]:
            return [cell | dict(dataset=name, split="test") for name in TRANSFER]

        rows = [parts.row(["BM25 alone", ""], cells(self._search("100", "nDCG@10")))]
        for negatives, name in NEGATIVES.items():
            for model in MODELS[negatives]:
                rows.append(parts.row([LABELS[model], name], cells(self._model(model, "100", negatives, "nDCG@10"))))
        notes = f"Nothing was learned from these collections: the labels are {self._title}'s."
        header = ["pre-training", "negatives", *TRANSFER]
        return dict(title="Transfer: nDCG@10", header=header, rows=rows, notes=notes)

    def _variations(self) -> dict[str, Any]:
        metrics, rows = METRICS[self._dataset], []
        for model in dict.fromkeys(("bert", *self._size.variations)):
            cells = [self._model(model, "100", "bm25", metric) for metric in metrics]
            rows.append(parts.row([LABELS[model]], cells))
        notes = "Fine-tuned on all labels with BM25's negatives."
        return dict(title="Figure 3: decoders", header=["pre-training", *metrics], rows=rows, notes=notes)

    def _similarity(self) -> dict[str, Any]:
        """Figure 5."""
        longest = _sized(seed_encoder.get_config(self._size.base), self._size).data.document_length
        lines = []
        for model in MODELS["bm25"]:
            runs = [_pretrained(model, seed) for seed in self._size.seeds]
            cell = dict(runs=runs, system="trained", metric="cosine", dataset="corpus")
            points = [[n, cell | dict(split=f"{n} tokens")] for n in (longest // part for part in (8, 4, 2, 1))]
            lines.append(dict(label=LABELS[model], points=points))
        title = "Figure 5: how alike random texts are to the pre-trained encoder"
        return dict(title=title, x="tokens of a text", y="cosine, %", lines=lines)

    def _by_step(self, negatives: str) -> dict[str, Any]:
        """Figure 6, a and b."""
        every = _fine_tune(self._size, self._dataset, "weak", "100", negatives, 0).loop.validate_every
        steps = [every * turn for turn in range(1, _validations(self._size, negatives) + 1)]
        lines = []
        for model in MODELS[negatives]:
            cell = self._model(model, "100", negatives, "RR") | dict(system="training", dataset="validation")
            lines.append(dict(label=LABELS[model], points=[[s, cell | dict(split=f"step {s}")] for s in steps]))
        title = f"Figure 6: by step, {NEGATIVES[negatives]} negatives"
        return dict(title=title, x="step", y="RR of the validation questions, %", lines=lines)

    def _by_labels(self, negatives: str) -> dict[str, Any]:
        """Figure 6, c and d."""
        lines = [
            dict(label=LABELS[model], points=[[float(s), self._model(model, s, negatives)] for s in SHARES])
            for model in MODELS[negatives]
        ]
        title = f"Figure 6: by labels, {NEGATIVES[negatives]} negatives"
        return dict(title=title, x="labels, %", y="RR, %", lines=lines, log_x=True)

    def _claims(self, share: str) -> list[dict[str, Any]]:
        claim = functools.partial(parts.claim, share)
        short, bert, weak, strong = (self._model(model, share, "bm25") for model in MODELS["bm25"])
        fixed_short, fixed_weak = (self._model(model, share, "fixed") for model in MODELS["fixed"])
        new_short, new_weak = (self._model(model, share, "ance") for model in MODELS["ance"])
        return [
            claim("BM25's negatives, the weak decoder beats MLM alone of as many steps", weak, short),
            claim("BM25's negatives, the weak decoder beats MLM alone of as much compute", weak, bert),
            claim("BM25's negatives, the weak decoder beats the strong one", weak, strong),
            claim("BM25's negatives, MLM alone of as much compute beats the strong decoder", bert, strong),
            claim("refreshed negatives, the weak decoder beats MLM alone of as many steps", new_weak, new_short),
            claim("MLM alone of as many steps, refreshed negatives beat BM25's, each alone", new_short, fixed_short),
            claim("weak decoder, refreshed negatives beat BM25's, each alone", new_weak, fixed_weak),
            claim("weak decoder, refreshed negatives alone beat those of the batch with BM25's", new_weak, weak),
            claim(
                "weak decoder, refreshed, it beats BM25 itself",
                new_weak,
                self._search(share, METRICS[self._dataset][0]),
            ),
        ]

"""The study of Liu et al. 2021 (QuadrupletBERT): which part of its gain is the loss, and which the hard negatives.

    python -m retrieval.study --config=configs/studies/quadruplet.py:local --workdir=runs/quadruplet \\
        --config.corpus=PARAGRAPHS.jsonl --config.questions=dev-v1.1.json

`corpus` has the documents that BERT is pre-trained on, with masked tokens and next-sentence prediction. The paper takes
the text of the questions' set.
Sizes: 'paper' (BERT-base, one accelerator or more), 'local' (2 CPU cores) and 'short' (the same, with fewer steps).
',nq' after it takes Natural Questions.

The paper compares its loss with hard negatives to the triplet loss without them. The controls here are the triplet loss
with the same hard negatives, alone or beside simple ones, and in-batch softmax without and with them.

Every row has as many steps. Rows with hard negatives turn to them when validation no longer rises. A seed draws the
pre-training, the division of the questions, the negatives and the batches.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import bert
from retrieval.configs import quadruplet as phases
from retrieval.configs.studies import argument, liu_2021, parts

SEEDS = (0, 1, 2)
SETS = {"squad": "reqa", "nq": "nq"}  # dataset -> the set's name
MARGINS = {"squad": 0.1, "nq": 0.2}  # the paper's best
SHARES = {"5": 0.05, "80": 0.8}  # of the questions, % -> to train on
CUTOFFS = (1, 10, 50, 100)


class Size(NamedTuple):
    """What a size changes: share of labels -> steps of a row; and the steps of pre-training."""

    base: str
    steps: dict[str, int]
    pre_training: int


SIZES = {
    "paper": Size("paper", {"5": 4000, "80": 11_000}, 20_000),
    "local": Size("local", {"5": 600, "80": 1500}, 2000),
    "short": Size("local", {"5": 400, "80": 600}, 1000),
}


def _emb(config: ConfigDict) -> None:
    _triplet(config)
    config.model.update(encoder="bow_mlp", embed_dim=config.model.hidden_size)
    config.train.init_from = ""


def _trigrams(config: ConfigDict) -> None:
    _emb(config)
    config.data.update(query_length=128, document_length=288)  # letters, where 64 word pieces have some 270


def _triplet(config: ConfigDict) -> None:
    config.data.negatives = 1
    config.mine.update(patience=0, turn_rate=0.0, refresh_every=0, refresh_makes="negatives")


def _triplet_of_hard(config: ConfigDict) -> None:
    config.data.negatives = 1
    config.data.rates.update(quadruplets=0.0, pairs=1.0)
    config.mine.refresh_makes = "negatives"


def _triplets(config: ConfigDict) -> None:
    config.train.hinges = "triplets"


def _softmax(config: ConfigDict) -> None:
    config.train.update(loss="in_batch_softmax", temperature=0.05, log_q=False, margin=1.0)
    config.data.rates.update(quadruplets=0.0, pairs=1.0)
    config.data.negatives = 0
    config.mine.update(patience=0, turn_rate=0.0, refresh_every=0, refresh_makes="negatives")


def _softmax_with_hard(config: ConfigDict) -> None:
    rate = config.mine.turn_rate
    _softmax(config)
    config.data.negatives = 1
    config.mine.update(patience=3, turn_rate=rate, refresh_every=config.train.steps)


class Row(NamedTuple):
    """A row of Table 1: its label, how it differs from QuadrupletBERT, and how the name of its questions' run ends."""

    label: str
    change: Callable[[ConfigDict], None] = lambda config: None
    questions: str = ""


ROWS = {
    "emb": Row("Three-T Emb: word pieces, triplet loss", _emb),
    "emb-trigrams": Row("Three-T Emb: letter trigrams, triplet loss", _trigrams, "-trigrams"),
    "triplet": Row("Three-T BERT: triplet loss", _triplet),
    "quadruplet": Row("QuadrupletBERT"),
    "triplet-hard": Row("triplet loss, hard negatives in the second phase (control)", _triplet_of_hard),
    "triplets": Row("triplet losses with simple and hard negatives (control)", _triplets),
    "softmax": Row("in-batch softmax (control)", _softmax),
    "softmax-hard": Row("in-batch softmax, hard negatives in the second phase (control)", _softmax_with_hard),
}


# What the paper's gain is made of: label, the better row, the worse one. The last two add up to the first.
GAINS = (
    ("QuadrupletBERT over the triplet loss", "quadruplet", "triplet"),
    ("of it the hard negatives, by triplet losses", "triplets", "triplet"),
    ("of it the loss, with the same hard negatives", "quadruplet", "triplets"),
)


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,nq'."""
    size, dataset = argument.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # documents to pre-train on, as in configs/bert.py
    config.vocab = ""  # empty trains one on the corpus
    config.questions = ""  # files of SQuAD, or of Natural Questions, separated by commas
    config.parallel = 1  # runs at a time
    config.runs = ConfigDict(_table(config, SIZES[size], dataset))
    config.report = ConfigDict(_Report(dataset).spec())
    return config


def _table(study: ConfigDict, size: Size, dataset: str) -> dict[str, ConfigDict]:
    runs = {"corpus": _prepare(study, size), "corpus-trigrams": _prepare_trigrams(study, size)}
    for seed in SEEDS:
        runs[f"bert-s{seed}"] = _pretrain(size, seed)
        for share in SHARES:
            runs[_divided(share, seed)] = _questions(study, size, dataset, share, seed, alone=True)
            runs[f"{_divided(share, seed)}-passages"] = _questions(study, size, dataset, share, seed, alone=False)
            runs[f"{_divided(share, seed)}-trigrams"] = _trigram_pairs(study, size, dataset, share, seed)
            for name, row in ROWS.items():
                runs[_run(name, share, seed)] = _train(study, size, dataset, share, seed, row)
            for margin in other_margins(dataset):
                run = _train(study, size, dataset, share, seed, ROWS["quadruplet"])
                run.train.margin = margin
                runs[_of_margin(margin, share, seed)] = run
    return runs


def other_margins(dataset: str) -> list[float]:
    """Those of Table 2 that Table 1 does not have."""
    return [margin for margin in liu_2021.TABLE_2[dataset]["5"] if margin != MARGINS[dataset]]


def _run(name: str, share: str, seed: int) -> str:
    return f"{name}-{share}-s{seed}"


def _of_margin(margin: float, share: str, seed: int) -> str:
    return f"margin{margin:g}-{share}-s{seed}".replace(".", "_")


def _divided(share: str, seed: int) -> str:
    return f"questions-{share}-s{seed}"


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    config = parts.prepared(bert.get_config(size.base), study)
    if size.base == "local":
        config.prepare.vocab_size = 8000
    return config


def _prepare_trigrams(study: ConfigDict, size: Size) -> ConfigDict:
    config = _prepare(study, size)
    config.vocab, config.prepare.vocab_kind = "", "trigrams"
    return config


def _pretrain(size: Size, seed: int) -> ConfigDict:
    config = bert.get_config(size.base)
    config.stages, config.base, config.seed = ("train",), "corpus", seed
    config.model.update(embed_dim=0, pooling="mean", tied=True, normalize=True)
    config.train.steps = size.pre_training
    return config


def _questions(study: ConfigDict, size: Size, dataset: str, share: str, seed: int, *, alone: bool) -> ConfigDict:
    """The questions divided, BM25 and chance, over sentences alone or with their passages; and simple negatives."""
    config = _asked(phases.get_config(size.base), study, dataset, share, seed)
    config.base, config.sets.reqa_sentences = "corpus", alone
    config.stages = ("sets", "index", "mine", "pairs", "evaluate", "report") if alone else ("sets", "index", "evaluate")
    return config


def _trigram_pairs(study: ConfigDict, size: Size, dataset: str, share: str, seed: int) -> ConfigDict:
    """The same questions and simple negatives as letter trigrams."""
    config = _questions(study, size, dataset, share, seed, alone=True)
    _trigrams(config)
    config.base, config.index.words, config.stages = "corpus-trigrams", ("random",), ("sets", "index", "mine", "pairs")
    return config


def _asked(config: ConfigDict, study: ConfigDict, dataset: str, share: str, seed: int) -> ConfigDict:
    config.sets[SETS[dataset]] = study.get_ref("questions")
    config.split.update(set=SETS[dataset], ratio=SHARES[share], seed=seed)
    return config


def _train(study: ConfigDict, size: Size, dataset: str, share: str, seed: int, row: Row) -> ConfigDict:
    config = _asked(phases.get_config(size.base), study, dataset, share, seed)
    config.stages, config.seed = ("train", "encode", "evaluate", "report"), seed
    config.base = _divided(share, seed) + row.questions
    config.train.update(init_from=f"bert-s{seed}", steps=size.steps[share], margin=MARGINS[dataset])
    config.mine.refresh_every = config.train.steps
    config.loop.validate_every = max(25, config.train.steps // 40)
    row.change(config)
    return config


class _Report:
    """Tables, plots and claims, as `retrieval.studies.claims` reads them."""

    def __init__(self, dataset: str):
        self._dataset, self._set = dataset, SETS[dataset]

    def spec(self) -> dict[str, Any]:
        """Everything that the report shows."""
        names = {"squad": "SQuAD", "nq": "Natural Questions"}
        return {
            "title": f"QuadrupletBERT on ReQA {names[self._dataset]} (Liu et al. 2021)",
            "preamble": [
                "R@k: the share of a question's gold sentences among the first k. Candidates are sentences alone, "
                "but in the row of BM25 that says otherwise.",
                "The paper searches a quantised index. The row through ScaNN is such a search; the others are exact. "
                "Where ScaNN cannot be imported, that row is missing.",
                "Every row has as many steps. Margins are the paper's, but in the row that says otherwise: there "
                "validation chooses one of six for each seed. Table 2 shows what it says of them.",
            ],
            "tables": [part(share) for part in (self._main, self._gains, self._margins) for share in SHARES],
            "plots": [],
            "claims": [claim for share in SHARES for claim in self._claims(share)],
        }

    def _cell(self, runs: list[str], system: str, k: int) -> dict[str, Any]:
        return dict(runs=runs, system=system, metric=f"R@{k}", dataset=self._set, split="pair")

    def _of(self, name: str, share: str, k: int = 10, system: str = "dense") -> dict[str, Any]:
        return self._cell([_run(name, share, seed) for seed in SEEDS], system, k)

    def _words(self, share: str, ending: str, k: int, system: str = "bm25") -> dict[str, Any]:
        return self._cell([f"{_divided(share, seed)}{ending}" for seed in SEEDS], system, k)

    def _main(self, share: str) -> dict[str, Any]:
        paper = liu_2021.TABLE_1[self._dataset][share]
        rows = [
            parts.row(["chance"], [self._words(share, "", k, "random") for k in CUTOFFS]),
            parts.row(["BM25, sentence"], [self._words(share, "", k) for k in CUTOFFS]),
            parts.row(["BM25, sentence and passage"], [self._words(share, "-passages", k) for k in CUTOFFS]),
        ]
        for name, row in ROWS.items():
            rows.append(parts.row([row.label], [self._of(name, share, k) for k in CUTOFFS], paper.get(name, ())))
        rows.append(
            parts.row(["QuadrupletBERT, margin by validation"], [self._by_validation(share, k) for k in CUTOFFS])
        )
        through = [self._of("quadruplet", share, k, "dense (ScaNN)") for k in CUTOFFS]
        rows.append(parts.row(["QuadrupletBERT, through ScaNN"], through))
        title = f"Table 1: {share} % of the questions to train on"
        return dict(title=title, header=["model", *(f"R@{k}" for k in CUTOFFS)], rows=rows)

    def _by_validation(self, share: str, k: int) -> dict[str, Any]:
        """Of each seed the run with the margin that validation likes best; one that failed is none of them."""
        margins = other_margins(self._dataset)
        rivals = [[_of_margin(margin, share, seed) for margin in margins] for seed in SEEDS]
        return self._of("quadruplet", share, k) | dict(rivals=rivals, chosen_by="Success@10")

    def _gains(self, share: str) -> dict[str, Any]:
        """What the paper's gain is made of: the same hard negatives in both losses part it."""
        paper = liu_2021.TABLE_1[self._dataset][share]
        whole = [round(a - b, 2) for a, b in zip(paper["quadruplet"], paper["triplet"])]
        rows = [parts.row([label], self._gain(share, *names)) for label, *names in GAINS[1:]]
        label, *names = GAINS[0]
        rows.insert(0, parts.row([label], self._gain(share, *names), whole))
        header = ["gain over the triplet loss, in points", *(f"R@{k}" for k in CUTOFFS)]
        notes = "The second and the third row add up to the first where all runs are done."
        return dict(title=f"Where the gain comes from: {share} %", header=header, rows=rows, notes=notes)

    def _gain(self, share: str, better: str, worse: str) -> list[dict[str, Any]]:
        return [self._of(better, share, k) | dict(over=self._of(worse, share, k)) for k in CUTOFFS]

    def _margins(self, share: str) -> dict[str, Any]:
        rows = []
        for margin, paper in liu_2021.TABLE_2[self._dataset][share].items():
            names = [
                _run("quadruplet", share, seed) if margin == MARGINS[self._dataset] else _of_margin(margin, share, seed)
                for seed in SEEDS
            ]
            cells = [self._cell(names, "dense", k) for k in CUTOFFS]
            best = dict(runs=names, system="training", dataset="validation", split="best", metric="Success@10")
            rows.append(parts.row([f"{margin:g}"], [*cells, best], paper))
        header = ["margin", *(f"R@{k}" for k in CUTOFFS), "validation, Success@10"]
        return dict(title=f"Table 2: margins, {share} %", header=header, rows=rows)

    def _claims(self, share: str) -> list[dict[str, Any]]:
        quadruplet, triplet, emb, of_hard, both, softmax, with_hard = (
            self._of(name, share)
            for name in ("quadruplet", "triplet", "emb", "triplet-hard", "triplets", "softmax", "softmax-hard")
        )
        return [
            parts.claim(share, "QuadrupletBERT beats the triplet loss", quadruplet, triplet),
            parts.claim(share, "Three-T BERT beats Three-T Emb", triplet, emb),
            parts.claim(share, "hard negatives help the triplet loss (ours)", of_hard, triplet),
            parts.claim(
                share, "the loss: QuadrupletBERT beats triplets of the same negatives (ours)", quadruplet, both
            ),
            parts.claim(share, "in-batch softmax beats QuadrupletBERT (ours)", softmax, quadruplet),
            parts.claim(share, "hard negatives help in-batch softmax (ours)", with_hard, softmax),
            parts.claim(share, "QuadrupletBERT beats BM25 on sentences (ours)", quadruplet, self._words(share, "", 10)),
            *(self._over_questions(share, seed, *names) for names in GAINS for seed in SEEDS),
        ]

    def _over_questions(self, share: str, seed: int, label: str, better: str, worse: str) -> dict[str, Any]:
        """A claim of one seed, whose p is of a paired randomisation test over the questions."""
        one, other = (self._cell([_run(name, share, seed)], "dense", 10) for name in (better, worse))
        return parts.claim(share, f"{label}, seed {seed} over its questions", one, other)

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

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import bert
from retrieval.configs import quadruplet as phases
from retrieval.configs.studies import liu_2021, parts
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

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


class Model(NamedTuple):
    """A row of Table 1: its label, how it differs from QuadrupletBERT, and how the name of its questions' run ends."""

    label: str
    change: Callable[[ConfigDict], None] = lambda config: None
    questions: str = ""


ROWS = {
    "emb": Model("Three-T Emb: word pieces, triplet loss", _emb),
    "emb-trigrams": Model("Three-T Emb: letter trigrams, triplet loss", _trigrams, "-trigrams"),
    "triplet": Model("Three-T BERT: triplet loss", _triplet),
    "quadruplet": Model("QuadrupletBERT"),
    "triplet-hard": Model("triplet loss, hard negatives in the second phase (control)", _triplet_of_hard),
    "triplets": Model("triplet losses with simple and hard negatives (control)", _triplets),
    "softmax": Model("in-batch softmax (control)", _softmax),
    "softmax-hard": Model("in-batch softmax, hard negatives in the second phase (control)", _softmax_with_hard),
}


# What the paper's gain is made of: label, the better row, the worse one. The last two add up to the first.
GAINS = (
    ("QuadrupletBERT over the triplet loss", "quadruplet", "triplet"),
    ("of it the hard negatives, by triplet losses", "triplets", "triplet"),
    ("of it the loss, with the same hard negatives", "quadruplet", "triplets"),
)


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,nq'."""
    size, dataset = parts.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # documents to pre-train on, as in configs/bert.py
    config.vocab = ""  # empty trains one on the corpus
    config.questions = ""  # files of SQuAD, or of Natural Questions, separated by commas
    config.runs = ConfigDict(_table(config, SIZES[size], dataset))
    config.report = _report(dataset)
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
    """The questions divided, BM25 over sentences alone or with their passages; and simple negatives."""
    config = _asked(phases.get_config(size.base), study, dataset, share, seed)
    config.base, config.sets.reqa_sentences = "corpus", alone
    config.stages = ("sets", "index", "mine", "pairs", "evaluate", "report") if alone else ("sets", "index", "evaluate")
    return config


def _trigram_pairs(study: ConfigDict, size: Size, dataset: str, share: str, seed: int) -> ConfigDict:
    """The same questions and simple negatives as letter trigrams."""
    config = _questions(study, size, dataset, share, seed, alone=True)
    _trigrams(config)
    config.base, config.stages = "corpus-trigrams", ("sets", "mine", "pairs")
    return config


def _asked(config: ConfigDict, study: ConfigDict, dataset: str, share: str, seed: int) -> ConfigDict:
    config.sets[SETS[dataset]] = study.get_ref("questions")
    config.split.update(set=SETS[dataset], ratio=SHARES[share], seed=seed)
    return config


def _train(study: ConfigDict, size: Size, dataset: str, share: str, seed: int, row: Model) -> ConfigDict:
    config = _asked(phases.get_config(size.base), study, dataset, share, seed)
    config.stages, config.seed = ("train", "encode", "evaluate", "report"), seed
    config.base = _divided(share, seed) + row.questions
    config.train.update(init_from=f"bert-s{seed}", steps=size.steps[share], margin=MARGINS[dataset])
    config.mine.refresh_every = config.train.steps
    config.loop.validate_every = max(25, config.train.steps // 40)
    row.change(config)
    return config


def _report(dataset: str) -> Report:
    name = "SQuAD" if dataset == "squad" else "Natural Questions"
    return Report(
        f"QuadrupletBERT on ReQA {name} (Liu et al. 2021)",
        "R@k: the share of a question's gold sentences among the first k. Candidates are sentences alone, but in the "
        "row of BM25 that says otherwise. The paper searches a quantised index. The row through ScaNN is such a "
        "search; the others are exact. Where ScaNN cannot be imported, that row is missing. Every row has as many "
        "steps, and the paper's margin.",
        [part(dataset, share) for part in (_main, _gains, _margins) for share in SHARES],
        [claim for share in SHARES for claim in _claims(dataset, share)],
    )


def _cell(dataset: str, runs: Iterable[str], system: str = "dense") -> Cell:
    return Cell(tuple(runs), system, SETS[dataset], "pair", "R@10")


def _of(dataset: str, name: str, share: str, system: str = "dense") -> Cell:
    return _cell(dataset, (_run(name, share, seed) for seed in SEEDS), system)


def _words(dataset: str, share: str, ending: str = "") -> Cell:
    return _cell(dataset, (f"{_divided(share, seed)}{ending}" for seed in SEEDS), "bm25")


def _each_k(cell: Cell) -> list[Cell]:
    return cell.each(metric=[f"R@{k}" for k in CUTOFFS])


def _main(dataset: str, share: str) -> Table:
    paper = liu_2021.TABLE_1[dataset][share]
    rows = [
        Row(["BM25, sentence"], _each_k(_words(dataset, share))),
        Row(["BM25, sentence and passage"], _each_k(_words(dataset, share, "-passages"))),
    ]
    for name, row in ROWS.items():
        rows.append(Row([row.label], _each_k(_of(dataset, name, share)), paper.get(name, ())))
    through = _each_k(_of(dataset, "quadruplet", share, "dense (ScaNN)"))
    rows.append(Row(["QuadrupletBERT, through ScaNN"], through))
    title = f"Table 1: {share} % of the questions to train on"
    return Table(title, ["model", *(f"R@{k}" for k in CUTOFFS)], rows)


def _gains(dataset: str, share: str) -> Table:
    """What the paper's gain is made of: the same hard negatives in both losses part it."""
    paper = liu_2021.TABLE_1[dataset][share]
    whole = [round(a - b, 2) for a, b in zip(paper["quadruplet"], paper["triplet"])]
    rows = []
    for label, better, worse in GAINS:
        pairs = zip(*(_each_k(_of(dataset, name, share)) for name in (better, worse)))
        cells = [cell.at(over=other) for cell, other in pairs]
        rows.append(Row([label], cells, () if rows else whole))
    header = ["gain over the triplet loss, in points", *(f"R@{k}" for k in CUTOFFS)]
    notes = "The second and the third row add up to the first where all runs are done."
    return Table(f"Where the gain comes from: {share} %", header, rows, notes)


def _margins(dataset: str, share: str) -> Table:
    rows = []
    for margin, paper in liu_2021.TABLE_2[dataset][share].items():
        is_best = margin == MARGINS[dataset]
        names = (_run("quadruplet", share, s) if is_best else _of_margin(margin, share, s) for s in SEEDS)
        cell = _cell(dataset, names)
        best = Cell(cell.runs, "training", "validation", "best", "Success@10")
        rows.append(Row([f"{margin:g}"], [*_each_k(cell), best], paper))
    header = ["margin", *(f"R@{k}" for k in CUTOFFS), "validation, Success@10"]
    return Table(f"Table 2: margins, {share} %", header, rows)


def _claims(dataset: str, share: str) -> list[Claim]:
    of = {name: _of(dataset, name, share) for name in ROWS}
    quadruplet, triplet = of["quadruplet"], of["triplet"]
    claims = [
        ("QuadrupletBERT beats the triplet loss", quadruplet, triplet),
        ("Three-T BERT beats Three-T Emb", triplet, of["emb"]),
        ("hard negatives help the triplet loss (ours)", of["triplet-hard"], triplet),
        ("the loss: QuadrupletBERT beats triplets of the same negatives (ours)", quadruplet, of["triplets"]),
        ("in-batch softmax beats QuadrupletBERT (ours)", of["softmax"], quadruplet),
        ("hard negatives help in-batch softmax (ours)", of["softmax-hard"], of["softmax"]),
        ("QuadrupletBERT beats BM25 on sentences (ours)", quadruplet, _words(dataset, share)),
    ]
    for label, *names in GAINS:  # of one seed, whose p is of a paired randomisation test over the questions
        for seed in SEEDS:
            better, worse = (_cell(dataset, [_run(name, share, seed)]) for name in names)
            claims.append((f"{label}, seed {seed} over its questions", better, worse))
    return [Claim(f"{share} %: {text}", better, worse) for text, better, worse in claims]

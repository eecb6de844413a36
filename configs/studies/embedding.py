"""What each of these brings to the fine-tuning of a published embedder: masks by margin, mined negatives, Matryoshka
and a larger embedder as the teacher, each alone beside pairs with in-batch softmax.

    python -m retrieval.study --config=configs/studies/embedding.py --workdir=runs/embedding \\
        --config.model=hf:sentence-transformers/all-MiniLM-L6-v2 --config.beir=DATA/nfcorpus \\
        --config.teacher=hf:sentence-transformers/all-mpnet-base-v2

`beir` is a folder of that name, nfcorpus if none follows the colon, with the judgements train, dev and test. Everything
is for two CPU cores: texts of 32 and 64 tokens, 150 steps of 32 pairs, three seeds, some four minutes a run. The last
step is tested, whatever dev says. The teacher scores
148,000 pairs first, which takes half an hour; --only='pairs*,masked*' does without it. What came out is in
docs/results/fine-tuning.md.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.configs import embedding
from retrieval.models import two_tower
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

SEEDS = (0, 1, 2)
SHARES = (16, 8, 4, 2, 1)  # of an embedding: a sixteenth of its dimensions, an eighth, ...
METRICS = ("nDCG@10", "R@100")


def _masked(config: ConfigDict) -> None:
    config.train.update(false_negatives="absolute", false_margin=0.1)  # Qwen3-Embedding's


def _mined(config: ConfigDict) -> None:
    config.base, config.data.negatives = "mined", 1


def _distilled(config: ConfigDict) -> None:
    config.base, config.data.negatives, config.train.loss = "taught", 1, "margin_mse"


ARMS: dict[str, tuple[str, Callable[[ConfigDict], None]]] = {
    "pairs": ("pairs", lambda config: None),
    "masked": ("with a mask of false negatives by margin", _masked),
    "mined": ("with negatives that the model before found", _mined),
    "matryoshka": ("with Matryoshka", lambda config: None),  # whose sizes are the model's
    "distilled": ("with a teacher's margins in place of the softmax", _distilled),
}


def get_config(dataset: str = "nfcorpus") -> ConfigDict:
    """The table of runs on a BEIR folder of this name; `complete` gives them the model."""
    config = ConfigDict({"model": "", "teacher": "", "beir": "", "runs": {}})
    config.runs["start"] = _run(config, dataset, ("sets", "pairs", "adopt", "encode", "index", "evaluate"))
    config.runs["mined"] = mined = _run(config, dataset, ("mine", "pairs"))
    mined.base, mined.mine.system, mined.mine.relative_margin, mined.data.negatives = "start", "exact", 0.05, 1
    config.runs["taught"] = taught = _run(config, dataset, ("mine", "teacher", "pairs"))
    taught.base, taught.data.negatives = "start", 1
    taught.teacher.model = config.get_ref("teacher")
    for seed in SEEDS:
        for name, (_, change) in ARMS.items():
            config.runs[f"{name}-s{seed}"] = run = _run(
                config, dataset, ("train", "encode", "index", "evaluate", "report")
            )
            run.base, run.seed = "start", seed
            change(run)
    config.report = _report(dataset)
    return config


def complete(study: ConfigDict) -> None:
    """Gives every run the model.

    Raises:
      UserError: there is none.
    """
    if not study.model:
        raise UserError("config.model is empty: name the model to start from, a folder or hf:NAME")
    for name, run in study.runs.items():
        run.train.init_from = study.model
        embedding.complete(run)
        run.data.update(query_length=32, document_length=64)
        whole = two_tower.full_size(run.model.embed_dim, run.model.head, run.model.hidden_size)
        if name.startswith("matryoshka"):
            run.train.matryoshka = tuple(whole // share for share in SHARES)
        if name.startswith("distilled"):
            run.train.teacher_temperature = run.train.temperature  # margins of cosines, on both sides


def _run(study: ConfigDict, dataset: str, stages: tuple[str, ...]) -> ConfigDict:
    config = embedding.get_config("local")
    config.stages = stages
    config.sets.update(beir=study.get_ref("beir"), splits=("test",))
    config.split.update(set=dataset, train="train", dev="dev", shards=8)
    config.train.update(steps=150, minutes=0)
    config.loop.validate_every = 0
    config.index.dense = "exact"
    config.encode.start = False  # the run of no step has it
    return config


def _report(dataset: str) -> Report:
    arms = {name: Cell(tuple(f"{name}-s{seed}" for seed in SEEDS), "dense", dataset, "test", "") for name in ARMS}
    before = Cell(("start",), "dense", dataset, "test", "")
    words = before.at(system="bm25")

    def numbers(cell: Cell) -> list[Cell]:
        return cell.each(metric=METRICS)

    def over(cell: Cell, other: Cell) -> list[Cell]:
        return [one.at(over=two) for one, two in zip(numbers(cell), numbers(other))]

    rows = [Row([label], numbers(cell)) for label, cell in (("BM25", words), ("the model before", before))]
    rows += [Row([ARMS[name][0]], numbers(cell)) for name, cell in arms.items()]
    gains = [Row([ARMS[name][0]], over(cell, arms["pairs"])) for name, cell in arms.items() if name != "pairs"]
    claims = [
        Claim(f"{ARMS[name][0]} beats pairs alone", *(each.at(metric="nDCG@10") for each in (cell, arms["pairs"])))
        for name, cell in arms.items()
        if name != "pairs"
    ]
    return Report(
        f"Fine-tuning of a published embedder on {dataset}",
        "Rows differ in one thing from pairs alone, and have as many steps. All start from one published model.",
        [
            Table("What is found", ["trained on", *METRICS], rows),
            Table("Over pairs alone, in points", ["trained on", *METRICS], gains),
        ],
        claims,
    )

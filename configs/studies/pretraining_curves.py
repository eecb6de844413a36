"""The second study of Chang et al. 2020: curves over the steps of pre-training, where the first has points.

    python -m retrieval.study --config=configs/studies/pretraining_curves.py:local --workdir=runs/curves \\
        --config.corpus=DUMP.xml.bz2 --config.questions=train-v1.1.json,dev-v1.1.json \\
        --config.open_questions=corpus,NQ.jsonl

It differs from `pretraining_tasks.py` where that could not show the paper's claims:

- Passages have some 130 tokens, so that ICT predicts a passage and not its neighbouring sentence.
- Links are of one dump, that of all tasks: give a dump that has links, and no second one with the same titles.
- Towers are separate, as in the paper. Tied ones match equal words before they have learned anything.
- MLM trains for as many steps as the others. It is compared after fine-tuning: without, its towers mean nothing.
- The mixture is trained with and without the correction by log Q, and in larger batches.
- Questions are about articles of the corpus. The open questions, if there are any, have no judgements, but answers.

Every row has a pre-training of its own for each seed. Sizes: 'short' (2 CPU cores: some hours for each seed), 'local'
(2 CPU cores: days) and 'gpu' (one accelerator; it has not been run). The first two may come in parts, as with
`--only='*-s0'`. A crossing of two curves is what the claims ask for.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import bow_mlp, ict_bfs_wlp, mlm, reqa
from retrieval.configs.studies import chang_2020, parts
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

SEEDS = (0, 1, 2)
RATIO = 0.05  # of the labelled questions, for fine-tuning


class Pretraining(NamedTuple):
    """A row of the tables.

    Attributes:
      label: in tables.
      tasks: that it is trained on; without any it is not trained.
      encoder: of its towers.
      log_q: whether scores are corrected for how often a document is drawn.
      batch: how many times as large its batches are; it has as many times fewer steps.
    """

    label: str
    tasks: tuple[str, ...]
    encoder: str = "transformer"
    log_q: bool = True
    batch: int = 1


_ALL = ("ict", "bfs", "wlp")
ROWS = {
    "none": Pretraining("no pre-training", ()),
    "mlm": Pretraining("MLM", ("mlm",)),
    "bow": Pretraining("BoW-MLP, ICT+BFS+WLP", _ALL, "bow_mlp"),
    "ict": Pretraining("ICT", ("ict",)),
    "all": Pretraining("ICT+BFS+WLP", _ALL),
    "all-no-log-q": Pretraining("ICT+BFS+WLP, without log Q", _ALL, log_q=False),
    "all-large": Pretraining("ICT+BFS+WLP, larger batches", _ALL, batch=4),
}


class Size(NamedTuple):
    """What a size of the study changes.

    Attributes:
      steps: at which the curves have a point; the last is the length of pre-training.
      batch_size: of pre-training.
      chunk_size: of larger batches.
      model: fields of every Transformer and BoW-MLP.
      fine_tuning: steps, batch size and learning rate.
    """

    steps: tuple[int, ...]
    batch_size: int
    chunk_size: int
    model: dict[str, Any]
    fine_tuning: tuple[int, int, float]


SIZES = {
    "short": Size((500, 1000, 2000), 128, 128, {}, (200, 128, 5e-4)),
    "local": Size((1000, 2000, 5000, 10_000, 20_000), 128, 128, {}, (200, 128, 5e-4)),
    "gpu": Size(
        (2000, 5000, 10_000, 20_000, 50_000),
        1024,
        1024,
        dict(num_layers=4, hidden_size=256, num_heads=4, mlp_size=1024, dtype="bfloat16"),
        (500, 256, 5e-4),
    ),
}


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them."""
    size, _ = parts.read(size, SIZES, ("squad",))
    config = ConfigDict()
    config.corpus = ""  # a MediaWiki export with links
    config.vocab = ""  # as in configs/ict_bfs_wlp.py; empty trains one
    config.questions = ""  # files of SQuAD, separated by commas
    config.open_questions = ""  # as config.sets.qa: 'corpus,' and a file of questions with answers; empty for none
    config.runs = _table(config, SIZES[size])
    config.report = _report(SIZES[size])
    return config


def points(size: Size, row: Pretraining) -> list[int]:
    """The steps of a row at which its curve has a point."""
    return [step // row.batch for step in size.steps] if row.tasks else [0]


def _table(study: ConfigDict, size: Size) -> ConfigDict:
    runs = {"corpus": _prepare(study, size)}
    for seed in SEEDS:
        runs[f"questions-s{seed}"] = _questions(study, size, seed)
        for name, row in ROWS.items():
            if row.tasks:
                runs[f"pre-{name}-s{seed}"] = _pretrain(size, row, seed)
            for step in points(size, row):
                if row.tasks:
                    runs[_zero_shot(name, step, seed)] = _at_step(study, size, name, step, seed)
                runs[_tuned(name, step, seed)] = _fine_tune(study, size, name, step, seed)
    return ConfigDict(runs)


def _zero_shot(name: str, step: int, seed: int) -> str:
    return f"zero-{name}-{step}-s{seed}"


def _tuned(name: str, step: int, seed: int) -> str:
    return f"tuned-{name}-{step}-s{seed}"


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    return parts.prepared(_sized(ict_bfs_wlp.get_config("local"), size, ROWS["all"]), study)


def _pretrain(size: Size, row: Pretraining, seed: int) -> ConfigDict:
    module = mlm if row.tasks == ("mlm",) else bow_mlp if row.encoder == "bow_mlp" else ict_bfs_wlp
    config = _sized(module.get_config("local"), size, row)
    config.stages, config.base, config.seed = ("train",), "corpus", seed
    # The three are one set of pairs (section 4.1), in the shares of the paper's Table 1.
    rates = chang_2020.TABLE_1 if row.tasks == _ALL else dict.fromkeys(row.tasks, 1.0)
    config.data.rates = dict.fromkeys(config.data.rates, 0.0) | rates
    last = points(size, row)[-1]
    config.train.update(steps=last, batch_size=size.batch_size * row.batch, learning_rate=1e-3, log_q=row.log_q)
    config.train.chunk_size = size.chunk_size if row.batch > 1 else 0
    config.loop.update(checkpoint_every=500, validate_every=0, keep_steps=tuple(points(size, row)), log_every=100)
    return config


def _questions(study: ConfigDict, size: Size, seed: int) -> ConfigDict:
    """The questions divided, and BM25 on those of the test."""
    config = _asked(_sized(reqa.get_config("local"), size, ROWS["all"]), study, seed)
    config.stages, config.base = ("sets", "pairs", "index", "evaluate", "report"), "corpus"
    return config


def _asked(config: ConfigDict, study: ConfigDict, seed: int) -> ConfigDict:
    config.sets.reqa, config.sets.known_articles = study.get_ref("questions"), True
    config.sets.qa = study.get_ref("open_questions")
    config.split.update(set="reqa", ratio=RATIO, seed=seed)
    config.index.dense, config.evaluate.runs = "exact", False
    return config


def _at_step(study: ConfigDict, size: Size, name: str, step: int, seed: int) -> ConfigDict:
    """Towers as they are at a step; an MLM's encoder has an untrained projection behind it."""
    config = _fine_tune(study, size, name, step, seed)
    config.stages = ("adopt", "encode", "evaluate", "report")
    return config


def _fine_tune(study: ConfigDict, size: Size, name: str, step: int, seed: int) -> ConfigDict:
    config = _asked(_sized(reqa.get_config("local"), size, ROWS[name]), study, seed)
    config.stages, config.base = ("train", "encode", "evaluate", "report"), f"questions-s{seed}"
    config.seed = seed
    if step:
        config.train.init_from, config.train.init_step = f"pre-{name}-s{seed}", step
    config.train.steps, config.train.batch_size, config.train.learning_rate = size.fine_tuning
    config.encode.update(untrained=not step, corpus=False)
    return config


def _sized(config: ConfigDict, size: Size, row: Pretraining) -> ConfigDict:
    config.prepare.update(vocab_size=8000, held_out=0.0)
    config.prepare.update(longest_passage=148, shortest_paragraph=120, least_passage=100)
    config.data.update(query_length=40, document_length=160)
    config.model.update(size.model)
    config.model.update(encoder=row.encoder, tied=False, dropout=0.0)
    return config


def _report(size: Size) -> Report:
    found, article, within = (
        Cell(("",), "dense", "reqa", split, metric)
        for split, metric in (("pair", "Success@10"), ("article", "Success@1"), ("within-article", "Success@1"))
    )
    answers = found.at(dataset="qa", split="answers", metric="Answer@20")
    return Report(
        "Pre-training tasks by steps (Chang et al. 2020, second design)",
        "R@k: share of the test questions whose gold (sentence, passage) pair is among the first k. Larger batches "
        "have as many times fewer steps; their points stand at the examples that they saw. MLM has learned something "
        "where its loss is below 4.5: see metrics/train.jsonl of its runs.",
        [
            _table_of(size, "Without labels: R@10 by steps", _zero_shot, found),
            _table_of(size, "Without labels: the right article first", _zero_shot, article),
            _table_of(size, "Without labels: the passage first within its article", _zero_shot, within),
            _table_of(size, "Open questions: Answer@20 by steps", _zero_shot, answers),
            _table_of(size, "Open questions: Answer@100 by steps", _zero_shot, answers.at(metric="Answer@100")),
            _table_of(size, "With 5 % of the labels: R@10 by steps", _tuned, found),
        ],
        _claims(size, found, article, within),
    )


def _at(size: Size, run: Callable[..., str], name: str, place: int, cell: Cell) -> Cell:
    """The cell of a row at one of the study's points. Untrained towers are those of the run that trains them."""
    steps, system = points(size, ROWS[name]), "dense"
    if not ROWS[name].tasks and run is _zero_shot:
        run, system = _tuned, "untrained"
    step = steps[min(place, len(steps) - 1)]
    return cell.at(runs=tuple(run(name, step, seed) for seed in SEEDS), system=system)


def _table_of(size: Size, title: str, run: Callable[..., str], cell: Cell) -> Table:
    """A row for BM25 and each pre-training, a column for each number of steps."""
    bm25 = cell.at(runs=tuple(f"questions-s{seed}" for seed in SEEDS), system="bm25")
    rows = [Row(["BM25"], [bm25] * len(size.steps))]
    for name, row in ROWS.items():
        rows.append(Row([row.label], [_at(size, run, name, place, cell) for place in range(len(size.steps))]))
    return Table(title, ["pre-training", *(f"{step:,}" for step in size.steps)], rows)


def _claims(size: Size, found: Cell, article: Cell, within: Cell) -> list[Claim]:
    def zero(name: str, place: int = len(size.steps) - 1, cell: Cell = found) -> Cell:
        return _at(size, _zero_shot, name, place, cell)

    def tuned(name: str) -> Cell:
        return _at(size, _tuned, name, len(size.steps) - 1, found)

    all_gain, bow_gain = (zero(name).at(over=zero(name, 0)) for name in ("all", "bow"))
    articles, passages = ([zero(name, cell=cell) for name in ("all", "ict")] for cell in (article, within))
    return [
        Claim("fine-tuned: ICT+BFS+WLP beats MLM", tuned("all"), tuned("mlm")),
        Claim("fine-tuned: MLM beats no pre-training", tuned("mlm"), tuned("none")),
        Claim("fine-tuned: ICT beats MLM", tuned("ict"), tuned("mlm")),
        Claim("fine-tuned: ICT+BFS+WLP beats BoW-MLP", tuned("all"), tuned("bow")),
        Claim("ICT+BFS+WLP beats ICT", zero("all"), zero("ict")),
        Claim("at first BoW-MLP beats the Transformer", zero("bow", 0), zero("all", 0)),
        Claim("in the end the Transformer beats BoW-MLP", zero("all"), zero("bow")),
        Claim("the Transformer gains more by steps than BoW-MLP", all_gain, bow_gain),
        Claim("small batches: without log Q beats with (ours)", zero("all-no-log-q"), zero("all")),
        Claim("larger batches beat more steps (ours)", zero("all-large"), zero("all")),
        Claim("ICT+BFS+WLP finds the article more often than ICT", articles[0], articles[1]),
        Claim("ICT finds the passage within it more often", passages[1], passages[0]),
    ]

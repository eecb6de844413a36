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
from retrieval.configs.studies import argument, chang_2020, parts

SEEDS = (0, 1, 2)
RATIO = 0.05  # of the labelled questions, for fine-tuning


class Pretraining(NamedTuple):
    """A line of the plots.

    Attributes:
      label: in tables and plots.
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
    size, _ = argument.read(size, SIZES, ("squad",))
    config = ConfigDict()
    config.corpus = ""  # a MediaWiki export with links
    config.vocab = ""  # as in configs/ict_bfs_wlp.py; empty trains one
    config.questions = ""  # files of SQuAD, separated by commas
    config.open_questions = ""  # as config.sets.qa: 'corpus,' and a file of questions with answers; empty for none
    config.parallel = 2  # runs at a time
    config.runs = _table(config, SIZES[size])
    config.report = ConfigDict(_Report(SIZES[size]).spec())
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
    config = _sized(ict_bfs_wlp.get_config("local"), size, ROWS["all"])
    config.stages = ("prepare",)
    config.corpus, config.vocab = study.get_ref("corpus"), study.get_ref("vocab")
    return config


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
    config.train.steps, config.loop.validate_every = 0, 0
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


class _Report:
    """Tables, plots and claims, as `retrieval.studies.claims` reads them."""

    def __init__(self, size: Size):
        self._size = size

    def spec(self) -> dict[str, Any]:
        """Everything that the report shows."""
        return {
            "title": "Pre-training tasks by steps (Chang et al. 2020, second design)",
            "preamble": [
                "R@k: share of the test questions whose gold (sentence, passage) pair is among the first k.",
                "Larger batches have as many times fewer steps; their points stand at the examples that they saw.",
                "MLM has learned something where its loss is below 4.5: see metrics/train.jsonl of its runs.",
            ],
            "tables": [
                self._table("Without labels: R@10 by steps", _zero_shot, self._reqa("Success@10"), bm25=True),
                self._table("Without labels: the right article first", _zero_shot, self._reqa("Success@1", "article")),
                self._table(
                    "Without labels: the passage first within its article",
                    _zero_shot,
                    self._reqa("Success@1", "within-article"),
                ),
                self._table("Open questions: Answer@20 by steps", _zero_shot, _open("Answer@20"), bm25=True),
                self._table("Open questions: Answer@100 by steps", _zero_shot, _open("Answer@100"), bm25=True),
                self._table("With 5 % of the labels: R@10 by steps", _tuned, self._reqa("Success@10"), bm25=True),
            ],
            "plots": [
                self._plot("Without labels", _zero_shot),
                self._plot("With 5 % of the labels", _tuned),
            ],
            "claims": self._claims(),
        }

    def _reqa(self, metric: str, split: str = "pair") -> dict[str, str]:
        return dict(metric=metric, dataset="reqa", split=split)

    def _at(self, run: Callable[..., str], name: str, place: int, what: dict[str, str]) -> dict[str, Any]:
        """The cell of a row at one of the study's points. Untrained towers are those of the run that trains them."""
        steps, system = points(self._size, ROWS[name]), "dense"
        if not ROWS[name].tasks and run is _zero_shot:
            run, system = _tuned, "untrained"
        return dict(runs=[run(name, steps[min(place, len(steps) - 1)], s) for s in SEEDS], system=system, **what)

    def _table(self, title: str, run: Callable[..., str], what: dict[str, str], bm25: bool = False) -> dict[str, Any]:
        rows, places = [], range(len(self._size.steps))
        if bm25:
            cell = dict(runs=[f"questions-s{seed}" for seed in SEEDS], system="bm25", **what)
            rows.append(parts.row(["BM25"], [cell for _ in places]))
        for name, row in ROWS.items():
            rows.append(parts.row([row.label], [self._at(run, name, place, what) for place in places]))
        return dict(title=title, header=["pre-training", *(f"{step:,}" for step in self._size.steps)], rows=rows)

    def _plot(self, title: str, run: Callable[..., str]) -> dict[str, Any]:
        what, lines = self._reqa("Success@10"), []
        for name, row in ROWS.items():
            cells = [[step, self._at(run, name, place, what)] for place, step in enumerate(self._size.steps)]
            lines.append(dict(label=row.label, points=cells))
        return dict(title=title, x="steps of pre-training", y="recall@10, %", lines=lines, log_x=True)

    def _claims(self) -> list[dict[str, Any]]:
        what, last = self._reqa("Success@10"), len(self._size.steps) - 1

        def zero(name: str, place: int = last, what: dict[str, str] = what) -> dict[str, Any]:
            return self._at(_zero_shot, name, place, what)

        def tuned(name: str, place: int = last) -> dict[str, Any]:
            return self._at(_tuned, name, place, what)

        article, within = self._reqa("Success@1", "article"), self._reqa("Success@1", "within-article")
        few = 0
        return [
            dict(text="fine-tuned: ICT+BFS+WLP beats MLM", better=tuned("all"), worse=tuned("mlm")),
            dict(text="fine-tuned: MLM beats no pre-training", better=tuned("mlm"), worse=tuned("none")),
            dict(text="fine-tuned: ICT beats MLM", better=tuned("ict"), worse=tuned("mlm")),
            dict(text="fine-tuned: ICT+BFS+WLP beats BoW-MLP", better=tuned("all"), worse=tuned("bow")),
            dict(text="ICT+BFS+WLP beats ICT", better=zero("all"), worse=zero("ict")),
            dict(text="at first BoW-MLP beats the Transformer", better=zero("bow", few), worse=zero("all", few)),
            dict(text="in the end the Transformer beats BoW-MLP", better=zero("all"), worse=zero("bow")),
            dict(
                text="the Transformer gains more by steps than BoW-MLP",
                better=zero("all") | {"over": zero("all", few)},
                worse=zero("bow") | {"over": zero("bow", few)},
            ),
            dict(text="small batches: without log Q beats with (ours)", better=zero("all-no-log-q"), worse=zero("all")),
            dict(text="larger batches beat more steps (ours)", better=zero("all-large"), worse=zero("all")),
            dict(
                text="ICT+BFS+WLP finds the article more often than ICT",
                better=zero("all", what=article),
                worse=zero("ict", what=article),
            ),
            dict(
                text="ICT finds the passage within it more often",
                better=zero("ict", what=within),
                worse=zero("all", what=within),
            ),
        ]


def _open(metric: str) -> dict[str, str]:
    return dict(metric=metric, dataset="qa", split="answers")

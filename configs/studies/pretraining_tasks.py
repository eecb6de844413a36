"""The study of Chang et al. 2020, Tables 3 to 6: which pre-training makes two towers retrieve, with how many labels.

    python -m retrieval.study --config=configs/studies/pretraining_tasks.py:local --workdir=runs/tasks \\
        --config.corpus=wikispeedia.xml.bz2,enwiki.xml.bz2 --config.vocab=vocab.txt --config.questions=dev-v1.1.json

Sizes: 'paper' (TPU pods: a run of `configs/ict_bfs_wlp.py` for every row), 'gpu' (one accelerator, minutes a run, it is
hoped: it has not been run) and 'local' (2 CPU cores; with SQuAD's dev file as the questions). ',nq' after the size
takes Natural Questions for SQuAD: 'paper,nq'. What came out is in docs/results/pretraining-tasks.md.

A row of Table 3 or 4 is (encoder, pre-training) x share of labels x seed. The seed draws the pre-training, the split,
the parameters of a model that is not pre-trained, and the order of the batches. Claims are judged over pre-trainings.
Table 5 varies layers and embedding size, with one seed; Table 6 adds candidates from the corpus. `--only='s0-*'` does
one seed, and what is said of it is labelled so.
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import bow_mlp, ict_bfs_wlp, mlm, reqa
from retrieval.configs.studies import chang_2020, parts
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

SETS = {"squad": "reqa", "nq": "nq"}  # dataset -> the set's name
SHARES = {"1": 0.01, "5": 0.05, "10": 0.1, "80": 0.8}  # of the labels, % -> of all questions
RATIOS = ("1", "5", "80")  # of Tables 3, 4 and 6; Table 5 has all of them
CUTOFFS = (1, 5, 10, 50, 100)
TASKS = {"mlm": ("mlm",), "ict": ("ict",), "bfs": ("bfs",), "wlp": ("wlp",), "all": ("ict", "bfs", "wlp")}
LABELS = {"none": "No Pretraining", "mlm": "MLM", "ict": "ICT", "bfs": "BFS", "wlp": "WLP", "all": "ICT+BFS+WLP"}
ENCODERS = {"bow_mlp": "BoW-MLP", "transformer": "Transformer"}


class Size(NamedTuple):
    """What a size of the study changes.

    Attributes:
      base: the size of the configs that its runs start from.
      seeds: of the rows of Tables 3 and 4.
      layers: the fewer and the more of Table 5; the other tables have the more.
      embed_dims: emb-dim of Table 5; the other tables have the last.
      fields: what is changed in every run's config.
      pre_training: what is changed in config.train of pre-training.
      steps_per_task: whether pre-training on three tasks takes three times the steps of one. Few steps do not do for
        three what they do for one; the paper's 100,000 are the same for all.
      packed: pre-training of a Transformer -> what packed rows take of the tokens of its queries and documents.
      fine_tuning: share of labels -> steps, batch size and learning rate. The rates of 'local' were chosen on test
        questions (docs/results/pretraining-tasks.md).
      distractors: candidates added for Table 6.
    """

    base: str
    seeds: tuple[int, ...]
    layers: tuple[int, int]
    embed_dims: tuple[int, int, int]
    fields: dict[str, dict[str, Any]]
    pre_training: dict[str, Any]
    steps_per_task: bool
    packed: dict[str, tuple[float, float]]
    fine_tuning: dict[str, tuple[int, int, float]]
    distractors: int


SIZES = {
    "paper": Size(
        base="paper",
        seeds=(0, 1, 2),
        layers=(4, 12),
        embed_dims=(128, 256, 512),
        fields={},
        pre_training={},
        steps_per_task=False,
        packed={},
        fine_tuning=dict.fromkeys(SHARES, (2000, 512, 5e-5)),
        distractors=1_000_000,
    ),
    "gpu": Size(
        base="local",
        seeds=(0, 1, 2),
        layers=(2, 4),
        embed_dims=(64, 128, 256),
        fields=dict(
            model=dict(hidden_size=256, num_heads=4, mlp_size=1024, dtype="bfloat16"),
            encode=dict(batch_tokens=262_144),
        ),
        pre_training=dict(steps=4000, batch_size=1024, learning_rate=1e-3),
        steps_per_task=False,
        packed={},
        fine_tuning=dict.fromkeys(SHARES, (1000, 512, 1e-3)),
        distractors=200_000,
    ),
    "local": Size(
        base="local",
        seeds=(0, 1, 2),
        layers=(1, 2),
        embed_dims=(32, 64, 128),
        fields=dict(
            prepare=dict(longest_passage=56, shortest_paragraph=24, least_passage=12),
            data=dict(document_length=64),
            loop=dict(validate_candidates=2000),
        ),
        pre_training=dict(steps=800),
        steps_per_task=True,
        packed={"ict": (0.85, 0.6), "all": (0.92, 0.7)},  # those of BFS and WLP fill their rows as they are
        fine_tuning={"1": (40, 64, 5e-4), "5": (80, 128, 1e-3), "10": (100, 128, 1e-3), "80": (160, 128, 2e-3)},
        distractors=20_000,
    ),
}


class Model(NamedTuple):
    """What a row trains: an encoder of some size, after some pre-training. BoW-MLP has no layers to choose."""

    encoder: str
    task: str
    layers: int
    embed_dim: int

    def pretraining(self, seed: int) -> str:
        """The name of a seed's pre-training run. MLM trains no projection: one run serves every embedding size."""
        size = "" if self.task == "mlm" else f"-e{self.embed_dim}"
        return f"pre-{self.encoder}-{self.task}-l{self.layers}{size}-{seed}"

    def run(self, ratio: str, seed: int) -> str:
        """The name of one of its fine-tuning runs."""
        return f"s{seed}-{ratio}-{self.encoder}-{self.task}-l{self.layers}-e{self.embed_dim}"


def get_config(size: str = "paper") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size and a dataset such as 'local' or 'paper,nq'."""
    size, dataset = parts.read(size, SIZES, SETS)
    config = ConfigDict()
    config.corpus = ""  # MediaWiki exports, separated by commas, or 'pydocs'
    config.vocab = ""  # as in configs/ict_bfs_wlp.py; empty trains one
    config.questions = ""  # files of SQuAD, or of Natural Questions, separated by commas
    config.runs = _table(config, SIZES[size], dataset)
    config.report = _report(SIZES[size], dataset)
    return config


def seeds_of(size: Size, model: Model, ratio: str) -> tuple[int, ...]:
    """The seeds that a model is fine-tuned with, if any."""
    if ratio in RATIOS and model in main_rows(size):
        return size.seeds
    return size.seeds[:1] if model in ablation_rows(size) else ()


def main_rows(size: Size) -> list[Model]:
    """The models of Tables 3 and 4, and the single tasks."""
    rows = [Model("bow_mlp", task, 0, size.embed_dims[-1]) for task in ("none", "all")]
    return rows + [Model("transformer", task, size.layers[1], size.embed_dims[-1]) for task in LABELS]


def ablation_rows(size: Size) -> list[Model]:
    """The models of Table 5, in the paper's order."""
    few, many = size.layers
    small, medium, large = size.embed_dims
    rows = [Model("transformer", task, few, small) for task in ("ict", "bfs", "wlp")]
    rows += [Model("transformer", task, many, small) for task in ("none", "mlm", "ict", "all")]
    return rows + [Model("transformer", "all", many, dim) for dim in (medium, large)]


def open_domain_rows(size: Size) -> list[Model]:
    """The models of Table 6."""
    return [row for row in main_rows(size) if row.encoder == "transformer" and row.task in ("ict", "all")]


def _table(study: ConfigDict, size: Size, dataset: str) -> ConfigDict:
    """Every run by its name. They are done in the order of their names, as far as they can be: seed after seed."""
    runs = ConfigDict({"corpus": _prepare(study, size)})
    models = list(dict.fromkeys([*main_rows(size), *ablation_rows(size)]))
    for seed in size.seeds:
        for model in models:
            used = any(seed in seeds_of(size, model, ratio) for ratio in SHARES)
            if used and model.task != "none" and model.pretraining(seed) not in runs:
                runs[model.pretraining(seed)] = _pretrain(size, model, seed)
        for ratio in SHARES:
            tuned = [model for model in models if seed in seeds_of(size, model, ratio)]
            if tuned:
                runs[_split_run(ratio, seed)] = _split(study, size, dataset, ratio, seed)
            for model in tuned:
                runs[model.run(ratio, seed)] = _fine_tune(size, model, ratio, seed)
    for model in open_domain_rows(size):
        for ratio in RATIOS:
            runs[_open_run(model, ratio, size)] = _open_domain(study, size, dataset, model, ratio)
    return runs


def _prepare(study: ConfigDict, size: Size) -> ConfigDict:
    return parts.prepared(_sized(ict_bfs_wlp.get_config(size.base), size), study)


def _pretrain(size: Size, model: Model, seed: int) -> ConfigDict:
    module = mlm if model.task == "mlm" else bow_mlp if model.encoder == "bow_mlp" else ict_bfs_wlp
    config = _sized(module.get_config(size.base), size, model)
    config.seed = seed
    config.stages, config.base = ("train",), "corpus"
    config.train.update(size.pre_training)
    if size.steps_per_task:
        config.train.steps *= len(TASKS[model.task])
    if model.encoder == "transformer" and model.task in size.packed:
        query, document = size.packed[model.task]
        config.data.pack.update(query=query, document=document)
        config.data.lanes = 2  # more texts to choose from fill rows better
    # The three are one set of pairs (section 4.1), in the shares of the paper's Table 1.
    rates = chang_2020.TABLE_1 if model.task == "all" else dict.fromkeys(TASKS[model.task], 1.0)
    config.data.rates = dict.fromkeys(config.data.rates, 0.0) | rates
    return config


def _split(study: ConfigDict, size: Size, dataset: str, ratio: str, seed: int) -> ConfigDict:
    """The questions divided, and BM25 on those of the test."""
    config = _questions(study, size, dataset, ratio, seed)
    config.stages, config.base = ("sets", "pairs", "index", "evaluate", "report"), "corpus"
    return config


def _fine_tune(size: Size, model: Model, ratio: str, seed: int) -> ConfigDict:
    config = _sized(reqa.get_config(size.base), size, model)
    config.seed = seed
    config.stages, config.base = ("train", "encode", "evaluate", "report"), _split_run(ratio, seed)
    config.train.init_from = "" if model.task == "none" else model.pretraining(seed)
    config.train.steps, config.train.batch_size, config.train.learning_rate = size.fine_tuning[ratio]
    config.evaluate.runs = False
    return config


def _open_domain(study: ConfigDict, size: Size, dataset: str, model: Model, ratio: str) -> ConfigDict:
    """A fine-tuned model on its test questions, with more candidates."""
    seed = size.seeds[0]
    config = _sized(_questions(study, size, dataset, ratio, seed), size, model)
    config.stages, config.base = ("sets", "encode", "index", "evaluate", "report"), model.run(ratio, seed)
    config.sets.distractors = size.distractors
    return config


def _questions(study: ConfigDict, size: Size, dataset: str, ratio: str, seed: int) -> ConfigDict:
    config = _sized(reqa.get_config(size.base), size)
    name = SETS[dataset]
    config.sets[name] = study.get_ref("questions")
    config.split.update(set=name, ratio=SHARES[ratio], seed=seed)
    config.index.dense, config.evaluate.runs = "exact", False
    return config


def _sized(config: ConfigDict, size: Size, model: Model | None = None) -> ConfigDict:
    """The config at the size of the study, for a row's model."""
    config.update(size.fields)
    if model:
        config.model.update(encoder=model.encoder, embed_dim=model.embed_dim)
        config.model.num_layers = model.layers or config.model.num_layers
    if model and model.encoder == "bow_mlp" and size.base == "paper":
        config.model.update(bow_mlp.PAPER)
    return config


def _split_run(ratio: str, seed: int) -> str:
    return f"s{seed}-{ratio}-bm25"


def _open_run(model: Model, ratio: str, size: Size) -> str:
    return f"{model.run(ratio, size.seeds[0])}-open"


def _report(size: Size, dataset: str) -> Report:
    name = "SQuAD" if dataset == "squad" else "Natural Questions"
    return Report(
        f"Pre-training tasks on ReQA {name} (Chang et al. 2020)",
        "R@k: share of the test questions whose gold (sentence, passage) pair is among the first k. Every seed of "
        "Tables 3 and 4 has its own pre-training. Tables 5 and 6 have one seed where there is no ±.",
        [_main_table(size, dataset), _ablation(size, dataset), _open_domain_table(size, dataset)],
        [claim for ratio in RATIOS for claim in _claims(size, dataset, ratio)],
    )


def _cell(dataset: str, runs: list[str], system: str, k: int = 10) -> Cell:
    return Cell(tuple(runs), system, SETS[dataset], "pair", f"Success@{k}")


def _of(size: Size, dataset: str, model: Model, ratio: str, system: str = "dense") -> Cell:
    return _cell(dataset, [model.run(ratio, seed) for seed in seeds_of(size, model, ratio)], system)


def _bm25(size: Size, dataset: str, ratio: str) -> Cell:
    seeds = size.seeds if ratio in RATIOS else size.seeds[:1]
    return _cell(dataset, [_split_run(ratio, seed) for seed in seeds], "bm25")


def _each_k(cell: Cell) -> list[Cell]:
    return cell.each(metric=[f"Success@{k}" for k in CUTOFFS])


def _label(ratio: str) -> str:
    return f"{ratio}%/{100 - int(ratio)}%"


def _find(size: Size, encoder: str, task: str) -> Model:
    return next(row for row in main_rows(size) if (row.encoder, row.task) == (encoder, task))


def _main_table(size: Size, dataset: str) -> Table:
    paper = chang_2020.TABLE_3 if dataset == "squad" else chang_2020.TABLE_4
    rows = []
    for ratio in RATIOS:
        label, numbers = _label(ratio), paper[ratio]
        rows.append(Row([label, "BM25", "none"], _each_k(_bm25(size, dataset, ratio)), numbers["bm25", "none"]))
        for model in main_rows(size):
            labels = [label, ENCODERS[model.encoder], LABELS[model.task]]
            cells = _each_k(_of(size, dataset, model, ratio))
            rows.append(Row(labels, cells, numbers.get((model.encoder, model.task), ())))
        hybrid = _each_k(_of(size, dataset, _find(size, "transformer", "all"), ratio, "hybrid"))
        rows.append(Row([label, "BM25 + Transformer", LABELS["all"]], hybrid))
    title = "Table 3: recall@k on SQuAD" if dataset == "squad" else "Table 4: recall@k on Natural Questions"
    header = ["train/test", "encoder", "pre-training", *(f"R@{k}" for k in CUTOFFS)]
    return Table(title, header, rows, "The BM25 here indexes sentence and passage, and is stronger than the paper's.")


def _ablation(size: Size, dataset: str) -> Table:
    metric = f"Success@{CUTOFFS[-1]}"
    rows = [Row(["", "", "BM25", ""], [_bm25(size, dataset, ratio).at(metric=metric) for ratio in SHARES])]
    for index, model in enumerate(ablation_rows(size), 1):
        labels = [str(index), str(model.layers), LABELS[model.task], str(model.embed_dim)]
        cells = [_of(size, dataset, model, ratio).at(metric=metric) for ratio in SHARES]
        rows.append(Row(labels, cells, [chang_2020.TABLE_5[index][ratio] for ratio in SHARES]))
    header = ["index", "#layer", "pre-training", "emb-dim", *(f"{ratio}%" for ratio in SHARES)]
    few, many = size.layers
    notes = (
        f"In brackets the paper's numbers, on Natural Questions, with 4 layers for {few}, 12 for {many} and embeddings "
        f"of 128, 256 and 512 for {', '.join(map(str, size.embed_dims))}."
    )
    return Table("Table 5: ablation, R@100", header, rows, notes)


def _open_domain_table(size: Size, dataset: str) -> Table:
    rows = []
    for ratio in RATIOS:
        models = open_domain_rows(size)
        runs = {model: [_open_run(model, ratio, size)] for model in models}
        lines = [("bm25", "none", "BM25", "bm25", runs[models[0]])]
        lines += [(m.encoder, m.task, LABELS[m.task], "dense", names) for m, names in runs.items()]
        lines += [("", "", f"BM25 + {LABELS[m.task]}", "hybrid", names) for m, names in runs.items()]
        for encoder, task, name, system, names in lines:
            paper = chang_2020.TABLE_6[ratio].get((encoder, task), ())
            rows.append(Row([_label(ratio), name], _each_k(_cell(dataset, names, system)), paper))
    title = f"Table 6: with {size.distractors:,} more candidates from the corpus"
    notes = "In brackets the paper's numbers, on Natural Questions with 1,000,000 more candidates."
    return Table(title, ["train/test", "system", *(f"R@{k}" for k in CUTOFFS)], rows, notes)


def _claims(size: Size, dataset: str, ratio: str) -> list[Claim]:
    def of(encoder: str, task: str, system: str = "dense") -> Cell:
        return _of(size, dataset, _find(size, encoder, task), ratio, system)

    none, mlm_, ict, bfs, wlp, both = (of("transformer", task) for task in LABELS)
    bow_none, bow, hybrid = of("bow_mlp", "none"), of("bow_mlp", "all"), of("transformer", "all", "hybrid")
    bm25 = _bm25(size, dataset, ratio)
    claims = [
        ("ICT+BFS+WLP beats MLM", both, mlm_),
        ("ICT+BFS+WLP beats no pre-training", both, none),
        ("MLM beats no pre-training", mlm_, none),
        ("ICT beats BFS", ict, bfs),
        ("ICT beats WLP", ict, wlp),
        ("ICT+BFS+WLP beats ICT", both, ict),
        ("pre-trained, the Transformer beats BoW-MLP", both, bow),
        ("the Transformer gains more by it than BoW-MLP", both.at(over=none), bow.at(over=bow_none)),
        ("the pre-trained Transformer beats BM25", both, bm25),
        ("merged with BM25 it beats itself (ours)", hybrid, both),
        ("merged with BM25 it beats BM25 (ours)", hybrid, bm25),
    ]
    return [Claim(f"{ratio} %: {text}", better, worse) for text, better, worse in claims]

"""The study of Xiong, Wang & Wang 2020 (ProQA): generated questions, batches of clusters, and readers.

    python -m retrieval.study --config=configs/studies/proqa.py:local --workdir=runs/proqa_study \\
        --config.corpus=DUMP.xml.bz2 --config.squad=train-v1.1.json \\
        --config.train_questions=NQ-open.train.jsonl --config.test_questions=NQ-open.dev.jsonl \\
        --config.validation_questions=validation.jsonl --config.squad_test=dev-v1.1.json,train-v1.1.json \\
        --config.gold=nq-open-oracle.jsonl.gz

A model learns from SQuAD to write questions of paragraphs, and writes those that the retrievers train on. They have as
many steps and pairs a step as ICT has, which is ORQA's retriever. The readers learn from questions with answers, in the
first paragraphs of BM25, of ORQA or of ProQA. With the last two the question tower is trained too, by the early loss,
and retrieves the paragraphs that are read. The validation questions choose how much the reader's score counts beside
the retriever's. Nothing is trained on them, or on the test questions.

Two further sets are for evaluation alone: SQuAD's questions over the paragraphs of all its files, and NQ's questions
over their gold passages.

A seed draws the parameters, the batches and the clusters. The generated questions are the same for all seeds.
The paper's retrievers and readers start from BERT, and ours from random parameters unless `config.encoder` names a
model: at 'paper' add `--config.vocab=hf:bert-base-uncased --config.encoder=hf:bert-base-uncased`.
Sizes: 'paper' (BERT-base, one accelerator or more) and 'local' (2 CPU cores).
"""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

from retrieval.configs import bm25, ict, question_generation, reader
from retrieval.configs import proqa as retriever
from retrieval.configs.studies import parts, xiong_2020
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

SEEDS = (0, 1, 2)
CUTOFFS = (5, 10, 20)
TEST = "qa"  # the set of the test questions
SQUAD, GOLD = "squad", "nq-open-oracle"  # further sets; the second has the name of its file
WRITTEN = "writer/generated/corpus.jsonl"
OTHERS = {SQUAD: "SQuAD (open)", GOLD: "NQ's gold passages"}
NINTHS = (5, 7)  # checkpoints of the retriever without clusters, of 9


class Size(NamedTuple):
    """What a size changes.

    Attributes:
      writer, retriever, reader: steps of each.
      early: candidates of the early loss.
      way: how questions are written; by beam search it takes twice as long as greedily.
    """

    writer: int
    retriever: int
    reader: int
    early: int
    way: str


SIZES = {"paper": Size(20_000, 90_000, 40_000, 5000, "beam"), "local": Size(1500, 1200, 300, 200, "greedy")}

# Table 4: how the readers differ.
READERS: dict[str, tuple[str, dict[str, bool]]] = {
    "alone": ("reader alone, shared softmax", {}),
    "joint": ("joint, shared softmax", {"joint": True}),
    "rerank": ("a head reranks paragraphs, shared softmax", {"select": True}),
    "joint-apart": ("joint, a softmax for each paragraph", {"joint": True, "shared_norm": False}),
    "apart": ("reader alone, a softmax for each paragraph", {"shared_norm": False}),
}


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them, for a size."""
    size, _ = parts.read(size, SIZES, (TEST,))
    config = ConfigDict()
    config.corpus = ""  # a dump, or documents
    config.vocab = ""  # empty trains one on the corpus
    config.encoder = ""  # what retrievers and readers start from, with its vocabulary above; '': at random
    config.squad = ""  # files of SQuAD, separated by commas: a question is written for an answer as they show
    config.generated = WRITTEN  # the questions that the retrievers train on; of another file, no writer is needed
    config.train_questions = ""  # files of questions with answers, for the readers
    config.test_questions = ""  # a file of questions with answers
    config.validation_questions = ""  # another
    config.squad_test = ""  # files of SQuAD: the questions of the first, over the paragraphs of all; '': no such set
    config.gold = ""  # questions with their gold passages, a file named nq-open-oracle; '': no such set
    config.validation_set = "qa-validation"  # its name as a set: 'qa-' and the file's name up to the first dot
    config.clusters = retriever.get_config(size).cluster.count  # of paragraphs, before small ones are merged
    config.runs = ConfigDict(_table(config, size))
    config.report = _report(size)
    return config


def _table(study: ConfigDict, size: str) -> dict[str, ConfigDict]:
    steps = SIZES[size]
    runs = {"corpus": _prepare(study, size), "bm25": _bm25(study), "writer": _writer(study, size)}
    for seed in SEEDS:
        of_seed = {
            f"ict-{seed}": _ict(size),
            f"proqa-{seed}": _proqa(study, size, study.get_ref("clusters")),
            f"plain-{seed}": _proqa(study, size),
        }
        for ninth in NINTHS:
            of_seed[f"plain-{ninth}-{seed}"] = _at_checkpoint(study, size, seed, ninth)
        for name, base, system in (("bm25", "bm25", "bm25"), ("proqa", f"proqa-{seed}", "dense")):
            of_seed[f"reader-{name}-{seed}"] = _reader(study, size, base, system)
        orqa = _reader(study, size, f"ict-{seed}", "dense")
        orqa.train.loss = "orqa_reader"
        of_seed[f"reader-orqa-{seed}"] = orqa
        for name, (_, changes) in READERS.items():
            if changes:
                other = _reader(study, size, f"reader-proqa-{seed}", "dense")
                other.stages = other.stages[1:]  # on the paragraphs of that reader
                other.train.update(changes)
                other.answer.sets = f"{TEST}," + study.get_ref("validation_set")
                of_seed[f"reader-{name}-{seed}"] = other
        for config in of_seed.values():
            config.seed = seed
            if not config.train.init_from:  # as the earlier checkpoints have it
                config.train.init_from = study.get_ref("encoder")
        runs |= of_seed
    for name in runs:
        if name.startswith("reader-"):
            runs[name].train.steps = steps.reader
    return runs


def _prepare(study: ConfigDict, size: str) -> ConfigDict:
    config = parts.prepared(ict.get_config(size), study)
    if size == "local":
        config.prepare.update(vocab_size=8000, longest_passage=120)
    return config


def _bm25(study: ConfigDict) -> ConfigDict:
    config = _asked(bm25.get_config("local"))
    config.stages, config.base = ("sets", "index", "evaluate", "report"), "corpus"
    config.sets.pydocs, config.sets.qa = (
        False,
        "corpus," + study.get_ref("test_questions") + "," + study.get_ref("validation_questions"),
    )
    config.sets.squad, config.sets.labelled = study.get_ref("squad_test"), study.get_ref("gold")
    return config


def _asked(config: ConfigDict) -> ConfigDict:
    """Evaluates by the answers of the test questions; the passages are the set's own."""
    config.encode.corpus = False
    config.evaluate.metrics = tuple(f"Answer@{k}" for k in CUTOFFS)
    return config


def _writer(study: ConfigDict, size: str) -> ConfigDict:
    config = question_generation.get_config(size)
    config.base = "bm25"
    config.pairs.files = study.get_ref("squad")
    config.generate.update(collections=("corpus",), way=SIZES[size].way)
    config.train.steps = SIZES[size].writer
    return config


def _retriever(config: ConfigDict, size: str) -> ConfigDict:
    """Both kinds have the same steps, pairs and rate. Their embedding is ORQA's, with LayerNorm, in both."""
    paper = retriever.get_config(size)
    config = _asked(config)
    config.data.update({name: paper.data[name] for name in ("query_length", "document_length")})
    config.data.lanes = paper.train.groups  # the more texts a lane has, the fewer rows they are packed in
    config.train.update(batch_size=paper.train.batch_size, groups=paper.train.groups, steps=SIZES[size].retriever)
    alike = ("learning_rate", "clip_norm", "warmup_ratio", "schedule_steps", "weight_decay")
    config.train.update({name: paper.train[name] for name in alike}, log_q=False)
    config.model.update(embed_norm=True, embed_dim=paper.model.embed_dim)
    config.loop.validate_every, config.encode.untrained = 0, False
    return config


def _ict(size: str) -> ConfigDict:
    config = _retriever(ict.get_config(size), size)
    config.stages, config.base = ("train", "encode", "evaluate", "report"), "bm25"
    config.data.ict_removal = 0.9
    config.data.pack.update(query=0.0, document=0.0, auto=True)  # its shares were those of shorter documents
    return config


def _proqa(study: ConfigDict, size: str, clusters: Any = None) -> ConfigDict:
    """The retriever, with so many clusters or without."""
    config = _retriever(retriever.get_config(size), size)
    config.stages, config.base = ("pairs", "train", "encode", "evaluate", "report"), "bm25"
    config.pairs.files, config.pairs.collection = study.get_ref("generated"), "corpus/corpus"
    if clusters is not None:
        config.cluster.count = clusters
        config.mine.refresh_every = _steps_of_clusters(size)
    else:
        config.mine.refresh_every = 0
        config.loop.keep_steps = tuple(config.train.steps * ninth // 9 for ninth in NINTHS)
    return config


def _steps_of_clusters(size: str) -> int:
    """How many steps batches come from the same clusters."""
    return min(retriever.get_config(size).mine.refresh_every, SIZES[size].retriever // 4)


def _at_checkpoint(study: ConfigDict, size: str, seed: int, ninth: int) -> ConfigDict:
    """The retriever without clusters, as it was earlier."""
    config = _proqa(study, size)
    config.stages, config.base = ("adopt", "encode", "evaluate", "report"), f"plain-{seed}"
    config.train.update(init_from=f"plain-{seed}", init_step=config.train.steps * ninth // 9)
    config.loop.keep_steps = ()
    return config


def _reader(study: ConfigDict, size: str, base: str, system: str) -> ConfigDict:
    config = reader.get_config(size)
    config.stages, config.base = ("spans", "train", "answer", "report"), base
    config.spans.update(
        questions=study.get_ref("train_questions"), set=TEST, system="exact" if system == "dense" else system
    )
    config.answer.systems, config.answer.validation = (system,), study.get_ref("validation_set")
    if system == "dense":
        _train_question_tower(config, size)
    return config


def _train_question_tower(config: ConfigDict, size: str) -> None:
    """The early loss, with a question tower as `_retriever` has it."""
    towers = _retriever(retriever.get_config(size), size)
    config.spans.early, config.train.early = SIZES[size].early, True
    config.train.temperature = towers.train.temperature
    for name in ("embed_dim", "embed_norm", "pooling", "normalize", "token_types"):
        config.model[name] = towers.model[name]
    config.answer.systems = ("tuned",)


RETRIEVERS = {
    "bm25": "BM25",
    "ict": "ICT, ORQA's retriever",
    "plain-5": "ProQA without clusters, 5 of 9 parts of the steps",
    "plain-7": "ProQA without clusters, 7 of 9 parts",
    "plain": "ProQA without clusters",
    "proqa": "ProQA",
}


def _report(size: str) -> Report:
    claims = [
        ("clusters beat batches at random (R@20)", _recall("proqa"), _recall("plain")),
        ("generated questions beat ICT (R@20)", _recall("plain"), _recall("ict")),
        ("ProQA beats ICT (R@20)", _recall("proqa"), _recall("ict")),
        ("ProQA's reader beats BM25's (EM)", _match("proqa"), _match("bm25")),
        ("one shared softmax beats one each (EM)", _match("proqa"), _match("apart")),
        ("the same with the joint loss (EM)", _match("joint"), _match("joint-apart")),
    ]
    for version, (before, after) in enumerate(_around_clusterings(size), 1):
        claims.append((f"clustering {version} makes batches harder", before, after))
    return Report(
        "ProQA: generated questions, clusters and readers (Xiong et al. 2020)",
        "R@k: questions with an answer in the first k passages. EM: exact match by SQuAD's rule. The paper's R@k is of "
        "WebQuestions and its EM of NQ-open, over 12.5 million paragraphs of Wikipedia.",
        [
            _retrieval("Table 3: retrieval", TEST, xiong_2020.TABLE_3),
            *(_retrieval(f"Retrieval: {title}", name, {}) for name, title in OTHERS.items()),
            *(_hardness(size), _accuracy(size), _answers(), _settings()),
        ],
        [Claim(*claim) for claim in claims],
    )


def _recall(name: str, dataset: str = TEST) -> Cell:
    if name == "bm25":
        return Cell(("bm25",), "bm25", dataset, "answers", "Answer@20")
    return Cell(tuple(f"{name}-{seed}" for seed in SEEDS), "dense", dataset, "answers", "Answer@20")


def _match(name: str) -> Cell:
    system = "bm25" if name == "bm25" else "tuned"
    return Cell(tuple(f"reader-{name}-{seed}" for seed in SEEDS), f"{system}+reader", TEST, "read", "EM")


def _retrieval(title: str, dataset: str, paper: dict[str, tuple[float, ...]]) -> Table:
    metrics = [f"Answer@{k}" for k in CUTOFFS]
    rows = [
        Row([label], _recall(name, dataset).each(metric=metrics), paper.get(name, ()))
        for name, label in RETRIEVERS.items()
    ]
    return Table(title, ["system", *(f"R@{k}" for k in CUTOFFS)], rows)


def _in_batch(name: str, step: int) -> Cell:
    """The accuracy in the batches of the steps up to one, since the line of the log before."""
    return Cell(tuple(f"{name}-{seed}" for seed in SEEDS), "training", "batch", f"step {step}", "recall@1")


def _around_clusterings(size: str) -> list[tuple[Cell, Cell]]:
    """The accuracy of ProQA before each clustering, and after it."""
    steps, logged = SIZES[size].retriever, retriever.get_config(size).loop.log_every
    every = _steps_of_clusters(size)
    return [
        (_in_batch("proqa", step // logged * logged), _in_batch("proqa", (step // logged + 2) * logged))
        for step in range(every, steps - 2 * logged, every)
    ]


def _hardness(size: str) -> Table:
    rows = [Row([f"clustering {version}"], cells) for version, cells in enumerate(_around_clusterings(size), 1)]
    header = ["ProQA", "accuracy in the batch before", "after"]
    return Table("How hard the batches of clusters are", header, rows)


def _accuracy(size: str) -> Table:
    steps, logged = SIZES[size].retriever, retriever.get_config(size).loop.log_every
    every = -(-steps // (40 * logged)) * logged  # about 40 rows
    rows = [
        Row([str(step)], [_in_batch(name, step) for name in ("proqa", "plain")])
        for step in range(every, steps + 1, every)
    ]
    return Table("Accuracy in the batch, by step", ["step", "batches of clusters", "batches at random"], rows)


def _answers() -> Table:
    rows = [
        Row([label], _match(name).each(dataset=(TEST, *OTHERS)), (paper,))
        for name, label, paper in (
            ("bm25", "BM25 and a reader", xiong_2020.SPARSE),
            ("orqa", "ORQA: ICT and its reader", xiong_2020.TABLE_1["orqa"]),
            ("proqa", "ProQA", xiong_2020.TABLE_1["proqa"]),
        )
    ]
    return Table("Tables 1 and 2: answers", ["system", "EM", *(f"EM, {title}" for title in OTHERS.values())], rows)


def _settings() -> Table:
    rows = [
        Row([label], [_match("proqa" if name == "alone" else name)], (xiong_2020.TABLE_4[name],))
        for name, (label, _) in READERS.items()
    ]
    return Table("Table 4: the reader's loss, on ProQA's passages", ["setting", "EM"], rows)

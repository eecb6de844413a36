"""What `repbert.py` compares RepBERT with: passages expanded by doc2query, words weighed by DeepCT, and a RepBERT that
learns from a reranker; and all of them, as they are, on a collection of another kind.

docTTTTTquery is missing: it is a published T5, which `generate.model` reads.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence

from ml_collections import ConfigDict

from retrieval.configs import deepct, doc2query, evaluate
from retrieval.configs import repbert as towers
from retrieval.configs.studies import zhan_2020
from retrieval.studies.claims import Cell, Claim, Row, Table

SEEDS = (0, 1, 2)
POOL, DL19, ELSEWHERE = "pool", "dl19", "nfcorpus"  # the names of the sets
METRICS = ("RR@10", "R@1000", "nDCG@10")
# TREC counts its passages as relevant from grade 2 on. nDCG takes all grades.
DL_METRICS = ("RR(rel=2)@10", "R(rel=2)@1000", "nDCG@10")
MEASURED = (*METRICS, *DL_METRICS[:2])
Change = Callable[[ConfigDict], ConfigDict]
WRITER = "writer"
WORDS = ("bm25", "doc2query", "deepct")
SYSTEMS = (*WORDS, "dense")


def writer(study: ConfigDict) -> ConfigDict:
    """doc2query's model on SQuAD, paragraph to question: the pool has too few questions to learn to write from."""
    config = doc2query.get_config("local")
    config.stages, config.base = ("sets", "pairs", "train"), "corpus"
    config.sets.squad, config.split.set = study.get_ref("squad"), "squad"
    config.split.update(ratio=0.99, validation=0.005)
    config.data.query_length = 24
    config.train.update(steps=2000, label_smoothing=0.1)
    config.loop.validate_every = 0
    return config


def of_seed(study: ConfigDict, seed: int, divided: Change, measured: Change) -> dict[str, ConfigDict]:
    """The runs of a seed, by name. They stand on `questions-…`, `ict-…`, `repbert-…` and `reranker-bm25-…`.

    Args:
      divided: gives a config the sets and the division of the pool's questions, and what `measured` gives.
      measured: gives a config BM25's settings and the metrics.
    """
    return {
        f"doc2query-{seed}": _expand(seed),
        f"deepct-{seed}": _weigh(seed),
        f"expanded-{seed}": _expanded(divided(towers.get_config("local")), seed),
        f"distilled-{seed}": _distilled(divided(towers.get_config("local")), seed),
        f"elsewhere-{seed}": _elsewhere(measured(evaluate.get_config("local")), study, seed),
    }


def _expand(seed: int) -> ConfigDict:
    """Goes on with the pool's questions, and writes five for each passage."""
    config = doc2query.get_config("local")
    config.stages, config.base = ("train", "generate"), f"questions-{seed}"
    config.data.query_length = 24
    config.train.update(init_from=WRITER, steps=300, learning_rate=3e-4)
    config.loop.validate_every = 0
    return config


def _weigh(seed: int) -> ConfigDict:
    config = deepct.get_config("local")
    config.stages, config.base = ("train", "weigh"), f"questions-{seed}"
    config.train.update(init_from=f"ict-{seed}", steps=600)
    return config


def _expanded(config: ConfigDict, seed: int) -> ConfigDict:
    """BM25 over passages, expanded passages and weighed words, beside RepBERT; and what two of them are fused to."""
    config.stages, config.base = ("index", "evaluate", "report"), f"repbert-{seed}"
    config.index.update(
        words=WORDS, expansions=f"doc2query-{seed}/generated", term_weights=f"deepct-{seed}/term_weights"
    )
    config.fuse.update(systems=SYSTEMS, pairs=True)
    return config


def _distilled(config: ConfigDict, seed: int) -> ConfigDict:
    """RepBERT that learns, of each positive and its negative, by how much a reranker prefers the one."""
    config.stages, config.base = ("teacher", "pairs", "train", "encode", "evaluate", "report"), f"questions-{seed}"
    config.teacher.model = f"reranker-bm25-{seed}"
    config.train.update(init_from=f"ict-{seed}", steps=600, learning_rate=1e-4, loss="margin_mse")
    config.loop.update(checkpoint_every=200, validate_every=200)
    return config


def _elsewhere(config: ConfigDict, study: ConfigDict, seed: int) -> ConfigDict:
    """RepBERT and BM25 on a collection that nothing was trained on."""
    config.base, config.sets.beir = f"repbert-{seed}", study.get_ref("elsewhere")
    config.index.bm25_also = ()
    config.fuse.update(systems=("bm25", "dense"), pairs=True)
    return config


def cell(name: str, system: str, metric: str = "RR@10", dataset: str = POOL) -> Cell:
    """A cell of a report: the test of all seeds of a run."""
    return Cell(tuple(f"{name}-{seed}" for seed in SEEDS), system, dataset, "test", metric)


def first_stages() -> list[Row]:
    """The rows of Table 1."""
    return [
        Row([label], cell(name, system).each(metric=METRICS), paper)
        for label, name, system, paper in (
            ("doc2query", "expanded", "doc2query", zhan_2020.TABLE_1["doc2query"]),
            ("DeepCT", "expanded", "deepct", zhan_2020.TABLE_1["DeepCT"]),
            ("RepBERT, distilled from a reranker", "distilled", "dense", ()),
        )
    ]


def tables(reranked: int) -> list[Table]:
    """Table 1's times, Tables 3 and 4 with all first stages, and another collection.

    Args:
      reranked: results that our reranker reads.
    """
    labels = dict(zip(SYSTEMS, ("BM25", "doc2query", "DeepCT", "RepBERT")))
    fused = [
        Row(
            [f"{labels[a]}, {labels[b]}"],
            cell("expanded", f"interleave({a}+{b})").each(metric=METRICS),
            zhan_2020.FUSED[labels[a], labels[b]],
        )
        for a, b in itertools.permutations(SYSTEMS, 2)
    ]
    systems = {"bm25": "BM25", "dense": "RepBERT", "interleave(bm25+dense)": "interleaved, BM25 first"}
    systems["weighted_sum(bm25+dense)"] = "weighted sum"
    other = [
        Row([label], cell("elsewhere", system, dataset=ELSEWHERE).each(metric=METRICS))
        for system, label in systems.items()
    ]
    times = [(label, "expanded", system) for system, label in labels.items()]
    times.append(("BM25 + BERT Large", "reranker-bm25", f"bm25+rerank@{reranked}"))
    latencies = [
        Row([label], [cell(name, system, "ms").at(split="latency")], [zhan_2020.LATENCY[label]])
        for label, name, system in times
    ]
    notes = (
        "In milliseconds a question, all questions searched together, and without the embedding of the questions. Ours "
        f"run on this machine's processors. The reranker is our own: it reads {reranked} results (the paper's 1,000), "
        "and BM25's time comes on top."
    )
    header = ["system", *METRICS]
    return [
        Table("Table 1: latency", ["system", "ms"], latencies, notes),
        Table("Tables 3 and 4: interleaved, the first named goes first", header, fused),
        Table(f"{ELSEWHERE}, which nothing was trained on", header, other),
    ]


def claims() -> list[Claim]:
    """That expansion beats BM25, and a teacher helps."""
    bm25, expanded, weighed = (cell("expanded", system) for system in WORDS)
    taught, alone = (cell(name, "dense") for name in ("distilled", "repbert"))
    return [
        Claim("doc2query beats BM25", expanded, bm25),
        Claim("DeepCT beats BM25", weighed, bm25),
        Claim("a reranker as the teacher makes RepBERT better (ours)", taught, alone),
    ]


def systems_table(title: str, name: str, systems: Mapping[str, str], dataset: str, more: Sequence[Row] = ()) -> Table:
    """What some systems of a run measure on the pool, or on DL 2019 by TREC's rule."""
    metrics = METRICS if dataset == POOL else DL_METRICS
    rows = [Row([label], cell(name, system, dataset=dataset).each(metric=metrics)) for system, label in systems.items()]
    return Table(f"{title}, {dataset}", ["system", *metrics], [*rows, *more])


def depths_table(title: str, rerankers: Mapping[str, str], depths: Sequence[int], start: str = "") -> Table:
    """RR@10 of rerankers, run -> whose negatives it saw, by depth; and of the lists of the run `start` as they were."""
    rows = []
    for system, paper in (("bm25", "BM25"), ("dense", "RepBERT")):
        for name, negatives in rerankers.items():
            cells = cell(name, "").each(system=[f"{system}+rerank@{depth}" for depth in depths])
            theirs = [*([None] if start else []), *zhan_2020.TABLE_2[paper][:3]] if negatives == "bm25" else []
            rows.append(Row([paper, negatives], [*([cell(start, system)] if start else []), *cells], theirs))
    columns = [*(["not reranked"] if start else []), *(f"first {depth}" for depth in depths)]
    return Table(title, ["list", "negatives of", *columns], rows)

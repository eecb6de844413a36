"""The study of Zhan et al. 2020 (RepBERT): a first stage, rerankers by depth, consistency factors and fusion.

    python -m retrieval.study --config=configs/studies/repbert.py:local --workdir=runs/repbert_study \\
        --config.corpus=POOL/corpus.jsonl --config.sets=POOL --config.pool=POOL_NAME \\
        --config.squad=train-v1.1.json --config.elsewhere=DATA/nfcorpus \\
        --config.dev_judgements=queries.tsv,qrels.tsv \\
        --config.dev_runs="('bm25=run.bm25.tsv', 'monobert=run.monobert.tsv', 'monot5=run.monot5.tsv')" \\
        --config.dl_judgements=topics.tsv,qrels.txt --config.dl_runs="('BM25=BM25.trec', 'TAS-B=TASB.trec', …)"

The runs `published-*` read other people's lists and train nothing: `--only='published-*'` takes a minute. The lists of
DL 2019 are named BM25, BM25+RM3, TAS-B, ADA2, RepLLaMA and SPLADE++. In the others a share of the questions of the BEIR
folder `config.pool` is trained on and the rest is the test; further folders of `config.sets` are tests as a whole.

A seed draws the pre-training, the division of the questions, and the order of the batches. The runs `*-published-*`
start from a published encoder in place of a pre-training: `--only='*-published-*'` needs none of the others.
"""

import functools
from typing import Any

from ml_collections import ConfigDict

from retrieval.configs import ict, monobert, run_files
from retrieval.configs import repbert as towers
from retrieval.configs.studies import argument, parts, repbert_baselines, repbert_published, repbert_squad, zhan_2020
from retrieval.configs.studies.repbert_baselines import MEASURED, METRICS, SEEDS, cell

RATIO = 1722 / 2222  # 500 of the pool's questions are the test
PUBLISHED_DL = ("RR(rel=2)@10", "R(rel=2)@100", "nDCG@10")  # of passages that TREC counts as relevant
DEV = ("bm25", "monobert", "monot5")
DL = ("BM25", "BM25+RM3", "TAS-B", "ADA2", "RepLLaMA", "SPLADE++")
DL_DEPTHS = (5, 10, 50, 100)  # the lists have 100 results
DEPTHS = (5, 10, 50, 100)  # of our own rerankers, which only get worse with depth
METHODS = ("interleave", "reciprocal_rank", "weighted_sum")


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them. 'local' is the only size."""
    argument.read(size, ("local",), ("pool",))
    config = ConfigDict()
    config.corpus = ""  # documents to pre-train on, separated by commas
    config.vocab = ""  # empty trains one on the corpus
    config.sets = ""  # BEIR folders, separated by commas
    config.pool = "pool"  # the one of them whose questions are divided
    config.squad = ""  # files of SQuAD, for the model that expands passages, and to train on before the pool
    config.encoder = repbert_published.ENCODER  # or its folder: a published encoder that further rows start from
    config.elsewhere = ""  # a BEIR folder that is a test alone, named nfcorpus
    config.dev_judgements, config.dl_judgements = "", ""  # queries and judgements of the published lists
    config.dev_runs, config.dl_runs = (), ()  # the lists: NAME=FILE
    config.parallel = 1  # runs at a time
    config.runs = ConfigDict(_published(config) | _trained(config))
    config.report = ConfigDict(_report())
    return config


def _published(study: ConfigDict) -> dict[str, ConfigDict]:
    """Lists of other people's systems: metrics, depths, consistency and fusion."""
    dev, dl = (_of_lists(study, name) for name in ("dev", "dl"))
    dev.fuse.systems, dev.fuse.pairs = DEV, True
    dev.rerank.update(model="monobert", systems=("bm25",), depths=zhan_2020.DEPTHS, trained_on=("bm25",))
    dl.evaluate.update(depth=100, metrics=PUBLISHED_DL)
    dl.fuse.systems, dl.fuse.pairs = ("BM25", "TAS-B"), True
    dl.rerank.update(model="SPLADE++", systems=DL, depths=DL_DEPTHS, trained_on=("BM25",), measures=("nDCG@10",))
    dl.rerank.trained_depth = DL_DEPTHS[-1]
    return {"published-dev": dev, "published-dl": dl}


def _of_lists(study: ConfigDict, name: str) -> ConfigDict:
    config = run_files.get_config("local")
    config.stages = ("sets", "evaluate", "rerank", "report")
    config.sets.judgements = study.get_ref(f"{name}_judgements")
    config.runs.files = study.get_ref(f"{name}_runs")
    return config


def _trained(study: ConfigDict) -> dict[str, ConfigDict]:
    runs = {
        "corpus": _prepare(study),
        repbert_baselines.WRITER: repbert_baselines.writer(study),
        repbert_squad.SQUAD: repbert_squad.labels(study),
    }
    for seed in SEEDS:
        divided = functools.partial(_divided, study=study, seed=seed)
        of_seed = {
            f"questions-{seed}": _questions(study, seed),
            f"ict-{seed}": _pretrain(),
            f"repbert-{seed}": _repbert(seed),
            f"reranker-bm25-{seed}": _reranker(seed),
            f"reranker-dense-{seed}": _reranker_of_dense(study, seed),
            **repbert_baselines.of_seed(study, seed, divided, _measured),
            **repbert_squad.of_seed(seed, functools.partial(_reranker, seed), divided, _measured),
            **repbert_published.of_seed(study, seed, divided),
        }
        for config in of_seed.values():
            config.seed = seed
        runs |= of_seed
    return runs


def _prepare(study: ConfigDict) -> ConfigDict:
    config = parts.prepared(ict.get_config("local"), study)
    config.prepare.update(vocab_size=8000, least_passage=8, shortest_paragraph=16)
    return config


def _pretrain() -> ConfigDict:
    """ICT by cosines, of the towers that RepBERT has."""
    config = ict.get_config("local")
    config.stages, config.base = ("train",), "corpus"
    config.model.update(embed_dim=0, pooling="mean", tied=True, token_types="sides")
    config.train.update(steps=1500, batch_size=128, learning_rate=1e-3)
    return config


def _questions(study: ConfigDict, seed: int) -> ConfigDict:
    """The questions divided, BM25 on those of the test, and its negatives for the others."""
    config = _divided(towers.get_config("local"), study, seed)
    config.stages, config.base = ("sets", "index", "mine", "pairs", "evaluate", "report"), "corpus"
    return config


def _divided(config: ConfigDict, study: ConfigDict, seed: int) -> ConfigDict:
    config.sets.beir, config.split.set = study.get_ref("sets"), study.get_ref("pool")
    config.sets.unknown = "drop"  # a pool lacks passages that are judged elsewhere
    config.split.update(ratio=RATIO, seed=seed)
    return _measured(config)


def _measured(config: ConfigDict) -> ConfigDict:
    """BM25's settings, and what is measured."""
    config.index.update(bm25_k1=0.82, bm25_b=0.68, bm25_also=(0.9, 0.4), bm25_stemmer="english", dense="exact")
    config.evaluate.update(depth=1000, metrics=MEASURED)
    return config


def _repbert(seed: int) -> ConfigDict:
    config = towers.get_config("local")
    config.stages, config.base = ("train", "encode", "evaluate", "report"), f"questions-{seed}"
    config.train.update(init_from=f"ict-{seed}", steps=600, learning_rate=1e-4)
    config.loop.update(checkpoint_every=200, validate_every=200)
    config.evaluate.update(depth=1000, metrics=MEASURED)
    config.fuse.update(systems=("bm25", "dense"), pairs=True)
    return config


def _reranker(seed: int) -> ConfigDict:
    """Learns from BM25's negatives, and reranks BM25's list and RepBERT's."""
    config = monobert.get_config("local")
    config.stages, config.base = ("train", "rerank", "report"), f"repbert-{seed}"
    config.data.update(query_length=22, document_length=96)
    config.train.init_from = f"ict-{seed}"
    config.evaluate.metrics = MEASURED
    config.rerank.update(systems=("bm25", "dense"), depths=DEPTHS, trained_depth=1000)
    return config


def _reranker_of_dense(study: ConfigDict, seed: int) -> ConfigDict:
    """The same with RepBERT's negatives, which the paper proposes (section 4.4)."""
    config = _divided(_reranker(seed), study, seed)
    config.stages = ("mine", "pairs", "train", "rerank", "report")
    config.mine.system = "exact"
    config.rerank.trained_on = ("dense",)
    return config


def _list(name: str, system: str, metric: str) -> dict[str, Any]:
    return dict(runs=[f"published-{name}"], system=system, metric=metric, dataset="judgements", split="test")


def _report() -> dict[str, Any]:
    return {
        "title": "RepBERT (Zhan et al. 2020): first stages, rerankers, consistency, fusion",
        "preamble": [
            "Published lists are of 105 dev queries of MS MARCO and of TREC DL 2019. The paper has 6,980 dev queries, "
            "so its numbers in brackets stand beside other questions.",
            "RepBERT above BM25 is not to be expected here: its encoder saw no large pre-training.",
        ],
        "tables": [
            *(_first_stages(), _depths(), _published_depths(), _consistency(), _own_consistency()),
            *(*_fusions(), *repbert_baselines.tables(DEPTHS[-1]), *repbert_squad.tables(DEPTHS)),
            *repbert_published.tables(),
        ],
        "plots": [*_plots_of_recall(), _plot_of_depths(), _plot_of_consistency()],
        "claims": _claims(),
    }


def _first_stages() -> dict[str, Any]:
    rows = [
        parts.row([label], [cell(name, system, metric) for metric in METRICS], zhan_2020.TABLE_1[paper])
        for label, name, system, paper in (
            ("BM25, k1 0.82, b 0.68", "questions", "bm25", "BM25"),
            ("BM25, k1 0.9, b 0.4", "questions", "bm25 (0.9, 0.4)", "BM25"),
            ("RepBERT", "repbert", "dense", "RepBERT"),
        )
    ]
    rows += repbert_baselines.first_stages()
    reranked = [cell("reranker-bm25", f"bm25+rerank@{DEPTHS[-1]}", metric) for metric in METRICS]
    rows.append(parts.row([f"BM25 + reranker, first {DEPTHS[-1]}"], reranked, zhan_2020.TABLE_1["BM25 + BERT Large"]))
    cited = "; ".join(
        f"{name} has {dev} RR@10 on dev, {test} on test, and {recall} R@1000"
        for name, (dev, test, recall) in zhan_2020.CITED.items()
    )
    notes = f"The paper reranks BM25's first 1,000 with BERT Large. It also cites what is not built here: {cited}."
    return dict(title="Table 1: first stages", header=["system", *METRICS], rows=rows, notes=notes)


def _depths() -> dict[str, Any]:
    rows = []
    for system, paper in (("bm25", "BM25"), ("dense", "RepBERT")):
        for name in ("reranker-bm25", "reranker-dense"):
            cells = [cell(name, f"{system}+rerank@{depth}", "RR@10") for depth in DEPTHS]
            numbers = zhan_2020.TABLE_2[paper][:3] if name == "reranker-bm25" else ()
            rows.append(parts.row([paper, name.partition("-")[2]], cells, numbers))
    header = ["list", "negatives of", *(f"first {depth}" for depth in DEPTHS)]
    return dict(title="Table 2: RR@10 of our rerankers by depth", header=header, rows=rows)


def _published_depths() -> dict[str, Any]:
    cells = [_list("dev", f"bm25+rerank@{depth}", "RR@10") for depth in zhan_2020.DEPTHS]
    header = ["list", *(f"first {depth}" for depth in zhan_2020.DEPTHS)]
    rows = [parts.row(["BM25, by monoBERT"], cells, zhan_2020.TABLE_2["BM25"])]
    return dict(title="Table 2: RR@10 of published lists by depth", header=header, rows=rows)


def _factor(system: str, depth: int) -> dict[str, Any]:
    return _list("dl", system, f"consistency with BM25@{depth}")


def _consistency() -> dict[str, Any]:
    rows = [parts.row([name], [_factor(name, depth) for depth in DL_DEPTHS]) for name in DL]
    header = ["system", *(f"first {depth}" for depth in DL_DEPTHS)]
    notes = "The share of a list that is in BM25's first 100 (equation 5). The paper gives no numbers, only a plot."
    return dict(title="Figure 2: consistency factors on DL 2019", header=header, rows=rows, notes=notes)


def _own_factor(system: str, depth: int) -> dict[str, Any]:
    return cell("reranker-bm25", system, f"consistency with bm25@{depth}")


def _own_consistency() -> dict[str, Any]:
    rows = [
        parts.row([label], [_own_factor(system, depth) for depth in DEPTHS])
        for system, label in (("bm25", "BM25"), ("dense", "RepBERT"))
    ]
    header = ["system", *(f"first {depth}" for depth in DEPTHS)]
    notes = (
        "The share of a list that is in BM25's first 1,000 (equation 5). BM25's own is below 100 where it finds fewer."
    )
    return dict(title="Figure 2: consistency factors of our own systems", header=header, rows=rows, notes=notes)


def _fusions() -> list[dict[str, Any]]:
    ours = [
        parts.row([label], [cell("repbert", system, metric) for metric in METRICS], paper)
        for label, system, paper in (
            ("BM25", "bm25", zhan_2020.FUSED["BM25", ""]),
            ("RepBERT", "dense", zhan_2020.FUSED["RepBERT", ""]),
            ("BM25, RepBERT interleaved", "interleave(bm25+dense)", zhan_2020.FUSED["BM25", "RepBERT"]),
            ("RepBERT, BM25 interleaved", "interleave(dense+bm25)", zhan_2020.FUSED["RepBERT", "BM25"]),
            ("reciprocal rank", "reciprocal_rank(bm25+dense)", ()),
            ("weighted sum", "weighted_sum(bm25+dense)", ()),
        )
    ]
    dev = [parts.row([name], [_list("dev", name, metric) for metric in METRICS]) for name in _fused(DEV)]
    names = _fused(("BM25", "TAS-B"))
    dl = [parts.row([name], [_list("dl", name, metric) for metric in PUBLISHED_DL]) for name in names]
    return [
        dict(title="Tables 3 and 4: fusion", header=["system", *METRICS], rows=ours),
        dict(title="Fusion of published lists, dev", header=["system", *METRICS], rows=dev),
        dict(title="Fusion of published lists, DL 2019", header=["system", *PUBLISHED_DL], rows=dl),
    ]


def _fused(systems: tuple[str, ...]) -> list[str]:
    """The systems, and what every two of them are fused to. Only interleaving depends on which is first."""
    pairs = [(a, b) for a in systems for b in systems if a != b]
    once = [pair for pair in pairs if systems.index(pair[0]) < systems.index(pair[1])]
    return [
        *systems,
        *(f"{method}({a}+{b})" for method in METHODS for a, b in (pairs if method == "interleave" else once)),
    ]


def _plots_of_recall() -> list[dict[str, Any]]:
    """Recall of n results: no other results are in the list of which the first n were reranked."""
    own, dl = "reranker-bm25", PUBLISHED_DL[1]
    published = [[depth, _list("dev", f"bm25+rerank@{depth}", "R@1000")] for depth in zhan_2020.DEPTHS]
    lines = [dict(label="BM25 (published, dev)", points=published)]
    for system, label in (("bm25", "BM25"), ("dense", "RepBERT")):
        points = [[depth, cell(own, f"{system}+rerank@{depth}", "R@1000")] for depth in DEPTHS]
        lines.append(dict(label=label, points=points))
    lists = [
        dict(label=name, points=[[depth, _list("dl", f"{name}+rerank@{depth}", dl)] for depth in DL_DEPTHS])
        for name in DL
    ]
    return [
        dict(title="Figure 1 (a): recall by depth", x="depth", y="recall, %", lines=lines, log_x=True),
        dict(title="Figure 1 (a), DL 2019", x="depth", y="recall of grade 2, %", lines=lists, log_x=True),
    ]


def _plot_of_depths() -> dict[str, Any]:
    points = [[depth, _list("dev", f"bm25+rerank@{depth}", "RR@10")] for depth in zhan_2020.DEPTHS]
    lines = [dict(label="BM25, by monoBERT (published)", points=points)]
    for system in ("bm25", "dense"):
        for name in ("reranker-bm25", "reranker-dense"):
            points = [[depth, cell(name, f"{system}+rerank@{depth}", "RR@10")] for depth in DEPTHS]
            lines.append(dict(label=f"{system}, negatives of {name.partition('-')[2]}", points=points))
    return dict(title="Figure 1 (b): RR@10 by depth", x="depth", y="RR@10, %", lines=lines, log_x=True)


def _plot_of_consistency() -> dict[str, Any]:
    lines = [dict(label=name, points=[[depth, _factor(name, depth)] for depth in DL_DEPTHS]) for name in DL]
    return dict(title="Figure 2: consistency by depth", x="depth", y="consistency, %", lines=lines, log_x=True)


def _claims() -> list[dict[str, Any]]:
    bm25, dense = (cell("repbert", system, "RR@10") for system in ("bm25", "dense"))
    shallow, deep, own_shallow, own_deep = (
        cell(name, f"dense+rerank@{depth}", "RR@10")
        for name in ("reranker-bm25", "reranker-dense")
        for depth in (DEPTHS[0], DEPTHS[-1])
    )
    fused = cell("repbert", "interleave(dense+bm25)", "RR@10")
    dev, dl = functools.partial(_list, "dev", metric="RR@10"), functools.partial(_list, "dl", metric="nDCG@10")
    both = "interleave(TAS-B+BM25)"
    found, found_by_one = (_list("dl", system, PUBLISHED_DL[1]) for system in (both, "TAS-B"))
    return [
        dict(text="published: monoBERT beats BM25", better=dev("monobert"), worse=dev("bm25")),
        dict(text="published: 1,000 reranked beat 50", better=dev("bm25+rerank@1000"), worse=dev("bm25+rerank@50")),
        dict(
            text="published: reranking gains more from 5 to 50 than from 50 to 1,000",
            better=dev("bm25+rerank@50") | {"over": dev("bm25+rerank@5")},
            worse=dev("bm25+rerank@1000") | {"over": dev("bm25+rerank@50")},
        ),
        dict(
            text="published: the dense TAS-B has a lower consistency than SPLADE++",
            better=_factor("SPLADE++", DL_DEPTHS[-1]),
            worse=_factor("TAS-B", DL_DEPTHS[-1]),
        ),
        dict(
            text="published: the weighted sum of monoBERT and monoT5 beats monoBERT",
            better=dev("weighted_sum(monobert+monot5)"),
            worse=dev("monobert"),
        ),
        dict(text="published: TAS-B and BM25 interleaved beat BM25 (nDCG@10)", better=dl(both), worse=dl("BM25")),
        dict(text="published: TAS-B and BM25 interleaved beat TAS-B (nDCG@10)", better=dl(both), worse=dl("TAS-B")),
        dict(text="published: TAS-B and BM25 interleaved beat TAS-B (R(rel=2)@100)", better=found, worse=found_by_one),
        dict(text="RepBERT beats BM25", better=dense, worse=bm25),
        dict(text="fused, RepBERT and BM25 beat RepBERT", better=fused, worse=dense),
        dict(text="fused, RepBERT and BM25 beat BM25", better=fused, worse=bm25),
        dict(
            text="the dense model has the lowest consistency, of BM25 and RepBERT",
            better=_own_factor("bm25", DEPTHS[-1]),
            worse=_own_factor("dense", DEPTHS[-1]),
        ),
        dict(
            text=f"the gain of reranking RepBERT's list shrinks after the first {DEPTHS[0]}",
            better=shallow | {"over": dense},
            worse=deep | {"over": shallow},
        ),
        dict(
            text="the reranker that saw RepBERT's negatives loses less at depth (ours)",
            better=own_deep | {"over": own_shallow},
            worse=deep | {"over": shallow},
        ),
        *repbert_baselines.claims(),
        *repbert_squad.claims(DEPTHS),
        *repbert_published.claims(),
    ]

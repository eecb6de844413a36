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

from ml_collections import ConfigDict

from retrieval.configs import ict, monobert, run_files
from retrieval.configs import repbert as towers
from retrieval.configs.studies import parts, repbert_baselines, repbert_published, repbert_squad, zhan_2020
from retrieval.configs.studies.repbert_baselines import MEASURED, METRICS, SEEDS, cell, depths_table
from retrieval.studies.claims import Cell, Claim, Report, Row, Table

RATIO = 1722 / 2222  # 500 of the pool's questions are the test
PUBLISHED_DL = ("RR(rel=2)@10", "R(rel=2)@100", "nDCG@10")  # of passages that TREC counts as relevant
DEV = ("bm25", "monobert", "monot5")
DL = ("BM25", "BM25+RM3", "TAS-B", "ADA2", "RepLLaMA", "SPLADE++")
DL_DEPTHS = (5, 10, 50, 100)  # the lists have 100 results
DEPTHS = (5, 10, 50, 100)  # of our own rerankers, which only get worse with depth
OWN = {"bm25": "BM25", "dense": "RepBERT"}
RERANKERS = {"reranker-bm25": "bm25", "reranker-dense": "dense"}  # run -> negatives of
METHODS = ("interleave", "reciprocal_rank", "weighted_sum")


def get_config(size: str = "local") -> ConfigDict:
    """The table of runs, and what is reported of them. 'local' is the only size."""
    parts.read(size, ("local",), ("pool",))
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
    config.runs = ConfigDict(_published(config) | _trained(config))
    config.report = _report()
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


def _dev(system: str, metric: str = "RR@10") -> Cell:
    return Cell(("published-dev",), system, "judgements", "test", metric)


def _dl(system: str, metric: str = "nDCG@10") -> Cell:
    return Cell(("published-dl",), system, "judgements", "test", metric)


def _report() -> Report:
    return Report(
        "RepBERT (Zhan et al. 2020): first stages, rerankers, consistency, fusion",
        "Published lists are of 105 dev queries of MS MARCO and of TREC DL 2019. The paper has 6,980 dev queries, so "
        "its numbers in brackets stand beside other questions. RepBERT above BM25 is not to be expected here: its "
        "encoder saw no large pre-training.",
        [
            *(_first_stages(), depths_table("Table 2: RR@10 of our rerankers by depth", RERANKERS, DEPTHS)),
            *(_published_depths(), *_consistency(), *_recall_by_depth(), *_fusions()),
            *(*repbert_baselines.tables(DEPTHS[-1]), *repbert_squad.tables(DEPTHS), *repbert_published.tables()),
        ],
        [
            *(*_claims_of_lists(), *_claims(), *repbert_baselines.claims()),
            *(*repbert_squad.claims(DEPTHS), *repbert_published.claims()),
        ],
    )


def _first_stages() -> Table:
    rows = [
        Row([label], cell(name, system).each(metric=METRICS), zhan_2020.TABLE_1[paper])
        for label, name, system, paper in (
            ("BM25, k1 0.82, b 0.68", "questions", "bm25", "BM25"),
            ("BM25, k1 0.9, b 0.4", "questions", "bm25 (0.9, 0.4)", "BM25"),
            ("RepBERT", "repbert", "dense", "RepBERT"),
        )
    ]
    rows += repbert_baselines.first_stages()
    reranked = cell("reranker-bm25", f"bm25+rerank@{DEPTHS[-1]}").each(metric=METRICS)
    rows.append(Row([f"BM25 + reranker, first {DEPTHS[-1]}"], reranked, zhan_2020.TABLE_1["BM25 + BERT Large"]))
    cited = "; ".join(
        f"{name} has {dev} RR@10 on dev, {test} on test, and {recall} R@1000"
        for name, (dev, test, recall) in zhan_2020.CITED.items()
    )
    notes = f"The paper reranks BM25's first 1,000 with BERT Large. It also cites what is not built here: {cited}."
    return Table("Table 1: first stages", ["system", *METRICS], rows, notes)


def _by_depth(title: str, rows: list[Row], depths: tuple[int, ...], notes: str = "") -> Table:
    return Table(title, ["list", *(f"first {depth}" for depth in depths)], rows, notes)


def _reranked(cell: Cell, depths: tuple[int, ...]) -> list[Cell]:
    return cell.each(system=[f"{cell.system}+rerank@{depth}" for depth in depths])


def _published_depths() -> Table:
    row = Row(["BM25, by monoBERT"], _reranked(_dev("bm25"), zhan_2020.DEPTHS), zhan_2020.TABLE_2["BM25"])
    return _by_depth("Table 2: RR@10 of published lists by depth", [row], zhan_2020.DEPTHS)


def _factors(cell: Cell, reference: str, depths: tuple[int, ...]) -> list[Cell]:
    return cell.each(metric=[f"consistency with {reference}@{depth}" for depth in depths])


def _own_factors(system: str) -> list[Cell]:
    return _factors(cell("reranker-bm25", system), "bm25", DEPTHS)


def _consistency() -> list[Table]:
    rows = [Row([name], _factors(_dl(name), "BM25", DL_DEPTHS)) for name in DL]
    notes = "The share of a list that is in BM25's first 100 (equation 5). The paper gives no numbers, only a plot."
    own = [Row([label], _own_factors(system)) for system, label in OWN.items()]
    more = "The share of a list that is in BM25's first 1,000. BM25's own is below 100 where it finds fewer."
    return [
        _by_depth("Figure 2: consistency factors on DL 2019", rows, DL_DEPTHS, notes),
        _by_depth("Figure 2: consistency factors of our own systems", own, DEPTHS, more),
    ]


def _recall_by_depth() -> list[Table]:
    """Recall of n results: no other results are in the list of which the first n were reranked."""
    title = "Figure 1 (a): recall by depth"
    published = Row(["BM25 (published, dev)"], _reranked(_dev("bm25", "R@1000"), zhan_2020.DEPTHS))
    own = [Row([label], _reranked(cell("reranker-bm25", system, "R@1000"), DEPTHS)) for system, label in OWN.items()]
    lists = [Row([name], _reranked(_dl(name, PUBLISHED_DL[1]), DL_DEPTHS)) for name in DL]
    return [
        _by_depth(f"{title}, published", [published], zhan_2020.DEPTHS),
        _by_depth(title, own, DEPTHS),
        _by_depth(f"{title}, DL 2019, grade 2", lists, DL_DEPTHS),
    ]


def _fusions() -> list[Table]:
    ours = [
        Row([label], cell("repbert", system).each(metric=METRICS), paper)
        for label, system, paper in (
            ("BM25", "bm25", zhan_2020.FUSED["BM25", ""]),
            ("RepBERT", "dense", zhan_2020.FUSED["RepBERT", ""]),
            ("BM25, RepBERT interleaved", "interleave(bm25+dense)", zhan_2020.FUSED["BM25", "RepBERT"]),
            ("RepBERT, BM25 interleaved", "interleave(dense+bm25)", zhan_2020.FUSED["RepBERT", "BM25"]),
            ("reciprocal rank", "reciprocal_rank(bm25+dense)", ()),
            ("weighted sum", "weighted_sum(bm25+dense)", ()),
        )
    ]
    dev = [Row([name], _dev(name).each(metric=METRICS)) for name in _fused(DEV)]
    dl = [Row([name], _dl(name).each(metric=PUBLISHED_DL)) for name in _fused(("BM25", "TAS-B"))]
    return [
        Table("Tables 3 and 4: fusion", ["system", *METRICS], ours),
        Table("Fusion of published lists, dev", ["system", *METRICS], dev),
        Table("Fusion of published lists, DL 2019", ["system", *PUBLISHED_DL], dl),
    ]


def _fused(systems: tuple[str, ...]) -> list[str]:
    """The systems, and what every two of them are fused to. Only interleaving depends on which is first."""
    pairs = [(a, b) for a in systems for b in systems if a != b]
    once = [pair for pair in pairs if systems.index(pair[0]) < systems.index(pair[1])]
    return [
        *systems,
        *(f"{method}({a}+{b})" for method in METHODS for a, b in (pairs if method == "interleave" else once)),
    ]


def _claims_of_lists() -> list[Claim]:
    at_5, at_50, at_1000 = (_dev(f"bm25+rerank@{depth}") for depth in (5, 50, 1000))
    sparse, dense = (_factors(_dl(name), "BM25", DL_DEPTHS)[-1] for name in ("SPLADE++", "TAS-B"))
    both = _dl("interleave(TAS-B+BM25)")
    found, found_by_one = (_dl(system, PUBLISHED_DL[1]) for system in (both.system, "TAS-B"))
    claims = [
        ("monoBERT beats BM25", _dev("monobert"), _dev("bm25")),
        ("1,000 reranked beat 50", at_1000, at_50),
        ("reranking gains more from 5 to 50 than from 50 to 1,000", at_50.at(over=at_5), at_1000.at(over=at_50)),
        ("the dense TAS-B has a lower consistency than SPLADE++", sparse, dense),
        ("the weighted sum of monoBERT and monoT5 beats monoBERT", _dev("weighted_sum(monobert+monot5)"), _dev(DEV[1])),
        ("TAS-B and BM25 interleaved beat BM25 (nDCG@10)", both, _dl("BM25")),
        ("TAS-B and BM25 interleaved beat TAS-B (nDCG@10)", both, _dl("TAS-B")),
        ("TAS-B and BM25 interleaved beat TAS-B (R(rel=2)@100)", found, found_by_one),
    ]
    return [Claim(f"published: {text}", better, worse) for text, better, worse in claims]


def _claims() -> list[Claim]:
    bm25, dense, fused = (cell("repbert", system) for system in ("bm25", "dense", "interleave(dense+bm25)"))
    shallow, deep, own_shallow, own_deep = (
        cell(name, f"dense+rerank@{depth}") for name in RERANKERS for depth in (DEPTHS[0], DEPTHS[-1])
    )
    lost, own_lost = deep.at(over=shallow), own_deep.at(over=own_shallow)
    of_bm25, of_dense = (_own_factors(system)[-1] for system in OWN)
    shrinks = f"the gain of reranking RepBERT's list shrinks after the first {DEPTHS[0]}"
    return [
        Claim("RepBERT beats BM25", dense, bm25),
        Claim("fused, RepBERT and BM25 beat RepBERT", fused, dense),
        Claim("fused, RepBERT and BM25 beat BM25", fused, bm25),
        Claim("the dense model has the lowest consistency, of BM25 and RepBERT", of_bm25, of_dense),
        Claim(shrinks, shallow.at(over=dense), lost),
        Claim("the reranker that saw RepBERT's negatives loses less at depth (ours)", own_lost, lost),
    ]

"""More labels for `repbert.py`: RepBERT and rerankers that learn from SQuAD's questions before those of the pool.

The pool has 1,722 questions to train on, SQuAD 87,599. A model learns from SQuAD with BM25's negatives. It goes on with
the pool's questions from there.
"""

from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from retrieval.configs import monobert
from retrieval.configs import repbert as towers
from retrieval.configs.studies.repbert_baselines import (
    DL19,
    DL_METRICS,
    METRICS,
    POOL,
    cell,
    depths_table,
    systems_table,
)
from retrieval.studies.claims import Claim, Row, Table

SQUAD = "squad"
REPBERT, TAUGHT = "repbert-squad", "taught-squad"
RERANKERS = {"reranker-squad-bm25": "bm25", "reranker-squad-dense": "dense"}
Change = Callable[[ConfigDict], ConfigDict]


def labels(study: ConfigDict) -> ConfigDict:
    """SQuAD's questions, the paragraphs that answer them, and BM25's negatives."""
    config = towers.get_config("local")
    config.stages, config.base = ("sets", "index", "mine", "pairs"), "corpus"
    config.sets.squad, config.split.set = study.get_ref("squad"), "squad"
    config.split.update(ratio=0.99, validation=0.005)
    config.index.update(bm25_k1=0.82, bm25_b=0.68, bm25_stemmer="english")
    config.mine.last = 100
    return config


def of_seed(seed: int, reranker: Callable[[], ConfigDict], divided: Change, measured: Change) -> dict[str, ConfigDict]:
    """The runs of a seed, by name. They stand on `questions-…` and `ict-…`.

    Args:
      reranker: makes the config of a reranker of the pool.
      divided: gives a config the sets and the division of the pool's questions.
      measured: gives a config BM25's settings and the metrics.
    """
    bm25, dense = (_on_the_pool(reranker(), seed) for _ in RERANKERS)
    dense = divided(dense)
    dense.stages = ("mine", "pairs", "train", "rerank", "report")
    dense.mine.system, dense.rerank.trained_on = "exact", ("dense",)
    return {
        f"towers-squad-{seed}": _towers(seed),
        f"{REPBERT}-{seed}": _repbert(seed, measured),
        f"cross-squad-{seed}": _cross_encoder(seed),
        **dict(zip((f"{name}-{seed}" for name in RERANKERS), (bm25, dense))),
        f"{TAUGHT}-{seed}": _taught(divided(_repbert(seed, measured)), seed),
    }


def _towers(seed: int) -> ConfigDict:
    config = towers.get_config("local")
    config.stages, config.base = ("train",), SQUAD
    config.train.update(init_from=f"ict-{seed}", steps=2000, learning_rate=3e-4)
    return config


def _repbert(seed: int, measured: Change) -> ConfigDict:
    config = measured(towers.get_config("local"))
    config.stages, config.base = ("train", "encode", "evaluate", "report"), f"questions-{seed}"
    config.train.update(init_from=f"towers-squad-{seed}", steps=600, learning_rate=1e-4)
    config.loop.update(checkpoint_every=200, validate_every=200)
    config.fuse.update(systems=("bm25", "dense"), pairs=True)
    return config


def _cross_encoder(seed: int) -> ConfigDict:
    """A reranker of SQuAD's paragraphs."""
    config = monobert.get_config("local")
    config.stages, config.base = ("train",), SQUAD
    config.data.update(query_length=22, document_length=96)
    config.train.update(init_from=f"ict-{seed}", steps=1500)
    config.loop.update(checkpoint_every=500, validate_every=500)
    return config


def _on_the_pool(config: ConfigDict, seed: int) -> ConfigDict:
    config.base = f"{REPBERT}-{seed}"
    config.train.init_from = f"cross-squad-{seed}"
    return config


def _taught(config: ConfigDict, seed: int) -> ConfigDict:
    """RepBERT again, from the same start; the reranker of BM25's negatives tells by how much a positive is better."""
    config.stages = ("teacher", "pairs", "train", "encode", "evaluate", "report")
    config.teacher.model = f"reranker-squad-bm25-{seed}"
    config.train.loss = "margin_mse"
    return config


def tables(depths: Sequence[int]) -> list[Table]:
    """First stages and fused lists on both sets, and the rerankers by depth."""
    title, systems = "SQuAD before the pool", {"bm25": "BM25", "dense": "RepBERT"}
    systems |= {"interleave(bm25+dense)": "interleaved, BM25 first"}
    systems |= {"interleave(dense+bm25)": "interleaved, RepBERT first", "weighted_sum(bm25+dense)": "weighted sum"}
    first = []
    for dataset, metrics in ((POOL, METRICS), (DL19, DL_METRICS)):
        taught = cell(TAUGHT, "dense", dataset=dataset).each(metric=metrics)
        more = [Row(["RepBERT, taught by the reranker"], taught)]
        first.append(systems_table(title, REPBERT, systems, dataset, more))
    return [*first, depths_table(f"{title}: RR@10 of rerankers by depth", RERANKERS, depths)]


def claims(depths: Sequence[int]) -> list[Claim]:
    """That SQuAD helps, that reranking does, and that the negatives of the list do."""
    more, fewer, taught = (cell(name, "dense") for name in (REPBERT, "repbert", TAUGHT))
    first, last = (f"dense+rerank@{depth}" for depth in (depths[0], depths[-1]))
    lost_by_bm25, lost_by_dense = (cell(name, last).at(over=cell(name, first)) for name in RERANKERS)
    reranked = cell("reranker-squad-dense", first)
    return [
        Claim("SQuAD before the pool makes RepBERT better (ours)", more, fewer),
        Claim(f"reranking RepBERT's first {depths[0]} makes the list better", reranked, more),
        Claim("with SQuAD, the reranker of RepBERT's negatives loses less", lost_by_dense, lost_by_bm25),
        Claim("with SQuAD, a reranker as the teacher makes RepBERT better (ours)", taught, more),
    ]

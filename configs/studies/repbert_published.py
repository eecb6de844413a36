"""A published encoder for `repbert.py`: RepBERT and rerankers that start from it, where the other rows have ICT.

The paper starts from BERT. Two layers that saw one collection show few of its claims, so these rows start from an
encoder that saw a thousand times as much: all-MiniLM-L6-v2, of six layers. Its authors trained it on pairs of many
kinds, among them MS MARCO's training questions. The pool's questions are of its dev set.

All seeds have the same encoder, which is one pre-training.
"""

from collections.abc import Callable

from ml_collections import ConfigDict

from retrieval.configs import monobert
from retrieval.configs import repbert as towers
from retrieval.configs.studies.repbert_baselines import DL19, POOL, cell, depths_table, systems_table
from retrieval.studies.claims import Claim, Table

ENCODER = "hf:sentence-transformers/all-MiniLM-L6-v2"
SIZES = dict(num_layers=6, hidden_size=384, num_heads=12, mlp_size=1536)
DEPTHS = (5, 10, 50)
REPBERT = "repbert-published"
RERANKERS = {"reranker-published-bm25": "bm25", "reranker-published-dense": "dense"}
SYSTEMS = {
    "bm25": "BM25",
    "dense": "RepBERT",
    "interleave(bm25+dense)": "interleaved, BM25 first",
    "interleave(dense+bm25)": "interleaved, RepBERT first",
    "reciprocal_rank(bm25+dense)": "reciprocal rank",
    "weighted_sum(bm25+dense)": "weighted sum, equal weights",
}


def of_seed(study: ConfigDict, seed: int, divided: Callable[[ConfigDict], ConfigDict]) -> dict[str, ConfigDict]:
    """The runs of a seed, by name. They need none of the other runs.

    Args:
      divided: gives a config the sets and the division of the pool's questions, and what is measured.
    """
    bm25, dense = (_reranker(study, seed, divided) for _ in RERANKERS)
    dense.stages = ("mine", "pairs", "train", "rerank", "report")
    dense.mine.system, dense.rerank.trained_on = "exact", ("dense",)
    return {f"{REPBERT}-{seed}": _repbert(study, divided)} | {
        f"{name}-{seed}": config for name, config in zip(RERANKERS, (bm25, dense))
    }


def _repbert(study: ConfigDict, divided: Callable[[ConfigDict], ConfigDict]) -> ConfigDict:
    config = _started(divided(towers.get_config("local")), study)
    config.stages = ("sets", "index", "mine", "pairs", "train", "encode", "evaluate", "report")
    config.data.document_length = 96
    config.train.steps = 150
    config.loop.update(checkpoint_every=50, validate_every=50)
    config.fuse.update(systems=("bm25", "dense"), pairs=True)
    return config


def _reranker(study: ConfigDict, seed: int, divided: Callable[[ConfigDict], ConfigDict]) -> ConfigDict:
    config = _started(divided(monobert.get_config("local")), study)
    config.stages, config.base = ("train", "rerank", "report"), f"{REPBERT}-{seed}"
    config.data.update(query_length=22, document_length=96)
    config.train.update(steps=250, batch_size=8)
    config.loop.update(checkpoint_every=50, validate_every=100)
    config.rerank.update(systems=("bm25", "dense"), depths=DEPTHS, trained_depth=1000)
    return config


def _started(config: ConfigDict, study: ConfigDict) -> ConfigDict:
    config.vocab = config.train.init_from = study.get_ref("encoder")
    config.model.update(SIZES)
    config.train.learning_rate = 5e-5
    return config


def tables() -> list[Table]:
    """First stages and fused lists on both sets, and the rerankers by depth."""
    first = [systems_table("From a published encoder", REPBERT, SYSTEMS, dataset) for dataset in (POOL, DL19)]
    return [*first, depths_table("From a published encoder: RR@10 of rerankers by depth", RERANKERS, DEPTHS, REPBERT)]


def claims() -> list[Claim]:
    """What the paper says of RepBERT, of its lists merged with BM25's, and of rerankers at depth."""
    bm25, dense, fused = (cell(REPBERT, system) for system in ("bm25", "dense", "weighted_sum(bm25+dense)"))
    shallow, deep = ([cell(name, f"dense+rerank@{depth}") for name in RERANKERS] for depth in (DEPTHS[0], DEPTHS[-1]))
    on_bm25, deeper = (cell("reranker-published-bm25", f"bm25+rerank@{n}") for n in (DEPTHS[0], DEPTHS[-1]))
    of_bm25, of_dense = (later.at(over=first) for first, later in zip(shallow, deep))
    gain, later_gain = on_bm25.at(over=bm25), deeper.at(over=on_bm25)
    claims = [
        ("RepBERT beats BM25", dense, bm25),
        ("the weighted sum beats RepBERT", fused, dense),
        ("the weighted sum beats BM25", fused, bm25),
        ("reranking makes RepBERT's list better", shallow[1], dense),
        (f"the gain of reranking BM25's list shrinks after the first {DEPTHS[0]}", gain, later_gain),
        ("the reranker of RepBERT's negatives loses less", of_dense, of_bm25),
    ]
    return [Claim(f"from a published encoder, {text}", better, worse) for text, better, worse in claims]

"""Fine-tuning on the questions of an evaluation set with hard negatives that BM25 finds among its candidates, as DPR
(Karpukhin et al. 2020, section 3.2).

    python -m retrieval.main --config=configs/dpr_mined.py --workdir=runs/dpr --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.split.set=msmarco --config.split.ratio=0.98 \\
        --config.split.validation=0.01 \\
        --config.sets.msmarco=collection.tsv,queries.train.tsv,qrels.train.tsv

Documents are --config.sets.msmarco=msmarco-docs.tsv,msmarco-doctrain-queries.tsv,msmarco-doctrain-qrels.tsv.

ANCE warms up on such negatives, too, with sizes of its own: `ance.py:warm_up`.

BM25 is indexed before anything is trained, so dense search is
exact here. DPR takes no passage that holds an answer: `--config.mine.answers=True` does so for sets with answers
(`reqa`, `nq`, `labelled` of DPR's JSON, BEIR folders with an answers.jsonl). MS MARCO has none; there `mine.margin`
keeps away from what scores as high as the gold passage.
"""

from ml_collections import ConfigDict

from retrieval.configs import dpr


def get_config(size: str = "paper") -> ConfigDict:
    """DPR's fine-tuning with one hard negative out of BM25's best 100, or 'local', for `ict_bfs_wlp.py:local`."""
    config = dpr.get_config(size)
    config.stages = ("sets", "index", "mine", "pairs", "train", "encode", "evaluate", "report")
    config.split.set = "reqa"
    config.mine.last = 100
    return config

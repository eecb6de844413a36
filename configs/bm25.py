"""BM25 on the same evaluation sets: the baseline of every table. Nothing is trained.

python -m retrieval.main --config=configs/bm25.py --workdir=runs/bm25 --config.sets.beir=scifact,nfcorpus
python -m retrieval.main --config=configs/bm25.py:local --workdir=runs/bm25_pydocs
"""

from ml_collections import ConfigDict

from retrieval.configs import ict_bfs_wlp


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` without its dense half; 'local' prepares pydocs, whose evaluation set is held out of the corpus."""
    config = ict_bfs_wlp.get_config(size)
    stages = ("sets", "index", "evaluate", "report")
    config.prepare.shard_size = 1.0 if size == "paper" else 0.0  # a thousand files for three documents take minutes
    config.stages = stages if size == "paper" else ("prepare", *stages)
    return config

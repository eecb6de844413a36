"""Runs of any systems, as files: their metrics, and lists that are fused from theirs. Nothing is searched or trained.

    python -m retrieval.main --config=configs/run_files.py --workdir=runs/fused \\
        --config.sets.judgements=queries.tsv,qrels.tsv --config.runs.files="('bm25=bm25.trec', 'bert=bert.tsv')" \\
        --config.fuse.systems="('bm25', 'bert')"

Any other set will do. With 'index' in config.stages BM25 of this project stands beside them.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop


def get_config(size: str = "paper") -> ConfigDict:
    """Lists of up to 1,000 results by the metrics of MS MARCO; the run files may name candidates without a text."""
    config = sized(size, paper=defaults, local=laptop.defaults)
    config.stages = ("sets", "evaluate", "report")
    config.encode.corpus = False
    config.runs.unknown = "allow"
    config.evaluate.update(depth=1000, metrics=("RR@10", "R@1000", "nDCG@10"))
    return config

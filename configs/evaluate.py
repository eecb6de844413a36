"""A trained model, and BM25, on new evaluation sets: nothing is trained, and nothing but these sets is encoded.

    python -m retrieval.main --config=configs/evaluate.py --workdir=runs/scifact --config.base=runs/reqa \\
        --config.sets.beir=DATA/scifact

`base` has the towers and their vocabulary. Its own sets and its corpus are not touched; sets of any format will do.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop


def get_config(size: str = "paper") -> ConfigDict:
    """The stages from `sets` on; the towers, their sizes and lengths are those of the base, whatever its size."""
    config = sized(size, paper=defaults, local=laptop.defaults)
    config.stages = ("sets", "encode", "index", "evaluate", "report")
    config.encode.update(untrained=False, corpus=False)
    return config

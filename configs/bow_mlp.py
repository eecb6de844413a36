"""BoW-MLP, the shallow encoder of Chang et al. 2020, section 4.2, on ICT + BFS + WLP.

python -m retrieval.main --config=configs/bow_mlp.py:local --workdir=runs/bow_mlp
"""

from ml_collections import ConfigDict

from configs import ict_bfs_wlp


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` with another encoder."""
    config = ict_bfs_wlp.get_config(size)
    config.model.encoder = "bow_mlp"
    return config

"""BoW-MLP, the shallow encoder of Chang et al. 2020, section 4.2, on ICT + BFS + WLP.

python -m retrieval.main --config=configs/bow_mlp.py:local --workdir=runs/bow_mlp
"""

from ml_collections import ConfigDict

from retrieval.configs import ict_bfs_wlp

PAPER = dict(hidden_size=4096, mlp_size=640, embed_dim=512)  # the paper gives the count of parameters alone


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` with another encoder, and for the paper the sizes that make as many parameters (128 million)."""
    config = ict_bfs_wlp.get_config(size)
    config.model.encoder = "bow_mlp"
    if size == "paper":
        config.model.update(PAPER)
    return config

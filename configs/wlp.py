"""WLP alone: one row of the ablation in Table 5 of Chang et al. 2020; everything else as in ict_bfs_wlp.py.

python -m retrieval.main --config=configs/wlp.py:local --workdir=runs/wlp
"""

from ml_collections import ConfigDict

from retrieval.configs import ict_bfs_wlp


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` with WLP as the only task."""
    return ict_bfs_wlp.pretraining(size, wlp=1.0)

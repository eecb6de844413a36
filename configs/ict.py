"""ICT alone: one row of the ablation in Table 5 of Chang et al. 2020; everything else as in ict_bfs_wlp.py.

python -m retrieval.main --config=configs/ict.py:local --workdir=runs/ict
"""

from ml_collections import ConfigDict

from retrieval.configs import ict_bfs_wlp


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` with ICT as the only task."""
    return ict_bfs_wlp.pretraining(size, ict=1.0)

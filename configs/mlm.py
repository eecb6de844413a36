"""Masked language model, the baseline of Chang et al. 2020: one encoder, which then initialises both towers.

    python -m retrieval.main --config=configs/mlm.py:local --workdir=runs/mlm

The run is evaluated with towers made of its encoder and an untrained projection. To train towers that start from it:

    python -m retrieval.main --config=configs/ict.py:local --workdir=runs/ict_from_mlm --config.train.init_from=runs/mlm
"""

from ml_collections import ConfigDict

from retrieval.configs import ict_bfs_wlp


def get_config(size: str = "paper") -> ConfigDict:
    """`ict_bfs_wlp` with MLM as the only task; the texts are as long as the documents."""
    config = ict_bfs_wlp.pretraining(size, mlm=1.0)
    config.recipe = "mlm"
    config.loop.validate_every = 0
    return config

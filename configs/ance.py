"""ANCE (Xiong et al. 2021): negatives that the model itself ranks high, mined anew while it trains.

    python -m retrieval.main --config=configs/ance.py --workdir=runs/ance --config.base=runs/warm_up \\
        --config.train.init_from=runs/warm_up

`runs/warm_up` is a run of `dpr_mined.py` with the model's sizes below; its negatives of BM25 serve up to the first
refresh. The authors' run on MS MARCO's passages: RoBERTa-base, batch 64, LAMB (here Adam), the best step was 600,000;
on documents the first 512 tokens (FirstP) with learning rate 5e-6. On Natural Questions it refreshes every 1,000 steps,
from the best 100. The authors leave one positive of a question out of its negatives, here all known ones are.
"""

from ml_collections import ConfigDict

from configs import dpr_mined


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's run on MS MARCO's passages, or 'local', for a warm-up of `dpr_mined.py:local`."""
    config = dpr_mined.get_config(size)
    config.stages = ("train", "encode", "index", "evaluate", "report")
    config.mine.update(negatives=20, last=200, refresh_every=10_000, refresh_share=0.2)
    config.data.update(negatives=1, document_length=512)
    config.model.update(tied=True, embed_dim=768)
    config.train.update(loss="two_way_nll", steps=600_000, batch_size=64, learning_rate=1e-6, clip_norm=1.0)
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    if size == "local":
        config.mine.update(refresh_every=100, refresh_share=1.0)
        config.data.update(document_length=96)
        config.model.update(embed_dim=128)
        config.train.update(loss="in_batch_softmax", steps=300, batch_size=32, learning_rate=2e-4)
        config.loop.update(checkpoint_every=50, validate_every=50)
    return config

"""Fine-tuning on ReQA (Chang et al. 2020, section 4): pre-trained towers learn from the (question, sentence + passage)
pairs of a share of SQuAD's questions, and are evaluated on the other questions, over all candidates.

    python -m retrieval.main --config=configs/reqa.py --workdir=runs/reqa --config.split.ratio=0.01 \\
        --config.base=runs/ict_bfs_wlp --config.train.init_from=runs/ict_bfs_wlp \\
        --config.sets.reqa=train-v1.1.json,dev-v1.1.json

`base` lends the vocabulary (and the corpus, for sets.distractors), `init_from` the parameters; without `init_from` the
towers start untrained, the paper's "No Pretraining". Its R@1 with ratios 0.01 / 0.05 / 0.8: 37.4 / 45.9 / 58.4.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's fine-tuning (2,000 steps of batch 512), or 'local', for a model of `ict_bfs_wlp.py:local`."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.split.set = "reqa"
    return config


def _paper() -> ConfigDict:
    """Section 4.1: Adam with 5e-5, 2000 steps, batch 512; sizes and lengths are those of the pre-training."""
    config = defaults()
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, embed_dim=512, dropout=0.1)
    config.data.update(query_length=64, document_length=288, negatives=0)
    config.train.update(loss="in_batch_softmax", log_q=True, temperature=1.0)
    config.train.update(steps=2000, batch_size=512, learning_rate=5e-5, warmup_ratio=0.1)
    config.loop.update(log_every=50, checkpoint_every=200, validate_every=200)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.train.update(steps=300, batch_size=128, learning_rate=5e-4)
    config.loop.update(checkpoint_every=40, validate_every=40)
    return config

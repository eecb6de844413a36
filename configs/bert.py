"""BERT's own pre-training (Devlin et al. 2019): masked tokens and next-sentence prediction. Its encoder starts towers.

    python -m retrieval.main --config=configs/bert.py:local --workdir=runs/bert

A passage is cut between two sentences. Half of the time a random text of another article takes the place of the rest.
The log has the loss and the accuracy of both tasks. To train towers that start from it:

    python -m retrieval.main --config=configs/ict.py:local --workdir=runs/ict_from_bert \\
        --config.train.init_from=runs/bert
"""

from ml_collections import ConfigDict

from retrieval.configs import mlm


def get_config(size: str = "paper") -> ConfigDict:
    """`mlm` with pairs of texts, which are as long as the documents."""
    config = mlm.get_config(size)
    config.recipe = "bert"
    config.data.rates.update(mlm=0.0, next_sentence=1.0)
    config.prepare.update(longest_passage=256, shortest_paragraph=96)  # of one sentence alone there is no pair
    return config

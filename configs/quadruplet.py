"""QuadrupletBERT (Liu et al. 2021): a question, its sentence, a simple and a hard negative, in two phases of one run.

    python -m retrieval.main --config=configs/quadruplet.py --workdir=runs/quadruplet --config.base=runs/bert \\
        --config.train.init_from=runs/bert --config.sets.reqa=train-v1.1.json,dev-v1.1.json

`runs/bert` is of configs/bert.py, on the text of the questions' set: masked tokens and next-sentence prediction.

The first phase has simple negatives alone, sentences by chance that hold no answer: its loss is the triplet loss. When
recall@10 on validation has not risen for three validations, the second phase begins with the best parameters and a new
optimizer. Its hard negatives are drawn from the 100 sentences that the model itself ranks first. `mine.refresh_every`
makes them anew; by default they are made once. The margin, 0.1 on SQuAD and 0.2 on Natural Questions, is the paper's
best. Everything else about training is our choice, for the paper does not tell.

At the size of a laptop, with an own vocabulary (2 CPU cores, half an hour):

    python -m retrieval.main --config=configs/quadruplet.py:local --workdir=runs/quadruplet \\
        --config.base=runs/quickstart --config.sets.reqa=dev-v1.1.json
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples

# Steps between refreshes, more than any run has. It doesn't follow the steps of a run: a finished one may get more.
_ONCE = 1_000_000_000


def get_config(size: str = "paper") -> ConfigDict:
    """BERT-base as the paper has it, or 'local'."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.stages = ("sets", "mine", "pairs", "train", "encode", "index", "evaluate", "report")
    config.sets.reqa_sentences = True
    config.split.set = "reqa"
    config.data.update(query_length=64, document_length=64, negatives=2)
    config.data.pack.auto = False  # what is mined anew is never packed, and other losses are to see the same rows
    config.data.rates.update(pairs=0.0, quadruplets=1.0)
    config.model.update(embed_dim=0, pooling="mean", tied=True, normalize=True)
    config.mine.update(system="random", answers=True, negatives=100, last=100)
    config.mine.update(refresh_makes="quadruplets", refresh_every=_ONCE, patience=3)
    config.train.update(loss="quadruplet", margin=0.1, temperature=1.0, weight_decay=0.01)
    config.loop.best = "Success@10"
    config.evaluate.update(metrics=("R@1", "R@10", "R@50", "R@100"))
    return config


def _paper() -> ConfigDict:
    config = defaults()
    # Section 4: four towers of BERT-base that share their parameters, means of 768 dimensions, texts of 64 tokens.
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1)
    config.mine.turn_rate = 1e-5
    config.train.update(steps=11_000, batch_size=128, learning_rate=2e-5)  # 20 epochs of 80 % of SQuAD's questions
    config.loop.update(log_every=50, checkpoint_every=275, validate_every=275)
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.mine.turn_rate = 3e-4
    config.train.update(steps=3000, batch_size=64, learning_rate=3e-4)
    config.loop.update(checkpoint_every=100, validate_every=100)
    return config

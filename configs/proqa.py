"""ProQA's retriever (Xiong et al. 2020): towers that are pre-trained on generated questions, in batches by clusters.

Every 20,000 updates the paragraphs are encoded and clustered by k-means, and a batch comes from one cluster: paragraphs
that are alike are harder to tell apart. 640 pairs are 8 groups of 80 that do not see each other, as the paper
accumulates them. Questions of one paragraph are never each other's negatives.

    python -m retrieval.main --config=configs/proqa.py --workdir=runs/proqa --config.base=runs/wikipedia \\
        --config.train.init_from=bert-base-uncased \\
        --config.pairs.files=runs/questions/generated/corpus.jsonl --config.pairs.collection=runs/wikipedia/corpus \\
        --config.sets.qa=corpus,WebQuestions-test.jsonl

`question_generation.py` writes the questions. The reader that follows is `reader.py`. Without clusters:
`--config.mine.refresh_every=0`. The paper: 90,000 updates, 7 days on 4 GPUs. Its R@5 / 10 / 20 on WebQuestions is
52.0 / 61.0 / 68.8, and without clusters 42.9 / 52.6 / 60.8.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's retriever, or 'local': towers for a laptop, a cluster for about 250 pairs."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.pairs.format = "generated"
    config.mine.refresh_makes = "clusters"
    config.train.log_q = False
    config.encode.corpus = True
    config.loop.best = "Success@1"
    config.evaluate.metrics = ("Answer@5", "Answer@10", "Answer@20")
    return config


def _paper() -> ConfigDict:
    config = defaults()
    # Section 3.1: two BERT-base encoders, a linear layer of 768 x 128 on each [CLS].
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1)
    config.model.update(pooling="cls", embed_dim=128, tied=False)
    config.data.update(query_length=30, document_length=482)
    # Section 4.1: batches of 80, 8 of them accumulated, 90K updates, Adam with 1e-5; clusters anew every 20k updates.
    config.train.update(steps=90_000, batch_size=640, groups=8, learning_rate=1e-5, clip_norm=5.0)
    # No warm-up, and as good as no decay: the learning rate is constant.
    config.train.update(warmup_ratio=0.0, schedule_steps=100_000_000, weight_decay=0.0, adam_epsilon=1e-8)
    config.mine.refresh_every = 20_000
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    config.plan.passages = 12_494_770  # of the paper's corpus, for --stage=plan
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.data.update(query_length=30, document_length=160)
    config.train.update(steps=2000, batch_size=80, groups=2, learning_rate=1e-3)
    config.mine.refresh_every = 500
    config.cluster.update(count=300, iterations=25)
    config.loop.update(checkpoint_every=500, validate_every=500)
    return config

"""RepBERT (Zhan et al. 2020, arXiv 2006.15498): one encoder for queries and passages, the mean of its outputs, and a
margin between every known positive of a query and all other passages of the batch.

    python -m retrieval.main --config=configs/repbert.py --workdir=runs/repbert \\
        --config.train.init_from=bert-base-uncased --config.vocab=bert-base-uncased --config.pairs.format=id_triples \\
        --config.pairs.files=qidpidtriples.train.full.tsv --config.pairs.queries=queries.train.tsv \\
        --config.pairs.collection=collection.tsv --config.sets.msmarco=collection.tsv,queries.tsv,qrels.tsv

The paper reaches MRR@10 0.304 and recall@1000 0.943 on MS MARCO's 6,980 dev queries, on one GPU. A triple is an example
with one hard negative, so a batch of 13 has 26 columns. In the authors' code a triple has two rows, with the same query
and the same positives: a mean over 26 rows is that over 13 (but each row draws its own dropout).
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The 'paper', its authors' code included; 'corrected', where that code is odd; or 'local', on two CPU cores."""
    config = sized(size, paper=_paper, corrected=_corrected, local=_local)
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.data.update(query_length=22, negatives=1)  # 20 word pieces, [CLS] and [SEP]
    config.model.update(embed_dim=0, pooling="mean", tied=True, normalize=False, token_types="sides")
    config.train.update(loss="multi_label_margin", temperature=1.0)
    config.evaluate.update(depth=1000, metrics=("RR@10", "R@1000"))
    return config


def _paper() -> ConfigDict:
    """350,000 updates of two batches each, in the order of the file. The learning rate is planned for a whole epoch."""
    config = _as_published()
    config.pairs.in_order = True
    config.data.shuffle_buffer = 1
    config.train.update(steps=700_000, schedule_steps=2_076_300, warmup_ratio=10_000 / 1_038_150, clip_parts=True)
    return config


def _corrected() -> ConfigDict:
    """Examples are shuffled anew each epoch, a gradient is clipped once, and the learning rate falls to 0."""
    config = _as_published()
    config.train.update(steps=700_000, warmup_ratio=10_000 / 350_000)
    return config


def _as_published() -> ConfigDict:
    config = on_labelled_examples(defaults())
    config.seed = 42
    config.split.shards = 13  # and as many lanes: a batch has the next 13 triples of the file
    # Section 4.1: BERT-base, batches of 26 with two accumulated; a triple is two rows of theirs.
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1, dtype="float32")
    config.data.update(document_length=258, lanes=13)  # 256 word pieces, [CLS] and [SEP]
    config.train.update(batch_size=13, accumulation=2, margin=1.0)
    config.train.update(optimizer="adam", learning_rate=3e-6, adam_epsilon=1e-8, weight_decay=0.01, clip_norm=1.0)
    return config


def _local() -> ConfigDict:
    config = on_labelled_examples(laptop.defaults())
    config.train.update(steps=3000, batch_size=32, learning_rate=3e-4)
    config.loop.update(checkpoint_every=500, validate_every=500)
    return config

"""SPLADE (Formal et al. 2021, v2; Lassance and Clinchant 2022; Lassance et al. 2024, v3): sparse vectors over the
vocabulary, searched as words are.

    python -m retrieval.main --config=configs/splade.py --workdir=runs/splade \\
        --config.train.init_from=distilbert-base-uncased --config.vocab=distilbert-base-uncased \\
        --config.pairs.files=triples.train.small.tsv --config.sets.beir=DATA/msmarco

Sizes: 'paper' is SPLADE-max: in-batch softmax with one negative of BM25 (MS MARCO: MRR@10 34.0). 'distil' learns the
margins of a cross-encoder, which --config.pairs.teacher or the stage `teacher` gives (36.8; with negatives of its own
38.0). 'v3' learns its scores of eight documents, by KL (40.2 with five teachers; MarginMSE beside it is left out).
'doc' has queries without an encoder: a table weighs their tokens (OpenSearch's and SPLADE-v3-doc's; 'paper' otherwise).
'local' is for two CPU cores, from the encoder of a masked language model:

    python -m retrieval.main --config=configs/splade.py:local --workdir=runs/splade --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.reqa=train-v1.1.json,dev-v1.1.json --config.split.set=reqa

From any published masked language model, or model of SparseEncoder, on pairs of your own, with the size, the vocabulary
and the lengths of its folder. `splade:local:MODEL` is for two CPU cores: 300 steps of 32 pairs, ten minutes at most;
the log says how long a step takes before the first. For triplets add --config.data.negatives=1.

    python -m retrieval.main --config=splade:local:MODEL --workdir=runs/splade --config.pairs.files=DATA/pairs.jsonl \\
        --config.sets.labelled=DATA/test.jsonl

The paper trained on 4 V100; here a step of 'paper' needs some 16 GB, or train.chunk_size.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import fine_tuning, laptop, published
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The training of a size, and the evaluation beside BM25; or that of a published model, MODEL or local:MODEL.

    `complete` adds what is that model's.
    """
    if fine_tuning.names_model(size):
        config = fine_tuning.from_model(size)
        config.train.sparse.update(query_weight=1e-3, document_weight=1e-3, rise=200)
    else:
        config = on_labelled_examples(sized(size, paper=_paper, distil=_distil, v3=_v3, doc=_doc, local=_local))
        config.data.lanes = 4
    config.recipe = "splade"
    config.stages = ("sets", "pairs", "train", "sparse", "index", "evaluate", "report")
    config.data.pack.auto = False  # a text a row
    config.train.update(log_q=False, temperature=1.0)
    return config


def complete(config: ConfigDict) -> None:
    """Sets what a published model that `train.init_from` names decides. What a command line sets counts more.

    Raises:
      UserError: a part of it is not understood here.
    """
    from retrieval.methods.splade.folder import SparseFolder, is_sparse

    data = config.data
    longest = data.query_length, data.document_length
    if folder := published.start_from_encoder(config):
        config.train.learning_rate = min(config.train.learning_rate, 5e-5)
        if is_sparse(folder):
            opened = SparseFolder.open(folder)
            config.update_from_flattened_dict(opened.texts)
            config.model.sparse_queries = "idf" if opened.table else "encoder"
        data.query_length, data.document_length = map(min, longest, (data.query_length, data.document_length))


def _paper() -> ConfigDict:
    config = defaults()
    # DistilBERT's sizes. Texts have 256 tokens.
    config.model.update(num_layers=6, hidden_size=768, num_heads=12, mlp_size=3072, dropout=0.1)
    config.data.update(query_length=256, document_length=256, negatives=1)
    # Section 4.1: 150,000 steps of 124 queries, 2e-5, warm-up of 6,000 steps.
    config.train.update(steps=150_000, batch_size=124, learning_rate=2e-5, warmup_ratio=0.04, weight_decay=0.01)
    config.train.sparse.update(query_weight=3e-4, document_weight=1e-4, rise=50_000)
    config.loop.update(validate_every=5000, checkpoint_every=5000)
    return config


def _distil() -> ConfigDict:
    config = _paper()
    config.train.loss = "margin_mse"
    config.train.sparse.update(query_weight=0.5, document_weight=0.4)  # of squared logits
    return config


def _v3() -> ConfigDict:
    config = _paper()
    config.data.negatives = 7
    config.train.update(loss="kl_divergence", batch_size=32)
    config.train.sparse.update(queries="l1", query_weight=5e-3, document_weight=5e-3)
    return config


def _doc() -> ConfigDict:
    config = _paper()
    config.model.sparse_queries = "idf"
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.train.update(steps=600, batch_size=32, learning_rate=5e-4)
    config.train.sparse.update(query_weight=1e-3, document_weight=1e-3, rise=200)
    config.loop.update(checkpoint_every=100, validate_every=100)
    return config

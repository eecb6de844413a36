"""ColBERT (Khattab & Zaharia 2020): a vector for every token, and the sum of each query token's best match.

    python -m retrieval.main --config=configs/colbert.py --workdir=runs/colbert \\
        --config.vocab=BERT --config.train.init_from=BERT --config.pairs.files=triples.train.small.tsv \\
        --config.sets.msmarco=collection.tsv,queries.dev.small.tsv,qrels.dev.small.tsv

BERT is a folder of BERT-base's weights (uncased), whose [unused0] and [unused1] stand before queries and documents. The
paper has an MRR@10 of 0.349 on dev for the first 1,000 of BM25, and trains on one GPU of 32 GB.

From any published model, on pairs of your own, with the size, the vocabulary and the lengths of its folder. A model of
late interaction that PyLate loads keeps its markers too. `colbert:local:MODEL` is for two CPU cores: 300 steps of 32
pairs, ten minutes at most; the log says how long a step takes before the first. For triplets add
--config.data.negatives=1.

    python -m retrieval.main --config=colbert:local:MODEL --workdir=runs/colbert \\
        --config.pairs.files=DATA/pairs.jsonl --config.sets.labelled=DATA/test.jsonl

From a small masked language model of your own, on a share of an evaluation set's questions with BM25's negatives:

    python -m retrieval.main --config=mlm:local --workdir=runs/mlm --config.data.document_length=128 \\
        --config.stages="('prepare', 'train')"
    python -m retrieval.main --config=configs/colbert.py:local --workdir=runs/colbert --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.beir=scifact --config.split.set=scifact

`late.systems` names what is ranked anew: bm25, or other systems of this run or its base.
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import fine_tuning, laptop, published
from retrieval.configs.fine_tuning import on_labelled_examples

_OF_PAIRS = ("sets", "pairs", "train", "index", "evaluate", "tokens", "maxsim", "report")


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's BERT-base, or 'local'; or the training of a published model, MODEL or local:MODEL.

    `complete` adds what is that model's.
    """
    if fine_tuning.names_model(size):
        config = _from_model(size)
    else:
        config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "late_interaction"
    config.data.titles = "joined"
    return config


def complete(config: ConfigDict) -> None:
    """Sets what a published model that `train.init_from` names decides. What a command line sets counts more.

    Raises:
      UserError: a part of it is not understood here.
    """
    from retrieval.methods.late_interaction.folder import LateFolder, is_late

    data, train = config.data, config.train
    if "mine" in config.stages and not config.split.set:
        config.stages, data.negatives = _OF_PAIRS, 0
    longest = data.query_length, data.document_length
    if folder := published.start_from_encoder(config):
        train.learning_rate = min(train.learning_rate, 5e-5)
        if is_late(folder):
            config.update_from_flattened_dict(LateFolder.open(folder).fields)
            train.temperature = 1.0
        data.query_length, data.document_length = map(min, longest, (data.query_length, data.document_length))


def _from_model(argument: str) -> ConfigDict:
    """A score is a sum over a query's tokens, some ten of them: ten times the temperature of towers.

    A model that knows no markers and [MASK]s gets none (docs/papers/colbert.md has what they cost).
    """
    config = fine_tuning.from_model(argument)
    config.stages = _OF_PAIRS
    config.data.query_length = 32
    config.data.document_length = min(config.data.document_length, 180)
    config.model.update(embed_dim=128)
    config.model.late.expansion = "none"
    config.train.update(loss="maxsim_softmax", temperature=0.5)
    return config


def _paper() -> ConfigDict:
    """A batch is 32 triples; the loss compares a positive with its own negative alone."""
    config = defaults()
    config.stages = ("sets", "index", "pairs", "train", "evaluate", "tokens", "maxsim", "report")
    config.index.update(bm25_k1=0.82, bm25_b=0.68)
    config.evaluate.depth = 1000
    config.data.update(query_length=32, document_length=180, negatives=1)
    config.data.update(query_prefix="[unused0]", document_prefix="[unused1]")
    config.model.update(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072, embed_dim=128)
    config.train.update(steps=200_000, batch_size=32, learning_rate=3e-6, warmup_ratio=0.0, loss="multi_negative_nll")
    config.late.depth = 1000
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    return config


def _local() -> ConfigDict:
    """All documents of a batch are negatives."""
    config = laptop.defaults()
    config.stages = ("sets", "index", "mine", "pairs", "train", "evaluate", "tokens", "maxsim", "report")
    config.data.update(query_length=32, document_length=128, negatives=1)
    config.data.update(query_prefix="query: ", document_prefix="passage: ")
    config.mine.last = 100
    config.train.update(steps=600, batch_size=32, learning_rate=5e-4, temperature=1.0, loss="maxsim_softmax")
    config.loop.update(checkpoint_every=100, validate_every=100, validate_queries=100, validate_candidates=2000)
    return config

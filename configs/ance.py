"""ANCE (Xiong et al. 2021): negatives that the model itself ranks high, mined anew while it trains.

    python -m retrieval.main --config=configs/ance.py --workdir=runs/ance --config.base=runs/warm_up \\
        --config.train.init_from=runs/warm_up

`runs/warm_up` is the authors' warm-up, from an encoder such as SEED-Encoder's:

    python -m retrieval.main --config=configs/ance.py:warm_up --workdir=runs/warm_up --config.base=runs/seed_encoder \\
        --config.train.init_from=runs/seed_encoder --config.split.set=msmarco --config.split.ratio=0.98 \\
        --config.split.validation=0.01 --config.sets.msmarco=collection.tsv,queries.train.tsv,qrels.train.tsv

As in their code it has LAMB, batches of 256 (32 on each of eight GPUs), passages of 128 tokens, the two-way loss, a
rate of 2e-4 after 1,000 steps, and as many steps as twice 35 million triples take. What differs:

- They start from RoBERTa-base. `--config.vocab` and `--config.train.init_from` take its vocabulary and weights.
- They read MS MARCO's triples in order. Here a step draws a question's positive and one of its 20 negatives out of
  BM25's best 100.
- Our LAMB corrects the bias of Adam's moments, and theirs does not.

In the run itself, the warm-up's negatives serve up to the first refresh, where the authors mine before the first step.
Theirs on MS MARCO's passages: RoBERTa-base, [CLS] through a linear layer and a LayerNorm, batch 64, LAMB, a warm-up of
the rate of 5,000 steps; the best step was 600,000, where the run ends. The rate is planned for 1,000,000 steps, as in
their code, so it has not fallen to 0 there. On Natural Questions it refreshes every 1,000 steps, from the best
100 that hold no answer (--config.mine.answers=True; from a BEIR folder with answers.jsonl, for a refresh mines for the
questions of a set, which DPR's own files are not). The authors leave one positive of a question out of its negatives,
here all known ones are. Dev MRR@10 0.330, Recall@1000 0.959; with SEED-Encoder 0.339 and 0.961.

Training waits while the negatives are mined anew. The authors mine on other GPUs meanwhile.

Documents, of which the first 512 tokens count (FirstP), from a warm-up on them; MRR@100 on dev, which the authors of
SEED-Encoder report, is 0.373, and with SEED-Encoder 0.394:

    python -m retrieval.main --config=configs/ance.py:documents --workdir=runs/documents --config.base=runs/warm_up \\
        --config.train.init_from=runs/warm_up

The same with four windows of 512 tokens for each (MaxP; the authors train on all four, here on the first), on dev and
the 2019 topics of TREC, whose documents are relevant from grade 1 on:

    python -m retrieval.main --config=configs/ance.py:documents --workdir=runs/maxp --config.base=runs/documents \\
        --config.stages="('sets','encode','index','evaluate','report')" --config.encode.windows=4 --config.split.set= \\
        --config.sets.msmarco=msmarco-docs.tsv,msmarco-docdev-queries.tsv,msmarco-docdev-qrels.tsv \\
        --config.sets.trec=msmarco-docs.tsv,msmarco-test2019-queries.tsv,2019qrels-docs.txt
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's run on MS MARCO's passages or 'documents', its 'warm_up', or 'local', after `dpr_mined.py:local`."""
    makers = dict(paper=_paper, documents=_documents, warm_up=_warm_up, local=_local)
    config = on_labelled_examples(sized(size, **makers))
    config.split.set = "reqa"
    config.data.negatives = 1
    config.train.log_q = False
    return config


def _paper() -> ConfigDict:
    config = _as_authors(steps=600_000, batch_size=64, learning_rate=1e-6, warmup=5000, planned=1_000_000)
    config.data.document_length = 512
    return _refreshed(config, every=10_000, share=0.2)


def _documents() -> ConfigDict:
    config = _as_authors(steps=600_000, batch_size=64, learning_rate=5e-6, warmup=3000, planned=1_000_000)
    config.data.document_length = 512
    config.encode.shard_size = 8192  # texts that are held at a time: documents are long
    return _refreshed(config, every=10_000, share=0.2)


def _warm_up() -> ConfigDict:
    config = _as_authors(steps=2 * 35_000_000 // 256, batch_size=256, learning_rate=2e-4, warmup=1000)
    config.stages = ("sets", "index", "mine", "pairs", "train", "encode", "evaluate", "report")
    config.mine.last = 100
    config.data.document_length = 128
    config.model.positions = 512  # of the runs that go on from here
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.train.update(steps=300, batch_size=32, learning_rate=2e-4, warmup_ratio=0.067)
    config.loop.update(checkpoint_every=50, validate_every=50)
    return _refreshed(config, every=100, share=1.0)


def _as_authors(steps: int, batch_size: int, learning_rate: float, warmup: int, planned: int = 0) -> ConfigDict:
    """The authors' model, loss and optimizer.

    Args:
      warmup: steps of the rate's way up.
      planned: steps after which the rate would be 0; 0: `steps`.
    """
    config = defaults()
    config.model.update(tied=True, embed_dim=768, embed_norm=True)
    config.train.update(loss="two_way_nll", steps=steps, batch_size=batch_size, learning_rate=learning_rate)
    config.train.update(optimizer="lamb", lamb_norm_limit=10.0, schedule_steps=planned)
    config.train.update(warmup_ratio=warmup / (planned or steps), adam_epsilon=1e-8)
    config.loop.update(log_every=50, checkpoint_every=5000, validate_every=5000)
    config.evaluate.update(depth=1000, metrics=("RR@10", "RR@100", "R@1000", "nDCG@10"))
    return config


def _refreshed(config: ConfigDict, every: int, share: float) -> ConfigDict:
    """The config with negatives that are mined anew every so many steps, for a share of the questions."""
    config.stages = ("train", "encode", "index", "evaluate", "report")
    config.mine.update(refresh_every=every, refresh_share=share)
    return config

"""ANCE (Xiong et al. 2021): negatives that the model itself ranks high, mined anew while it trains.

    python -m retrieval.main --config=configs/ance.py --workdir=runs/ance --config.base=runs/warm_up \\
        --config.train.init_from=runs/warm_up

`runs/warm_up` is a run of `dpr_mined.py` with the model's sizes below (the second command of its docstring); its
negatives of BM25 serve up to the first refresh, where the authors mine before the first step. The authors' run on MS
MARCO's passages: RoBERTa-base, [CLS] through a linear layer and a LayerNorm, batch 64, LAMB, a warm-up of the rate of
5,000 steps; the best step was 600,000. On Natural Questions it refreshes every 1,000 steps, from the best 100
that hold no answer (--config.mine.answers=True; from a BEIR folder with answers.jsonl, for a refresh mines for the
questions of a set, which DPR's own files are not). The authors leave one positive of a question out of its negatives,
here all known ones are. Dev MRR@10 0.330, Recall@1000 0.959; with SEED-Encoder 0.339 and 0.961.

Training waits while the negatives are mined anew. The authors mine on other GPUs meanwhile; here, of eight, on the last
four, and training on the others turns to what was mined 5,000 steps later:

    CUDA_VISIBLE_DEVICES=0,1,2,3 python -m retrieval.main --config=configs/ance.py --workdir=runs/ance \\
        --config.base=runs/warm_up --config.train.init_from=runs/warm_up --config.mine.refresh_lag=5000 \\
        --config.mine.refresh_env="('CUDA_VISIBLE_DEVICES=4,5,6,7',)"

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

from configs import dpr_mined

DOCUMENTS = "documents"


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's run on MS MARCO's passages or 'documents', or 'local', for a warm-up of `dpr_mined.py:local`."""
    config = dpr_mined.get_config("paper" if size == DOCUMENTS else size)
    config.stages = ("train", "encode", "index", "evaluate", "report")
    config.mine.update(negatives=20, last=200, refresh_every=10_000, refresh_share=0.2)
    config.data.update(negatives=1, document_length=512)
    config.model.update(tied=True, embed_dim=768, embed_norm=True)
    config.train.update(loss="two_way_nll", steps=600_000, batch_size=64, learning_rate=1e-6, clip_norm=1.0)
    config.train.update(optimizer="lamb", lamb_norm_limit=10.0, warmup_ratio=5000 / config.train.steps)
    config.loop.update(checkpoint_every=5000, validate_every=5000)
    if size == "local":
        config.mine.update(refresh_every=100, refresh_share=1.0)
        config.data.update(document_length=96)
        config.model.update(embed_dim=128, embed_norm=False)
        config.train.update(loss="in_batch_softmax", steps=300, batch_size=32, learning_rate=2e-4)
        config.train.update(optimizer="adam", lamb_norm_limit=0.0, warmup_ratio=0.067)
        config.loop.update(checkpoint_every=50, validate_every=50)
        return config
    config.evaluate.update(depth=1000, metrics=("RR@10", "RR@100", "R@1000", "nDCG@10"))
    if size == DOCUMENTS:
        config.train.update(learning_rate=5e-6, warmup_ratio=3000 / config.train.steps)
        config.encode.shard_size = 8192  # texts that are held at a time: documents are long
    return config

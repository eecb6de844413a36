"""Fine-tuning of a published embedder on your pairs, as its authors do it, with a table before and after it.

    python -m retrieval.main --config=embedding --workdir=runs/tuned --config.pairs.files=DATA/pairs.jsonl \\
        --config.train.init_from=hf:Qwen/Qwen3-Embedding-0.6B --config.train.lora.rank=16

The model is a folder that sentence-transformers or transformers saved, or hf:NAME@REVISION. Its architecture, sizes,
pooling, normalisation, prompts, titles and lengths are its own; texts have 512 tokens at most. Prompts that the folder
lacks, temperature and learning rate are those that `embedders.py` has for its name or its family, and flags count more.
A folder without a modules.json is pooled as sentence-transformers would pool it: a decoder's last token, else the mean.

`embedding:local` is for two CPU cores: texts of 64 and 128 tokens, 300 steps of 32 pairs, ten minutes at most. A tenth
of the pairs is held out, and the step that is best on them is the result: step 0, the model as it came, where none is
better. The other documents of a batch are the wrong ones, so pairs need no negatives. The first five positives of a
query are trained on: more of them, of low grades, cost NFCorpus three points (--config.pairs.positives=0 takes all).

Pairs of your own to test on are --config.sets.labelled=DATA/test.jsonl. On a BEIR folder's own judgements:

    python -m retrieval.main --config=embedding --workdir=runs/nfcorpus --config.train.init_from=MODEL \\
        --config.sets.beir=DATA/nfcorpus --config.split.set=nfcorpus --config.split.train=train --config.split.dev=dev

With hard negatives that BM25 finds for the questions of `split.set`, add to that:

    --config.stages="('sets','index','mine','pairs','train','encode','evaluate','report')" --config.data.negatives=1
"""

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.experiment import sized
from retrieval.configs import embedders, published
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "full") -> ConfigDict:
    """Training on labelled pairs, and the evaluation of both models; `complete` adds what is the model's.

    Args:
      size: full, or local for a laptop.

    Raises:
      UserError: it is neither.
    """
    return sized(size, full=_full, local=_local)


def complete(config: ConfigDict) -> None:
    """Sets what the model that `train.init_from` names decides. What a command line sets counts more.

    Raises:
      UserError: there is none, or a part of it is not understood here.
    """
    model, data, dtype = config.train.init_from, config.data, config.model.dtype
    if not model:
        raise UserError(
            "--config=embedding starts from a model: add --config.train.init_from=FOLDER, or hf:NAME such as "
            "hf:Qwen/Qwen3-Embedding-0.6B"
        )
    longest = data.query_length, data.document_length
    published.start_from(model, config, f"config.train.init_from={model}")
    data.query_length, data.document_length = map(min, longest, (data.query_length, data.document_length))
    found = embedders.embedder(model, config.model.family)
    if not (data.query_prefix or data.document_prefix):
        data.query_prefix, data.document_prefix = found.query, found.document
    # Inner products of any length need no scale.
    config.train.temperature = found.temperature if config.model.normalize else 1.0
    config.train.learning_rate = found.lora_rate if config.train.lora.rank else found.rate
    config.model.update(remat="auto", dtype=dtype if config.model.family in embedders.BY_FAMILY else "float32")


def _full() -> ConfigDict:
    config = on_labelled_examples(published.get_config())
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.data.update(negatives=0, query_length=512, document_length=512)
    config.pairs.update(positives=5, keep_lone=True)  # the second where data.negatives is raised
    config.train.update(steps=600, batch_size=64, warmup_ratio=0.1, log_q=False)
    config.loop.update(log_every=20, checkpoint_every=100, validate_every=100, best="nDCG@10")
    config.mine.last = 100
    config.encode.start = True
    return config


def _local() -> ConfigDict:
    config = _full()
    config.data.update(query_length=64, document_length=128)
    config.model.dtype = "float32"
    config.train.update(steps=300, minutes=10, batch_size=32)
    config.loop.update(checkpoint_every=50, validate_every=50, validate_queries=200, validate_candidates=1000)
    return config

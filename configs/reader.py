"""A reader (Xiong et al. 2020, section 3.4): where in the first paragraphs of a retriever a question's answer stands.

`[CLS] question [SEP] paragraph [SEP]` in 512 tokens, 5 paragraphs, one softmax over all of them, learning rate 1e-5.

    python -m retrieval.main --config=configs/reader.py --workdir=runs/reader --config.base=runs/wikipedia \\
        --config.train.init_from=bert-base-uncased \\
        --config.sets.qa=corpus,NQ-open.dev.jsonl --config.spans.questions=NQ-open.train.jsonl

At the size of a laptop, on SQuAD's paragraphs, from the encoder of a masked language model:

    python -m retrieval.main --config=mlm:local --workdir=runs/mlm --config.data.document_length=192 \\
        --config.stages="('prepare', 'train')"
    python -m retrieval.main --config=configs/reader.py:local --workdir=runs/reader --config.base=runs/mlm \\
        --config.train.init_from=runs/mlm --config.sets.squad=train-v1.1.json --config.split.set=squad
"""

from ml_collections import ConfigDict

from retrieval.config.experiment import defaults, sized
from retrieval.configs import laptop
from retrieval.configs.fine_tuning import on_labelled_examples


def get_config(size: str = "paper") -> ConfigDict:
    """The paper's reader, or 'local': one for a laptop."""
    config = on_labelled_examples(sized(size, paper=_paper, local=_local))
    config.recipe = "reader"
    config.stages = ("sets", "index", "spans", "train", "evaluate", "answer", "report")
    config.data.rates.update(pairs=0.0, spans=1.0)
    config.train.loss = "span_likelihood"
    config.loop.validate_every = 0
    return config


def _paper() -> ConfigDict:
    """Four epochs of NQ-open's 79,168 questions, 8 at a time."""
    config = defaults()
    config.data.update(query_length=50, document_length=512)
    config.train.update(steps=40_000, batch_size=8, learning_rate=1e-5, clip_norm=5.0)
    # No warm-up, and as good as no decay: the learning rate is constant.
    config.train.update(warmup_ratio=0.0, schedule_steps=100_000_000, weight_decay=0.0)
    config.data.lanes = 8
    return config


def _local() -> ConfigDict:
    config = laptop.defaults()
    config.data.update(query_length=32, document_length=192, paragraphs=3)
    config.spans.depth = 3
    config.train.update(steps=2000, batch_size=8, learning_rate=5e-4, temperature=1.0)
    config.loop.update(checkpoint_every=500)
    return config

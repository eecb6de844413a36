"""Fine-tuning of a published model on labelled pairs, with a table of the model before and after, of BM25 and hybrid.

    python -m retrieval.main --config=fine_tune:hf:sentence-transformers/all-MiniLM-L6-v2 --workdir=runs/tuned \\
        --config.pairs.files=DATA/pairs.jsonl --config.sets.labelled=DATA/test.jsonl

The argument is a folder of sentence-transformers, or a model of Hugging Face's hub. As in `published.py`, sizes,
pooling, normalisation, prompts, titles and lengths are the model's own. The first five positives of a query are trained
on: more of them, of low grades, cost NFCorpus three points (--config.pairs.positives=0 takes all). Pairs need no
negatives: the other documents of a batch are the wrong ones. A tenth of the queries is held out, and the step that is
best on them is the result: step 0, the model as it came, where none is better. On a BEIR folder's own judgements:

    python -m retrieval.main --config=fine_tune:MODEL --workdir=runs/tuned --config.sets.beir=DATA/nfcorpus \\
        --config.split.set=nfcorpus --config.split.train=train --config.split.dev=dev

With hard negatives that BM25 finds for the questions of `split.set`, add to that:

    --config.stages="('sets','index','mine','pairs','train','encode','evaluate','report')" --config.data.negatives=1
"""

from ml_collections import ConfigDict

from retrieval.configs import published
from retrieval.configs.fine_tuning import on_labelled_examples
from retrieval.errors import UserError


def get_config(model: str = "", name: str = "fine_tune") -> ConfigDict:
    """Training on labelled pairs, and the evaluation of both models.

    Args:
      model: as `published.get_config` takes it.
      name: of the experiment, for errors.

    Raises:
      UserError: it is none, or a part of it is not understood here.
    """
    if not model:
        raise UserError("--config=fine_tune starts from a model: write --config=fine_tune:FOLDER or fine_tune:hf:NAME")
    config = on_labelled_examples(published.get_config(model, name))
    config.stages = ("sets", "pairs", "train", "encode", "index", "evaluate", "report")
    config.data.negatives = 0
    config.pairs.update(positives=5, keep_lone=True)  # the second where data.negatives is raised
    config.model.remat = "auto"
    # Chosen on NFCorpus's dev queries (docs/results/fine-tuning.md).
    config.train.update(steps=600, batch_size=64, learning_rate=5e-5, warmup_ratio=0.1, log_q=False)
    config.train.temperature = 0.05 if config.model.normalize else 1.0  # inner products of any length need no scale
    config.loop.update(log_every=20, checkpoint_every=100, validate_every=100, best="nDCG@10")
    config.mine.last = 100
    config.encode.start = True
    return config

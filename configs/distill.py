"""Distillation: a small embedder learns the scores of a large embedder, or of a cross-encoder.

    python -m retrieval.main --config=distill --workdir=runs/student --config.train.init_from=SMALL \\
        --config.teacher.model=LARGE --config.sets.beir=DATA/nfcorpus --config.split.set=nfcorpus \\
        --config.split.train=train --config.split.dev=dev --config.sets.splits="('test',)"

SMALL is as of `embedding.py`. LARGE is a folder, hf:NAME or a work directory; which kind of model it is its files tell.
Several, with commas, are one teacher: the mean of their scores.

BM25 mines hard negatives for the training questions of `split.set`, the teacher scores all pairs, and the student
learns the distribution of these scores over a positive and its negatives. It is evaluated before and after. With
--config.pairs.files=FILES in place of `split.set`, the negatives are those of the files, such as `mine.py` writes.

The scores of an embedder that gives cosines are divided by its own temperature (`train.teacher_temperature`), those of
a cross-encoder are logits and stay. Another loss is --config.train.loss=margin_mse.
"""

from pathlib import Path

from ml_collections import ConfigDict

from retrieval.common.errors import UserError
from retrieval.config.experiment import defaults, sized
from retrieval.configs import embedders, embedding


def get_config(size: str = "full") -> ConfigDict:
    """Mining, the teacher's scores, training and evaluation; `complete` adds what is the models'.

    Args:
      size: full, or local for a laptop.

    Raises:
      UserError: it is neither.
    """
    config = sized(size, full=embedding.get_config, local=lambda: embedding.get_config("local"))
    config.stages = ("sets", "index", "mine", "teacher", "pairs", "train", "encode", "evaluate", "report")
    config.data.negatives = 7
    config.train.loss = "kl_divergence"
    config.encode.batch_tokens = 16_384
    return config


def complete(config: ConfigDict) -> None:
    """Sets what the student and the teacher decide. What a command line sets counts more.

    Raises:
      UserError: one of them is missing, or a part of it is not understood here.
    """
    from retrieval.data.corpora import source_paths

    teachers = source_paths.split(config.teacher.model)
    if not teachers:
        raise UserError(
            "--config=distill learns from a model: add --config.teacher.model=FOLDER, hf:NAME or a work directory"
        )
    embedding.complete(config)
    if not config.split.set:
        config.stages = ("sets", "teacher", "pairs", "train", "encode", "index", "evaluate", "report")
    # The scores of several go from 0 to 1.
    config.train.teacher_temperature = 0.1 if len(teachers) > 1 else _temperature(config, teachers[0])


def _temperature(config: ConfigDict, teacher: str) -> float:
    """What an embedder's scores are divided by: what it was trained with; 1 for a cross-encoder, or without cosines."""
    from retrieval.runs.pipeline.run import Run
    from retrieval.runs.weights import exported_towers, text_embedder

    run, field = Run(config, Path(), Path()), "config.teacher.model"
    if text_embedder.kind_of(teacher, field, run) is not text_embedder.EMBEDDERS:
        return 1.0
    if not (folder := text_embedder.EMBEDDERS.published(teacher, field)):
        return text_embedder.EMBEDDERS.trainer(run, teacher, field).config.train.temperature
    own = defaults()
    exported_towers.set_sizes(folder, own)
    return embedders.embedder(teacher, own.model.family).temperature if own.model.normalize else 1.0

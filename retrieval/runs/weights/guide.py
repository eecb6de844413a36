"""Guides: trained towers whose scores say which negatives of a training batch are false ones. They stay as they are."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from ml_collections import ConfigDict

from retrieval.common import files
from retrieval.config import experiment
from retrieval.recipes.towers import embedding_size
from retrieval.runs.pipeline.run import Run
from retrieval.runs.weights import exported_towers
from retrieval.runs.weights.text_embedder import EMBEDDERS

FIELD = "config.train.guide"


def fetch(run: Run) -> None:
    """Copies down the guide of a run's config, where that is on a store."""
    EMBEDDERS.fetch(run, run.config.train.guide, FIELD)


def check(run: Run) -> None:
    """Checks that a run's config names a guide, if it names anything."""
    if run.config.train.guide:
        EMBEDDERS.check(run, run.config.train.guide, FIELD)


def size(config: ConfigDict) -> int:
    """The size of the embeddings of the guide that a config names."""
    if folder := EMBEDDERS.published(config.train.guide, FIELD):
        config = experiment.defaults()
        exported_towers.set_sizes(folder, config)
    else:
        config = Run.opened(config.train.guide, FIELD, Path()).owner("train").config
    return embedding_size(config.model)


def inputs(run: Run) -> Sequence[Path]:
    """The files that tell whether a guide has changed; none where a run names none."""
    return EMBEDDERS.inputs(run, run.config.train.guide, FIELD) if run.config.train.guide else ()


def fingerprint(run: Run) -> str:
    """Of the contents of a guide's files: examples say with it whose embeddings they have."""
    return files.fingerprint([[path.name, *(one["sum"] for one in files.describe(path))] for path in inputs(run)])


def unit(values_NH: np.ndarray) -> np.ndarray:
    """Embeddings [N, H] with length 1."""
    return values_NH / np.maximum(np.linalg.norm(values_NH, axis=1, keepdims=True), 1e-12)

"""The kind of index 'scann'."""

from pathlib import Path

import numpy as np

from retrieval.search import scann
from retrieval.search.index_kind import IndexKind, Options, register
from retrieval.search.scann import ScannIndex


@register
class Scann(IndexKind):
    """ScaNN."""

    name, title, system = "scann", "ScaNN", "dense (ScaNN)"
    options = ("index.rescore",)

    def available(self) -> bool:
        return scann.available()

    def build(self, contents: np.ndarray, options: Options) -> ScannIndex:
        return ScannIndex.build(contents, reorders=not options["index.rescore"])

    def load(self, folder: Path) -> ScannIndex:
        return ScannIndex.load(folder)

"""What recipes that train on pairs of a query and its documents have in common."""

import importlib

from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.data.labelled.pair_shards import GUIDE
from retrieval.recipes.recipe import Recipe, guide_of, has_teacher


class PairRecipe(Recipe):
    """Examples are a query with its positive and `data.negatives` hard negatives. A batch may go in chunks of them."""

    kind = PAIRS
    options = ("data.negatives",)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """As `Recipe.lengths`."""
        data = self.config.data
        lengths = data.query_length, data.document_length
        return pair_lengths(*lengths, data.negatives, positives, has_teacher(self), bool(guide_of(self)))

    @property
    def tables(self) -> dict[str, tuple[str, int]]:
        """The embeddings of a guide."""
        if not guide_of(self):
            return {}
        guide = importlib.import_module("retrieval.recipes.guide")  # a run without one reads no published models
        return {"guide": (GUIDE, guide.size(self.config))}

    def chunk_sizes(self, devices: int) -> list[int]:
        """As many examples for every device, in whole lanes where these are packed; up to the whole batch."""
        rows, packed = self.config.train.batch_size, self.packing()
        unit = devices * (packed.examples if packed else 1)
        return [size for size in range(unit, rows + 1, unit) if rows % size == 0]

"""What recipes that train on pairs of a query and its documents have in common."""

from retrieval.data.examples.example_kind import PAIRS, pair_lengths
from retrieval.errors import UserError, next_to
from retrieval.recipes.recipe import Recipe


class PairRecipe(Recipe):
    """Examples are a query with its positive and `data.negatives` hard negatives. A batch may go in chunks of them."""

    kind = PAIRS
    options = ("data.negatives",)

    def lengths(self, positives: int = 0) -> dict[str, int]:
        """As `Recipe.lengths`."""
        data = self.config.data
        lengths = data.query_length, data.document_length
        return pair_lengths(*lengths, data.negatives, positives, self.has_teacher)

    @property
    def has_teacher(self) -> bool:
        """As `Recipe.has_teacher`."""
        return self.loss is not None and self.loss.needs_teacher

    def check_chunks(self, devices: int) -> None:
        """Chunks must divide the batch; devices and packed lanes must divide chunks."""
        size, rows, sizes = self.config.train.chunk_size, self.config.train.batch_size, self.chunk_sizes(devices)
        if not size:
            return
        if rows % size:
            raise UserError(
                f"config.train.chunk_size={size} does not divide config.train.batch_size={rows}: take "
                f"{next_to(size, sizes)}"
            )
        if size not in sizes:
            lane = f" times the {sizes[0] // devices} examples that a lane packs" if sizes[0] > devices else ""
            raise UserError(
                f"config.train.chunk_size={size} must be a multiple of the number of devices, {devices}{lane}: take "
                f"{next_to(size, sizes)}"
            )

    def chunk_sizes(self, devices: int) -> list[int]:
        """As many examples for every device, in whole lanes where these are packed; up to the whole batch."""
        rows, packed = self.config.train.batch_size, self.packing()
        unit = devices * (packed.examples if packed else 1)
        return [size for size in range(unit, rows + 1, unit) if rows % size == 0]

"""SPLADE: sparse vectors over the vocabulary, from the head of a masked language model (Formal et al. 2021)."""

NAMES = {"recipe": {"recipe": "splade"}, "stage": {"stage": "sparse"}, "trained": {"trained": "splade"}}

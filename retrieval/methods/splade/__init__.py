"""SPLADE: sparse vectors over the vocabulary, from the head of a masked language model (Formal et al. 2021)."""

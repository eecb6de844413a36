"""QuadrupletBERT: two phases, and a negative of either kind (Chen et al. 2021)."""

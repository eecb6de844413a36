"""QuadrupletBERT: two phases, and a negative of either kind (Chen et al. 2021)."""

NAMES = {"loss": {"loss": "quadruplet"}, "task": {"task": "quadruplets"}, "refresh": {"refresh": "quadruplets"}}

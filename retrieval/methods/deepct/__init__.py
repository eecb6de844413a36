"""DeepCT: weights of terms for BM25 (Dai & Callan 2019)."""

NAMES = {
    "recipe": {"recipe": "deepct"},
    "stage": {"stage": "weigh"},
    "task": {"task": "deepct"},
    "index": {"weighted_index": "deepct"},
}

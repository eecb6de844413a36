"""The numbers of Lu et al. 2021 (SEED-Encoder) that the study puts beside its own: MS MARCO passages, dev, in percent.

(negatives, pre-training) -> MRR@10 of Table 1. Its strong decoders are in Figure 3, without numbers.
"""

TABLE_1 = {
    ("bm25", "bert"): 32.0,
    ("bm25", "weak"): 32.9,
    ("ance", "bert"): 33.2,
    ("ance", "weak"): 33.9,
}
SEARCH = 24.0  # BM25 itself

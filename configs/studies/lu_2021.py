"""The numbers of Lu et al. 2021 (SEED-Encoder) that the study puts beside its own: MS MARCO passages, dev, in percent.

Table 1: (negatives, pre-training) -> MRR@10, Recall@1k. Its strong decoders are in Figure 3, without numbers.
"""

TABLE_1 = {
    ("bm25", "short"): (32.0, 93.3),
    ("bm25", "weak"): (32.9, 95.3),
    ("ance", "short"): (33.2, 95.2),
    ("ance", "weak"): (33.9, 96.1),
}
SEARCH = (24.0, 81.4)  # BM25 itself

# Natural Questions, answers among the first 20 and 100 passages. For "short" with ANCE it has Xiong et al.'s BERT.
TABLE_4 = {
    "search": (59.1, 73.7),
    ("bm25", "short"): (77.8, 85.1),
    ("bm25", "weak"): (80.4, 87.1),
    ("ance", "short"): (81.9, 87.5),
    ("ance", "weak"): (83.1, 88.7),
}

"""The numbers of Zhan et al. 2020 (arXiv 2006.15498), in percent, on MS MARCO's dev queries."""

DEPTHS = (5, 10, 50, 500, 1000)

# Table 1: MRR@10 and recall@1000.
TABLE_1 = {
    "BM25": (18.4, 85.3),
    "doc2query": (21.5, 89.3),
    "DeepCT": (24.3, 91.3),
    "docTTTTTquery": (27.7, 94.7),
    "RepBERT": (30.4, 94.3),
    "BM25 + BERT Large": (36.5, 81.4),
}
# Table 1: what the paper copied from a leaderboard, in its words; MRR@10 of dev and of test, recall@1000.
CITED = {"the best system without BERT (BM25, then a BiLSTM with attention)": (29.8, 29.1, 81.4)}
# Table 1: milliseconds a query. Dense search ran on GPUs, the reranker on a TPU.
LATENCY = {"BM25": 50, "doc2query": 90, "DeepCT": 55, "docTTTTTquery": 64, "RepBERT": 80, "BM25 + BERT Large": 3400}
# Table 2: MRR@10 of BERT Large over the first 5, 10, 50, 500 and 1,000 of each system.
TABLE_2 = {
    "BM25": (23.2, 27.6, 33.6, 36.6, 37.1),
    "doc2query": (26.5, 30.7, 35.4, 37.3, 37.6),
    "DeepCT": (27.9, 32.0, 36.1, 37.4, 37.6),
    "docTTTTTquery": (31.4, 35.1, 37.5, 38.0, 38.0),
    "RepBERT": (31.9, 34.4, 37.0, 37.7, 37.6),
}
# Tables 3 and 4: MRR@10 and recall@1000 of (first, second), interleaved. BM25 is tuned, and better than in Table 1.
FUSED = {
    ("BM25", ""): (18.7, 85.7),
    ("RepBERT", ""): (30.4, 94.3),
    ("BM25", "doc2query"): (20.3, 88.8),
    ("BM25", "DeepCT"): (21.3, 90.9),
    ("BM25", "RepBERT"): (24.5, 95.7),
    ("doc2query", "BM25"): (21.7, 88.8),
    ("doc2query", "DeepCT"): (23.6, 91.9),
    ("doc2query", "RepBERT"): (26.3, 96.1),
    ("DeepCT", "BM25"): (23.6, 90.9),
    ("DeepCT", "doc2query"): (24.6, 91.9),
    ("DeepCT", "RepBERT"): (27.6, 95.7),
    ("RepBERT", "BM25"): (29.6, 95.7),
    ("RepBERT", "doc2query"): (30.2, 96.1),
    ("RepBERT", "DeepCT"): (30.6, 95.7),
}

"""The numbers of Xiong, Wang & Wang 2020 (ProQA), in percent."""

# WebQuestions, R@5, R@10 and R@20, by the updates of pre-training.
TABLE_3 = {
    "proqa": (52.0, 61.0, 68.8),
    "ict": (20.4, 29.0, 37.2),
    "plain": (42.9, 52.6, 60.8),
    "plain-7": (43.8, 53.5, 61.3),
    "plain-5": (38.8, 48.2, 56.7),
}

# The exact match of the readers, on NQ-open.
TABLE_1 = {"orqa": 33.3, "proqa": 37.4}
SPARSE = 29.7  # section 4: a reader on a sparse index

# The exact match on 2,000 questions of NQ-open: whether retriever and reader are joint, a head reranks paragraphs, and
# all paragraphs share a softmax.
TABLE_4 = {"alone": 38.5, "joint": 38.3, "rerank": 38.2, "joint-apart": 36.2, "apart": 35.1}

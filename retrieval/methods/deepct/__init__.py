"""DeepCT: weights of terms for BM25 (Dai & Callan 2019)."""

from retrieval.config.fields import NOT_NEGATIVE, SHARE, TEXT, Field, declare, whole

declare(
    "data.rates",
    deepct=Field(0.0, NOT_NEGATIVE, "how often a labelled passage is drawn whose words are weighed by its query"),
)
declare(
    "index",
    term_weights=Field("", TEXT, "weighted words of passages, for the index deepct: FILE.jsonl, or a folder of them"),
    deepct_k1=Field(10.0, NOT_NEGATIVE, "k1 of the index deepct: frequencies go up to 100 there"),
    deepct_b=Field(0.9, SHARE, "b of the index deepct"),
)
declare(
    "weigh",
    scale=Field(100, whole(1), "a word of weight 1 counts so many times in its passage"),
    batch_size=Field(64, whole(1), "passages of a batch"),
)

"""The fields of DeepCT."""

from retrieval.config.fields import NOT_NEGATIVE, TEXT, Field, declare

declare(
    "data.rates",
    deepct=Field(0.0, NOT_NEGATIVE, "how often a labelled passage is drawn whose words its query weighs"),
)
declare(
    "index",
    term_weights=Field("", TEXT, "weighted words of passages, for the index deepct: FILE.jsonl, or a folder of them"),
)

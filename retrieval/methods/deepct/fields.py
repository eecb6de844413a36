"""The fields of DeepCT."""

from retrieval.config.fields import NOT_NEGATIVE, TEXT, Field, declare

declare("data.rates", deepct=Field(0.0, NOT_NEGATIVE, "how often a labelled passage is drawn whose query weighs it"))
declare("index", term_weights=Field("", TEXT, "deepct: weighted words of passages, FILE.jsonl or a folder of them"))

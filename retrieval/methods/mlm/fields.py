"""The fields of masked language models."""

from retrieval.config.fields import NOT_NEGATIVE, Field, declare

declare(
    "data.rates",
    mlm=Field(0.0, NOT_NEGATIVE, "how often the masked language model's texts are drawn"),
    next_sentence=Field(0.0, NOT_NEGATIVE, "how often pairs of texts are drawn that follow each other or not (bert)"),
)

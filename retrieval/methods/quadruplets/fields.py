"""The fields of QuadrupletBERT."""

from retrieval.config.fields import NOT_NEGATIVE, SWITCH, Field, declare, number, one_of

_HINGES = one_of("way to join hinges", ("max", "sum", "chain", "triplets"))
_MARGIN = number("0 or more, or -1", lambda value: value >= 0 or value == -1)

declare("data.rates", quadruplets=Field(0.0, NOT_NEGATIVE, "how often examples with negatives of both kinds are drawn"))
declare(
    "train",
    hinges=Field("max", _HINGES, "quadruplet: max (the paper), sum, chain (positive, hard, simple) or triplets"),
    hard_margin=Field(-1.0, _MARGIN, "quadruplet: the margin of the hinge with the hard negative; -1: train.margin"),
    batch_sum=Field(False, SWITCH, "quadruplet: whether a batch's losses are added up (the paper); else their mean"),
)

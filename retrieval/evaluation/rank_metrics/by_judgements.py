"""Metrics by judgements, as ir_measures defines them."""

from retrieval.evaluation.metrics import METRICS, Metric

for _name in ("AP", "P", "R", "RR", "Rprec", "Success", "nDCG"):
    METRICS.register(_name, Metric(needs_cutoff=_name in ("P", "R", "Success")))

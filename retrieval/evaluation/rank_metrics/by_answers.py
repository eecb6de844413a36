"""Metrics by answers: `Answer@k` is top-k retrieval accuracy (Karpukhin et al. 2020, Table 2); ProQA calls it R@k."""

from retrieval.evaluation.metrics import METRICS, AnswerMetric

METRICS.register("Answer", AnswerMetric(lambda holds_K, k: float(holds_K[: k or None].any())))

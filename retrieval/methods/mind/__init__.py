"""MIND: news recommended by impressions (Wu et al. 2020)."""

NAMES = {"set": {"set_and_format": "mind"}, "format": {"set_and_format": "mind"}, "stage": {"stage": "impressions"}}

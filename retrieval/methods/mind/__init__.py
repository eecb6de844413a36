"""MIND: news recommended by impressions (Wu et al. 2020)."""

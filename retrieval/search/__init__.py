"""Search: encoded texts, indexes, mining."""

NAMES = {"index": {"exact": "exact quantised", "bm25": "bm25 bm25_also", "scann": "scann"}}

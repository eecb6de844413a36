"""Where a run's parameters come from, and how trained ones are read."""

NAMES = {"start": {"published_weights": "published", "trained_run": "run"}}

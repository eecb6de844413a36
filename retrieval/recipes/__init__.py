"""How models are built, trained and read."""

NAMES = {"recipe": {"two_tower_recipe": "two_tower"}, "start": {"bert_weights": "published", "trained_run": "run"}}

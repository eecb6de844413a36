"""How models are built and trained."""

NAMES = {"recipe": {"two_tower_recipe": "two_tower"}}

"""The training of a run: its data, its length, its log and its refreshes."""

NAMES = {"validator": {"validation": "pool"}}

"""The labelled pairs of a run, and their hard negatives."""

NAMES = {"refresh": {"mined_negatives": "negatives"}}

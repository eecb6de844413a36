"""What experiments that fine-tune share."""

from ml_collections import ConfigDict


def on_labelled_examples(config: ConfigDict) -> ConfigDict:
    """The config with labelled examples alone. Evaluation sets are encoded, by the trained towers only."""
    config.data.rates.pairs = 1.0
    config.data.update(lanes=8, held_out=0.0)
    config.data.pack.auto = True
    config.encode.update(untrained=False, corpus=False)
    return config

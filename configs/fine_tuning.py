"""What experiments that fine-tune share."""

from pathlib import Path

from ml_collections import ConfigDict

_LOCAL = "local:"


def on_labelled_examples(config: ConfigDict) -> ConfigDict:
    """The config with labelled examples alone. Evaluation sets are encoded, by the trained towers only."""
    config.data.rates.pairs = 1.0
    config.data.update(lanes=8, held_out=0.0)
    config.data.pack.auto = True
    config.encode.update(untrained=False, corpus=False)
    return config


def names_model(argument: str) -> bool:
    """Whether an experiment's argument is a published model, a folder or hf:NAME, be it behind 'local:'."""
    return argument.startswith((_LOCAL, "hf:")) or not argument.isidentifier() or Path(argument).exists()


def from_model(argument: str) -> ConfigDict:
    """Training on pairs that starts from a published model, for accelerators; behind 'local:' for two CPU cores.

    Rate and prefixes are those of `embedders.py`, and lengths as in `embedding.py`; towers are not trained.
    """
    from retrieval.configs import embedders, embedding

    is_local, model = argument.startswith(_LOCAL), argument.removeprefix(_LOCAL)
    config, known = embedding.get_config("local" if is_local else "full"), embedders.embedder(model, "")
    config.data.update(query_prefix=known.query, document_prefix=known.document)
    if is_local:  # a lane makes a graph of its own, in seconds; and 1,000 texts take as long as a hundred steps
        config.data.lanes = 1
        config.loop.update(checkpoint_every=100, validate_every=100, validate_queries=100, validate_candidates=300)
    config.train.update(init_from=model, learning_rate=known.rate)
    config.model.update(remat="auto", dtype="float32")
    config.encode.start = False
    return config

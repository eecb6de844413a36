"""The tiny config, and runs of it."""

import importlib

from conftest import REPOSITORY

from retrieval.pipeline.run import Run

TINY = dict(
    prepare=dict(shards=8, vocab_size=300, longest_passage=40, shortest_paragraph=10, least_passage=5),
    data=dict(query_length=16, document_length=48, lanes=2, shuffle_buffer=64),
    model=dict(num_layers=1, hidden_size=16, num_heads=2, mlp_size=32, embed_dim=8),
    train=dict(steps=4, batch_size=16),
    loop=dict(log_every=2, checkpoint_every=2),
    encode=dict(batch_tokens=1024, shard_size=50),
)


def make_run(name, inputs, folder, **changes):
    config = importlib.import_module(f"configs.{name}").get_config("local")
    for group, values in TINY.items():
        config[group].update(values)
    config.corpus = str(inputs / "dump.xml")
    config.sets.update(pydocs=False, reqa=str(inputs / "squad.json"))
    config.update_from_flattened_dict(changes)
    return Run(config, folder, REPOSITORY / "requirements.lock")


def fine_tuning(inputs, pretrained, folder, /, **changes):
    """Half of the 24 toy questions to train on, 3 of these to validate on."""
    changes = {"base": str(pretrained), "train.init_from": str(pretrained), "data.lanes": 2, "corpus": "", **changes}
    half = {"split.ratio": 0.5, "split.validation": 0.25, "train.batch_size": 8, "loop.validate_every": 2}
    return make_run("reqa", inputs, folder, **(half | changes))

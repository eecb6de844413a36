"""What the size 'local' of every experiment starts from: a model and a corpus for a laptop's CPU."""

from ml_collections import ConfigDict

from retrieval.config import experiment


def defaults() -> ConfigDict:
    """The defaults, with a small corpus and model, and with what lets a model learn from 10^5 pairs in place of 10^9.

    In so few steps a [CLS] vector learns nothing, but the mean of the tokens does. Towers that share their parameters
    learn faster, and so do cosines with a temperature. There is no time to overfit.
    """
    config = experiment.defaults()
    config.prepare.update(shards=8, vocab_size=16_000, longest_passage=80, shortest_paragraph=32, held_out=0.2)
    config.data.update(query_length=32, document_length=96, lanes=4, shuffle_buffer=512, held_out=0.0)
    config.data.pack.update(query_row=64, document_row=128)
    config.model.update(num_layers=2, hidden_size=128, num_heads=2, mlp_size=512, dtype="float32", embed_dim=128)
    config.model.update(
        remat="auto", unroll=0, matmul_dtype="auto", pooling="mean", tied=True, normalize=True, dropout=0.0
    )
    config.train.temperature = 0.05
    config.loop.log_every = 20
    config.encode.update(batch_tokens=2048, shard_size=8192)
    return config

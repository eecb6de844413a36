"""What the benchmarks run on: the pairs of ICT, BFS, WLP and SQuAD, 64/288 tokens, and a small BERT for both towers.

The towers are those of sentence-transformers, so that both sides do the same work: one for queries and documents, the
mean of the tokens, a linear layer, cosines with a temperature of 0.05 (its `scale` of 20), no correction by log Q.
"""

from ml_collections import ConfigDict

from configs import ict_bfs_wlp

MODELS = {
    "L2 H128": dict(num_layers=2, hidden_size=128, num_heads=2, mlp_size=512),
    "L4 H256": dict(num_layers=4, hidden_size=256, num_heads=4, mlp_size=1024),
    "L6 H384": dict(num_layers=6, hidden_size=384, num_heads=12, mlp_size=1536),
    "L12 H768": dict(num_layers=12, hidden_size=768, num_heads=12, mlp_size=3072),
    # The shapes of today's families: the MLP's size and the heads of keys stand to the hidden size as in those of 22
    # and of 28 layers. They have no dropout.
    "ModernBERT L6 H256": dict(
        family="modernbert", num_layers=6, hidden_size=256, num_heads=4, mlp_size=384, layer_norm_epsilon=1e-5,
        dropout=0.0,
    ),
    "Qwen3 L4 H256": dict(
        family="qwen3", switches=("kv_heads=2", "head_size=128"), num_layers=4, hidden_size=256, num_heads=4,
        mlp_size=768, layer_norm_epsilon=1e-6, dropout=0.0,
    ),
}  # fmt: skip


def get_config() -> ConfigDict:
    """Stages that make the data, and the model L4 H256; the benchmarks set what else they compare."""
    config = ict_bfs_wlp.get_config()
    config.stages = ("prepare", "sets", "pairs")
    config.prepare.update(shards=8)
    config.split.set = "reqa"
    config.data.rates.update(pairs=1.0)
    config.data.update(lanes=4, held_out=0.0, shuffle_buffer=512)
    config.data.pack.update(query=0.0, document=0.0)  # the pairs are one text per row; works that pack do so themselves
    config.model.update(MODELS["L4 H256"], dtype="float32", remat="none", unroll=12)
    config.model.update(pooling="mean", tied=True, normalize=True, matmul_dtype="auto")
    config.train.update(batch_size=64, temperature=0.05, log_q=False)
    config.loop.update(validate_every=0)
    config.encode.update(batch_tokens=2048)
    return config

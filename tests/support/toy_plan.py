"""A config whose step is quick to compile, and a chip with round numbers."""

from configs import ict_bfs_wlp
from retrieval.training.chips import Chip

TOY = Chip("toy", "cpu", 2, peak_flops=1e9, memory=2 * 2**20, bandwidth=1e8, interconnect=1e7)


def make_config(**changes):
    config = ict_bfs_wlp.get_config("local")
    config.prepare.vocab_size = 200
    config.data.update(query_length=8, document_length=16)
    config.model.update(num_layers=2, hidden_size=32, num_heads=2, mlp_size=64, embed_dim=16)
    config.model.update(unroll=1, remat="full", dropout=0.0, pooling="cls", tied=False, products="dtype")
    config.train.update(batch_size=32, steps=1000)
    config.update_from_flattened_dict(changes)
    return config
